"""Charts drawn by Matplotlib, in the colors of the report's style."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from ..redact import printable
from .drawing import Chart, Mark, Parallel, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCH = 100.0  # pixels of a drawing
COLUMNS = 3  # in a figure of several drawings
# Styles whose color has another name, those whose lines are not 1.4 points wide, and those with dashed lines.
COLORS = {
    **{
        "rung": "soft",
        "zero": "soft",
        "none": "rule",
        "failed": "bad",
        "failure": "bad",
        "lost": "bad",
        "takeover": "best",
        "copied": "best",
    },
    **{
        "member": "q3",
        "work": "q3",
        "whisker": "text",
        "front": "q5",
        "s0": "best",
        "s1": "q4",
        "s2": "good",
        "s3": "soft",
    },
}
WIDTHS = {"best": 2.6, "member": 2.0, "front": 2.0, "s0": 2.4}
DASHES = {"rung": (0, (2, 3)), "zero": (0, (2, 3)), "copied": (0, (4, 3))}
NAMED = ("best", "s0", "s1", "s2", "s3")  # styles of lines that appear in a legend
HALO = [withStroke(linewidth=2.5, foreground="white")]


class Picture(Figure):
    """A figure that a notebook displays, without Matplotlib's global state."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def figure_of(drawings: Sequence[Chart | Parallel]) -> Figure:
    """Return a figure of one drawing, or of several in rows."""
    columns = min(COLUMNS, len(drawings))
    rows = math.ceil(len(drawings) / columns)
    width, height = (max(getattr(drawing, side) for drawing in drawings) / INCH for side in ("width", "height"))
    figure = Picture(figsize=(columns * width, rows * height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, drawing in zip(grid, drawings, strict=False):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=color("soft"), labelsize=8)
        if isinstance(drawing, Chart):
            _draw_chart(axes, drawing)
        else:
            _draw_parallel(axes, drawing)
    for axes in grid[len(drawings) :]:
        axes.remove()
    return figure


@cache
def _palette() -> dict[str, str]:
    """Return the colors of the light page."""
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--(\w+): (#\w{6})", style[: style.index("@media")]))


def color(style: str) -> str:
    """Return the color of a style, such as "q4 bar"."""
    name = style.partition(" ")[0]
    return _palette()[COLORS.get(name, name if name in _palette() else "soft")]


def _draw_chart(axes: Axes, chart: Chart) -> None:
    axes.set(xlim=(chart.x.low, chart.x.high), ylim=(chart.y.low, chart.y.high))
    ticks = chart.ticks()
    axes.set_xticks([value for value, _ in ticks], [_text(text) for _, text in ticks])
    axes.set_xlabel(_text(chart.labels[0]), color=color("text"), fontsize=9, weight="bold")
    axes.set_ylabel(_text(chart.labels[1]), color=color("text"), fontsize=9, weight="bold")
    if chart.y_ticks is not None:
        axes.set_yticks([value for value, _ in chart.y_ticks], [_text(text) for _, text in chart.y_ticks])
    axes.grid(visible=True, axis="both" if chart.y_ticks is None else "x", color=color("rule"), linewidth=0.8)
    axes.set_axisbelow(True)
    for layer, mark in enumerate(chart.marks):
        _draw_mark(axes, mark, 2 + layer / (1 + len(chart.marks)))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def _draw_mark(axes: Axes, mark: Mark, layer: float) -> None:
    x, y = zip(*mark.points, strict=True) if mark.points else ((), ())
    style = mark.style.partition(" ")[0]
    look: dict[str, Any] = {"color": color(style), "zorder": layer}
    line: dict[str, Any] = {"linewidth": WIDTHS.get(style, 1.4), "linestyle": DASHES.get(style, "-")}
    if mark.shape == "line":
        axes.plot(x, y, label=_text(mark.name) if style in NAMED and mark.name else None, **line, **look)
    elif mark.shape == "rule":
        axes.axvline(x[0], **{**line, "linewidth": 1.0}, **look)
    elif mark.shape == "band":
        axes.fill(x, y, alpha=0.2, linewidth=0, **look)
    elif mark.shape == "bar":
        axes.fill([x[0], x[1], x[1], x[0]], [y[0], y[0], y[1], y[1]], linewidth=0.6, edgecolor="white", **look)
    elif mark.shape == "text":
        _write(axes, mark.name, mark.points[0])
    else:
        marker, size = {"dots": ("o", 4.0), "dot": ("o", 9.0), "diamond": ("D", 6.0)}[mark.shape]
        size = 5.0 if "small" in mark.style else size
        edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.0 if mark.shape == "dots" else 1.0}
        axes.plot(x, y, marker, markersize=size, **edge, **look)


def _draw_parallel(axes: Axes, drawing: Parallel) -> None:
    missing, last = -0.09, len(drawing.axes) - 1
    axes.set(xlim=(-0.1, last + 0.35), ylim=(missing - 0.02, 1.02))
    axes.set_yticks([])
    axes.xaxis.tick_top()
    axes.set_xticks(range(last + 1), [_text(shortened(name)) for name, _ in drawing.axes])
    for label in axes.get_xticklabels():
        label.set(color=color("text"), weight="bold")
    for _, style, _, places in drawing.lines:
        ys = [missing if height is None else height for height in places]
        axes.plot(range(last + 1), ys, color=color(style), linewidth=1.2)
    for i, (_, ticks) in enumerate(drawing.axes):
        axes.axvline(i, color=color("soft"), linewidth=1.0)
        for position, text in ticks:
            _write(axes, text[:14], (i, position))


def _write(axes: Axes, text: str, at: tuple[float, float]) -> None:
    """Write text beside a point."""
    options: dict[str, Any] = {"textcoords": "offset points", "xytext": (3, 0), "va": "center", "fontsize": 8}
    axes.annotate(_text(text), at, color=color("text"), path_effects=HALO, **options)


def _text(text: str) -> str:
    """Return text that Matplotlib does not take for mathematics."""
    return printable(text).replace("$", r"\$")
