"""Figures of importances, marginals, pairs of hyperparameters, and rung correlations."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.importance import CLEAR, PairView, ShareView
from .content import ReportView
from .drawing import BOTTOM, COLORS, LETTER, TOP, Chart, Ticks, brief, extent, number
from .figures import MOST_AXES, axis_with_none, chosen_dimensions, colors, value_of

MOST_CLOUDS = 3  # pairs whose trials are report
FEW = 6  # up to this many values get an interval each


def importances(report: ReportView) -> Chart | None:
    """Draw the importance of each searched hyperparameter."""
    shares = [(share.name, share) for share in report.importances[:MOST_AXES]]
    return _bars("importance of hyperparameters", shares)


def marginals(report: ReportView) -> list[Chart]:
    """Draw the effect of each hyperparameter on the objective."""
    dimensions = {dimension.name: dimension for dimension in chosen_dimensions(report)}
    marginals = [marginal for marginal in report.marginals if marginal.name in dimensions]
    if not marginals:
        return []
    low, high = extent([0.0, *(point.estimate for marginal in marginals for point in marginal.points)])
    low, high = low - (high - low) / 4, high + (high - low) / 4  # intervals may be far wider, and are clipped
    clipped = lambda value: min(max(value, low), high)  # noqa: E731
    drawn = []
    for marginal in marginals:
        name, points = marginal.name, marginal.points
        place, ticks = axis_with_none(dimensions[name], [point.value for point in points])
        chart = _small(f"effect of {name}", (low, high), (name, f"effect on {report.objective}"[:34]), ticks)
        chart.line([(0, 0.0), (1, 0.0)], "zero")
        ends = [(place(point.value), clipped(point.low), clipped(point.high)) for point in points]
        texts = [
            f"{number(point.value) or 'none'}: {point.estimate:+.3g} ({point.low:+.3g} to {point.high:+.3g})"
            for point in points
        ]
        joined = [pair for pair in zip(ends, points, strict=True) if pair[1].value is not None]
        if len(joined) > FEW:
            chart.band([end for end, _ in joined], "s1")
            chart.line([(at, point.estimate) for (at, _, _), point in joined], "s1")
        for (at, bottom, top), point, text in zip(ends, points, texts, strict=True):
            if len(joined) <= FEW or point.value is None:
                chart.line([(at, bottom), (at, top)], "whisker", text)
            chart.add("dot", [(at, point.estimate)], "q4 small", text)
        drawn.append(chart)
    return drawn


def pairs(report: ReportView) -> list[Chart]:
    """Draw the importances of pairs, and the trials by the clearest pairs."""
    bars = _bars("importance of pairs", [(" and ".join(pair.names), pair) for pair in report.pairs])
    clear = [pair.names for pair in report.pairs if pair.low >= CLEAR][:MOST_CLOUDS]
    return [bars, *(_cloud(report, *names) for names in clear)] if bars else []


def _cloud(report: ReportView, one: str, other: str) -> Chart:
    """Draw the trials by two hyperparameters; darker is better."""
    dimensions, of = {dimension.name: dimension for dimension in report.dimensions}, colors(report)
    trials = [trial for trial in report.study.trials if trial.number in report.results]
    sides = [[value_of(trial, dimensions[name]) for trial in trials] for name in (one, other)]
    (x, x_ticks), (y, y_ticks) = (
        axis_with_none(dimensions[name], values) for name, values in zip((one, other), sides, strict=True)
    )
    texts = [(at, brief(text)) for at, text in y_ticks]
    chart = _small(f"results by {one} and {other}", (0, 1), (one, other), x_ticks, left=66, y_ticks=texts)
    for color in (f"q{index}" for index in range(COLORS)):
        colored = (pair for trial, *pair in zip(trials, *sides, strict=True) if of[trial.number] == color)
        chart.dots([(x(a), y(b)) for a, b in colored], color)
    return chart


def ranks(report: ReportView) -> Chart | None:
    """Draw the rank correlations between rungs."""
    correlations = report.correlations
    if not correlations:
        return None
    lows, highs = sorted({row.low for row in correlations}), sorted({row.high for row in correlations})
    columns, rows = [(i + 0.5, str(epochs)) for i, epochs in enumerate(highs)], list(enumerate(lows))
    chart = Chart(
        "rank correlations between rungs",
        (0, len(highs)),
        (len(lows), 0),
        ("results after more epochs", "epochs"),
        height=TOP + BOTTOM + 44 * len(lows),
        x_ticks=columns,
        y_ticks=[(row + 0.5, str(epochs)) for row, epochs in rows],
    )
    for correlation in correlations:
        x, y, value = highs.index(correlation.high), lows.index(correlation.low), correlation.correlation
        chart.bar((x, x + 1), (y, y + 1), f"q{max(0, min(2, int(3 * value)))}")  # light enough for the text on it
        chart.add("text", [(x + 0.3, y + 0.5)], "halo", f"{value:.2f} ({correlation.trials})")
    return chart


def _bars(title: str, shares: Sequence[tuple[str, ShareView | PairView]]) -> Chart | None:
    """Draw shares of the variance, with their intervals."""
    if not shares:
        return None
    left, rows = min(220, 20 + LETTER * max(len(name) for name, _ in shares)), max(2, len(shares))
    ends = (0, max(0.01, *(share.high for _, share in shares)) * 1.15), (rows, 0)
    ticks = [(row + 0.5, name) for row, (name, _) in enumerate(shares)]
    height, labels = TOP + BOTTOM + 22 * rows, ("share of the variance", "")
    chart = Chart(title, *ends, labels, height=height, left=left, y_ticks=ticks)
    for row, (name, share) in enumerate(shares):
        text = f"{name}: {share.estimate:.0%} ({share.low:.0%} to {share.high:.0%})"
        chart.bar((0, share.estimate), (row + 0.18, row + 0.82), "q3 bar", text)
        chart.line([(share.low, row + 0.5), (share.high, row + 0.5)], "whisker", text)
        chart.add("text", [(share.high, row + 0.5)], "", f"{share.estimate:.0%}")
    return chart


def _small(
    title: str,
    y: tuple[float, float],
    labels: tuple[str, str],
    ticks: Ticks,
    left: int = 46,
    y_ticks: Ticks | None = None,
) -> Chart:
    """Return a small chart with a hyperparameter as its horizontal axis."""
    few = [(at, brief(text)) for at, text in (ticks if len(ticks) <= 4 else ticks[:: -(-len(ticks) // 4)])]
    return Chart(title, (0, 1), y, labels, width=300, height=210, left=left, x_ticks=few, y_ticks=y_ticks)
