"""Drawing of charts as SVG: axes, scales and marks, without a library.

Colors come from classes of the page's style, so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape as _escape

from ..redact import printable

Point = tuple[float, float]
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
COUNTS = ("epoch", "trial")  # axes of whole numbers
COLORS = 6  # classes of the scale from the worst to the best, q0 to q5


def escape(text: object) -> str:
    """Return a text that is safe in HTML and SVG."""
    return _escape(printable(str(text)))


def number(value: object) -> str:
    """Format a number briefly, without trailing zeros."""
    return f"{value:.4g}".replace("e-0", "e-") if isinstance(value, float) else "" if value is None else str(value)


class Scale:
    """A map of values to pixels.

    Args:
        low: the value at the start.
        high: the value at the end.
        start: pixels.
        end: pixels.
        kind: linear, log or near one.
    """

    def __init__(self, low: float, high: float, start: float, end: float, kind: str = "linear"):
        self.kind, self.low, self.high = kind, low, high
        if low == high:
            spread = abs(low) * 0.1 or 1.0
            self.low, self.high = (low / 2, high * 2) if kind == "log" else (low - spread, high + spread)
        if kind == "near one" and self.high >= 1:
            self.kind = "linear"
        self.start, self.end = start, end
        self._bounds = self._inner(self.low), self._inner(self.high)

    def _inner(self, value: float) -> float:
        if self.kind == "log":
            return math.log10(value)
        return -math.log10(1 - value) if self.kind == "near one" else value

    def __call__(self, value: float) -> float:
        """Return the pixels of a value."""
        low, high = self._bounds
        return self.start + (self._inner(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values within the scale."""
        low, high = self._bounds
        if self.kind == "linear":
            return linear_ticks(min(self.low, self.high), max(self.low, self.high), most)
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = max(1, math.ceil(len(powers) / most))
        values = [10.0**power for power in powers[::step]]
        if self.kind == "near one":
            values = [1 - 10.0**-power for power in powers[::step]]
        return values if len(values) > 1 else [self.low, self.high]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from low to high, at most `most`."""
    raw = (high - low) / max(1, most - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def extent(values: Iterable[float], margin: float = 0.04) -> tuple[float, float]:
    """Return the ends of values, a little apart."""
    known = list(values)
    low, high = min(known), max(known)
    apart = (high - low) * margin
    return low - apart, high + apart


class Chart:
    """A drawing with two axes.

    Args:
        x: ends of the horizontal axis.
        y: ends of the vertical axis.
        labels: of the two.
        x_kind: see `Scale`.
        width: in pixels.
        height: in pixels.
        left: pixels left of the axes.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
        x_kind: str = "linear",
        width: int = 460,
        height: int = 290,
        left: int = LEFT,
    ):
        self.width, self.height, self.left = width, height, left
        self.x = Scale(*x, left, width - RIGHT, x_kind)
        self.y = Scale(*y, height - BOTTOM, TOP)
        self.labels, self.body = labels, list[str]()

    def add(self, markup: str) -> None:
        """Add markup above what is drawn."""
        self.body.append(markup)

    def path(self, points: Iterable[Point]) -> str:
        """Return the coordinates of points."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def line(self, points: Iterable[Point], style: str, name: str = "") -> None:
        """Draw a line through points, with a name to point at."""
        named = f"<title>{escape(name)}</title>" if name else ""
        self.add(f'<polyline class="line {style}" points="{self.path(points)}">{named}</polyline>')

    def dots(self, points: Iterable[Point], style: str) -> None:
        """Draw dots, all as one element."""
        moves = "".join(f"M{self.x(x):.1f} {self.y(y):.1f}h0" for x, y in points)
        if moves:
            self.add(f'<path class="dots {style}" d="{moves}"/>')

    def band(self, points: Sequence[tuple[float, float, float]], style: str) -> None:
        """Draw the area between low and high at each x."""
        outline = self.path([(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)])
        self.add(f'<polygon class="band {style}" points="{outline}"/>')

    def bar(self, x: tuple[float, float], y: tuple[float, float], style: str, name: str = "") -> None:
        """Draw a rectangle from corner to corner."""
        left, right = sorted((self.x(x[0]), self.x(x[1])))
        top, bottom = sorted((self.y(y[0]), self.y(y[1])))
        named = f"<title>{escape(name)}</title>" if name else ""
        self.add(
            f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.8):.1f}" '
            f'height="{bottom - top:.1f}">{named}</rect>'
        )

    def text(self, x: float, y: float, text: object, style: str = "", anchor: str = "start") -> None:
        """Write a text at pixels."""
        self.add(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def _x_ticks(self) -> list[float]:
        counts = self.labels[0] in COUNTS
        return [
            value for value in self.x.ticks(9 if self.width > 500 else 6) if not counts or float(value).is_integer()
        ]

    def svg(self, name: str, x_ticks: Sequence[tuple[float, str]] | None = None, y_axis: bool = True) -> str:
        """Return the whole drawing.

        Args:
            name: for readers that see no drawing.
            x_ticks: values and texts; None for round numbers.
            y_axis: whether the vertical axis has numbers.
        """
        bottom, frame = self.height - BOTTOM, list[str]()
        ticks = [(value, number(value)) for value in self._x_ticks()] if x_ticks is None else x_ticks
        for value, text in ticks:
            at = self.x(value)
            frame.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
            frame.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>')
        for value in self.y.ticks() if y_axis else ():
            at = self.y(value)
            frame.append(f'<line class="grid" x1="{self.left}" x2="{self.width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            frame.append(f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>')
        middle = (self.left + self.width - RIGHT) / 2
        frame.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 6}" text-anchor="middle">'
            f"{escape(self.labels[0])}</text>"
        )
        if y_axis:
            half = (TOP + bottom) / 2
            frame.append(
                f'<text class="label" transform="translate(12 {half:.0f}) rotate(-90)" text-anchor="middle">'
                f"{escape(self.labels[1])}</text>"
            )
        return svg(self.width, self.height, name, "".join(frame) + "".join(self.body))


def svg(width: float, height: float, name: str, body: str, style: str = "") -> str:
    """Return an SVG element that scales with the page."""
    wide = "wide " if width > 500 else ""
    return (
        f'<svg class="{wide}{style}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(name)}">'
        f"{body}</svg>"
    )
