"""Charts as SVG: axes, scales and marks, without a library.

Colors come from classes in the page's style sheet, so the same drawing fits light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as _escape
from itertools import pairwise

from ..redact import printable

Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]  # values and labels
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
LETTER = 7  # pixels of a letter or digit, about
DIGITS, MOST_DIGITS = 4, 17  # significant digits of a number, and those that tell any two apart
COUNTS = ("epoch", "trial")  # axes of whole numbers
COLORS = 6  # classes of the scale from the worst to the best, q0 to q5


def escape(text: object) -> str:
    """Return text that is safe in HTML and SVG."""
    return _escape(printable(str(text)))


def number(value: object, digits: int = DIGITS) -> str:
    """Format a number briefly, without trailing zeros."""
    if isinstance(value, float):
        return f"{value:.{digits}g}".replace("e-0", "e-")
    return "" if value is None else str(value)


def labelled(values: Sequence[float]) -> Ticks:
    """Return ticks, with as many digits as tell their values apart."""
    gap = min((abs(after - before) for before, after in pairwise(values)), default=math.inf)
    for digits in range(DIGITS, MOST_DIGITS + 1):
        texts = [number(float(value), digits) for value in values]
        if all(abs(float(text) - value) <= gap / 20 for text, value in zip(texts, values, strict=True)):
            break
    return list(zip(values, texts, strict=True))


def brief(text: str) -> str:
    """Shorten a tick's label, unless it is a number."""
    try:
        float(text)
    except ValueError:
        return text[:10]
    return text


class Scale:
    """A map of values to pixels.

    Args:
        low: value at `start`.
        high: value at `end`.
        start: pixels.
        end: pixels.
        form: "linear", "log" or "near one" (logarithmic in 1 - value).
    """

    def __init__(self, low: float, high: float, start: float, end: float, form: str = "linear"):
        self.form, self.low, self.high = form, low, high
        if low == high:
            spread = abs(low) * 0.1 or 1.0
            self.low, self.high = (low / 2, high * 2) if form == "log" else (low - spread, high + spread)
        if form == "near one" and self.high >= 1:
            self.form = "linear"
        self.start, self.end = start, end
        self._bounds = self._inner(self.low), self._inner(self.high)

    def _inner(self, value: float) -> float:
        if self.form == "log":
            return math.log10(value)
        return -math.log10(1 - value) if self.form == "near one" else value

    def __call__(self, value: float) -> float:
        """Return the pixel position of a value."""
        low, high = self._bounds
        return self.start + (self._inner(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values within the scale."""
        low, high = self._bounds
        if self.form == "linear":
            return linear_ticks(min(self.low, self.high), max(self.low, self.high), most)
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = max(1, math.ceil(len(powers) / most))
        values = [10.0**power for power in powers[::step]]
        if self.form == "near one":
            values = [1 - 10.0**-power for power in powers[::step]]
        return values if len(values) > 1 else [self.low, self.high]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers from low to high."""
    raw = (high - low) / max(1, most - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return list(dict.fromkeys(float(f"{index * step:.15g}") for index in range(first, last + 1)))


def extent(values: Iterable[float], margin: float = 0.04) -> tuple[float, float]:
    """Return the range of values, widened by a margin."""
    present = list(values)
    low, high = min(present), max(present)
    apart = (high - low) * margin
    return low - apart, high + apart


@dataclass(frozen=True)
class Mark:
    """A mark of a chart, in units of its axes.

    Attributes:
        shape: line, dots, dot, band, bar, rule, diamond or text.
        points: points of a line, the dots, the outline of a band, two corners of a bar, or one point.
        style: class in the page's style sheet.
        name: tooltip; for a text, the text itself.
    """

    shape: str
    points: Sequence[Point]
    style: str
    name: str = ""


class Chart:
    """A drawing with two axes, for the page or Matplotlib.

    Args:
        title: description for screen readers.
        x: ends of the horizontal axis.
        y: ends of the vertical axis.
        labels: labels of the two axes.
        width: pixels.
        height: pixels.
        left: least pixels left of the axes; long numbers at the vertical axis take more.
        x_ticks: values and labels; None for round numbers.
        y_ticks: the same. If given, the axis's own label is above them.
    """

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
        width: int = 460,
        height: int = 290,
        left: int = LEFT,
        x_ticks: Ticks | None = None,
        y_ticks: Ticks | None = None,
    ):
        self.title, self.width, self.height = title, width, height
        self.y = Scale(*y, height - BOTTOM, TOP)
        longest = max(len(text) for _, text in labelled(self.y.ticks())) if y_ticks is None else 0
        self.left = max(left, 27 + LETTER * longest)
        self.x = Scale(*x, self.left, width - RIGHT)
        self.labels, self.x_ticks, self.y_ticks = labels, x_ticks, y_ticks
        self.marks = list[Mark]()

    def add(self, form: str, points: Iterable[Point], style: str, name: str = "") -> None:
        """Add a `Mark` on top of the others."""
        self.marks.append(Mark(form, list(points), style, name))

    def line(self, points: Iterable[Point], style: str, name: str = "") -> None:
        """Draw a line through points, with a tooltip."""
        self.add("line", points, style, name)

    def dots(self, points: Iterable[Point], style: str) -> None:
        """Draw dots."""
        self.add("dots", points, style)

    def band(self, points: Sequence[tuple[float, float, float]], style: str) -> None:
        """Draw the area between low and high at each x."""
        self.add("band", [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)], style)

    def bar(self, x: tuple[float, float], y: tuple[float, float], style: str, name: str = "") -> None:
        """Draw a rectangle from corner to corner."""
        self.add("bar", zip(x, y, strict=True), style, name)

    def ticks(self) -> Ticks:
        """Return the ticks of the horizontal axis."""
        if self.x_ticks is not None:
            return self.x_ticks
        values = self.x.ticks(9 if self.width > 500 else 6)
        counts = self.labels[0] in COUNTS
        return labelled([value for value in values if not counts or float(value).is_integer()])

    def svg(self) -> str:
        """Return the whole drawing."""
        frame = [*self._x_axis(), *(self._y_axis() if self.y_ticks is None else self._rows(self.y_ticks))]
        return svg(self.width, self.height, self.title, "".join(frame + [self._drawn(mark) for mark in self.marks]))

    def _x_axis(self) -> Iterator[str]:
        bottom, middle = self.height - BOTTOM, (self.left + self.width - RIGHT) / 2
        label_end = 0.0  # up to here, labels fill the axis
        for value, text in self.ticks():
            at, half = self.x(value), LETTER * len(text) / 2
            yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>'
            middle_of_text = min(max(at, half), self.width - half)
            if middle_of_text - half >= label_end:
                yield f'<text x="{middle_of_text:.1f}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>'
                label_end = middle_of_text + half
        name = escape(self.labels[0])
        yield f'<text class="label" x="{middle:.0f}" y="{self.height - 6}" text-anchor="middle">{name}</text>'

    def _y_axis(self) -> Iterator[str]:
        for value, text in labelled(self.y.ticks()):
            at = self.y(value)
            yield f'<line class="grid" x1="{self.left}" x2="{self.width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        transform = f"translate(12 {(TOP + self.height - BOTTOM) / 2:.0f}) rotate(-90)"
        yield f'<text class="label" transform="{transform}" text-anchor="middle">{escape(self.labels[1])}</text>'

    def _rows(self, ticks: Ticks) -> Iterator[str]:
        for value, text in ticks:
            at = self.y(value)
            yield f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        if self.labels[1]:
            yield f'<text class="label" x="2" y="{TOP - 2}">{escape(self.labels[1])}</text>'

    def _drawn(self, mark: Mark) -> str:
        """Return the SVG of a mark."""
        style, name = mark.style, escape(mark.name)
        title = f"<title>{name}</title>" if name else ""
        places = [(self.x(x), self.y(y)) for x, y in mark.points]
        [x, y] = places[0] if places else (0.0, 0.0)
        if mark.shape in ("line", "band"):
            form = "polyline" if mark.shape == "line" else "polygon"
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            return f'<{form} class="{mark.shape} {style}" points="{path}">{title}</{form}>'
        if mark.shape == "dots":  # all dots are one element
            moves = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
            return f'<path class="dots {style}" d="{moves}"/>' if moves else ""
        if mark.shape == "dot":
            radius = 4 if "small" in style else 6
            return f'<circle class="{style} dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{title}</circle>'
        if mark.shape == "diamond":
            return f'<path class="{style}" d="M{x:.1f} {y - 7:.1f}l5 7l-5 7l-5 -7z">{title}</path>'
        if mark.shape == "rule":
            return f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{self.height - BOTTOM}"/>'
        if mark.shape == "text":
            return f'<text class="{style}" x="{x + 4:.1f}" y="{y + 4:.1f}">{name}</text>'
        (left, right), (top, bottom) = (sorted(axis) for axis in zip(*places, strict=True))
        size = f'width="{max(right - left, 0.8):.1f}" height="{bottom - top:.1f}"'
        return f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" {size}>{title}</rect>'


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates.

    Attributes:
        axes: name and ticks of each axis; positions are from 0 (bottom) to 1.
        lines: trial, style, tooltip and positions on the axes (None without a value) of each line, worst first.
    """

    axes: Sequence[tuple[str, Ticks]]
    lines: Sequence[tuple[int, str, str, Sequence[float | None]]]
    height = 350

    @property
    def width(self) -> int:
        """Width in pixels."""
        return max(940, 100 * len(self.axes))

    def svg(self) -> str:
        """Return the whole drawing; the page's script adds brushing."""
        top, bottom = 46, self.height - 10
        gap, body = (self.width - 120) / (len(self.axes) - 1), list[str]()
        y = Scale(0, 1, bottom - 22, top)
        for trial, style, name, places in self.lines:
            ys = [bottom if value is None else y(value) for value in places]
            points = " ".join(f"{50 + gap * i:.0f},{at:.0f}" for i, at in enumerate(ys))
            title = f"<title>{escape(name)}</title>"
            body.append(f'<polyline class="line {style}" data-trial="{trial}" points="{points}">{title}</polyline>')
        for i, (name, ticks) in enumerate(self.axes):
            x = 50 + gap * i
            body.append(f'<line class="axis" x1="{x:.0f}" x2="{x:.0f}" y1="{top - 6}" y2="{bottom}"/>')
            row = 14 if i % 2 or len(name) < 12 else 28
            body.append(
                f'<text class="label" x="{x:.0f}" y="{row}" text-anchor="middle">{escape(shortened(name))}</text>'
            )
            for at, text in ticks:
                body.append(f'<text class="halo" x="{x + 5:.0f}" y="{y(at) + 4:.0f}">{escape(text[:14])}</text>')
            body.append(
                f'<rect class="brush" data-axis="{i}" x="{x - 14:.0f}" y="{top - 8}" width="28" '
                f'height="{bottom - top + 12}"/>'
            )
        return svg(self.width, self.height, "parallel coordinates", "".join(body), "parallel")


def shortened(name: str) -> str:
    """Shorten a long name in the middle."""
    return name if len(name) < 17 else f"{name[:7]}…{name[-8:]}"


def svg(width: float, height: float, name: str, body: str, style: str = "") -> str:
    """Return an SVG element that scales with the page."""
    wide = "wide " if width > 500 else ""
    return (
        f'<svg class="{wide}{style}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(name)}">'
        f"{body}</svg>"
    )
