"""Figures of studies, each None if it has no data.

They draw what `data` returns. `page` writes the drawings as SVG, and `pictures` as Matplotlib's figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..engine.views import TrialView
from ..methods import scheduling
from ..statistics.aggregates import performance_profile
from ..study.objectives import MINIMIZE
from .content import BandView, CurvesView, DimensionView, ReportView
from .drawing import BOTTOM, COLORS, LETTER, TOP, Chart, Parallel, Scale, Ticks, brief, extent, labelled, number

FIRST, AFTER_NONE, LAST = 0.03, 0.16, 0.97  # places of an axis's first value, of that after "none", and of its last
MOST_AXES = 14  # in parallel coordinates, and slices; the most important hyperparameters are report


def colors(report: ReportView) -> dict[int, str]:
    """Return each trial's color class, from q0 (worst) to q5 (best)."""
    ranked, count = report.ranked, len(report.ranked)
    return {number: f"q{COLORS - 1 - COLORS * index // count}" for index, number in enumerate(ranked)}


def curves(report: ReportView) -> Chart | None:
    """Draw the learning curves of all trials, and the best one's interval."""
    return _learning(report, report.curves, report.band)


def curves_of_behaviours(report: ReportView) -> list[Chart]:
    """Draw the learning curves of each behaviour."""
    drawn = (_learning(report, view, None, width=460, height=250) for view in report.of_behaviours)
    return [chart for chart in drawn if chart is not None]


def _learning(
    report: ReportView, view: CurvesView, band: BandView | None, width: int = 940, height: int = 380
) -> Chart | None:
    means = view.trials
    if not means:
        return None
    of, metric, best = colors(report), view.metric, report.ranked[:1]
    edges = [edge for _, _, low, high in band.points for edge in (low, high)] if band else []
    everything = [value for points in means.values() for _, value in points]
    everything += [value for _, value, _, _ in band.points] if band else []  # fresh seeds may do best
    low, high = extent(everything)
    span = high - low
    edges = [min(max(edge, low - span / 2), high + span / 2) for edge in edges]  # three seeds give a very wide band
    last = max(report.study.rungs[-1], *(points[-1][0] for points in means.values()))
    title = f"learning curves: {metric} by epoch"
    chart = Chart(title, (0, last), extent([*everything, *edges]), ("epoch", metric), width=width, height=height)
    for rung in report.study.rungs[:-1]:
        chart.add("rule", [(rung, low)], "rung")
    if band:
        bottom, top = chart.y.low, chart.y.high
        chart.band([(e, max(a, bottom), min(b, top)) for e, _, a, b in band.points], "best")
    order = {trial: index for index, trial in enumerate(report.ranked)}
    for trial in sorted(means, key=lambda trial: -order.get(trial, len(order))):
        points = means[trial]
        style = "best" if [trial] == best and not band else of.get(trial, "none")
        chart.line(points, style, f"trial {trial}: {number(points[-1][1])} at epoch {points[-1][0]}")
        if len(points) == 1:
            chart.dots(points, style)
    if band:
        chart.line([(epoch, value) for epoch, value, _, _ in band.points], "best", band.label)
        if len(band.points) == 1:  # neither the area nor the line can be seen
            [(epoch, value, *ends)] = band.points
            chart.line([(epoch, min(max(end, bottom), top)) for end in ends], "best")
            chart.dots([(epoch, value)], "best")
    return chart


def promotions(report: ReportView) -> Chart | None:
    """Draw which trials were promoted to which rung."""
    study = report.study
    rungs = study.rungs
    if len(rungs) == 1 or not scheduling(study.scheduler).promotes or not report.ranked:
        return None
    trials, of = study.trials, colors(report)
    title = "promotions of each trial from rung to rung"
    ticks = [(rung, str(epochs)) for rung, epochs in enumerate(rungs)]
    ends = (-0.5, len(trials) - 0.5), (-0.4, len(rungs) - 0.6)
    chart = Chart(title, *ends, ("trial", "epochs"), width=940, height=240, y_ticks=ticks)
    for trial in trials:
        done = [row.rung for row in trial.rungs if row.state == "done"]
        style = of.get(trial.number, "none")
        n = trial.number if study.seeds == 1 else trials.index(trial)
        if done:
            results = ", ".join(number(row.result(report.objective)) for row in trial.rungs)
            chart.line([(n, 0), (n, max(done))], f"{style} stem", f"trial {trial.number}: {results}")
            chart.dots([(n, rung) for rung in done], style)
        if failed := [row.rung for row in trial.rungs if row.state == "failed"]:
            chart.dots([(n, rung) for rung in failed], "failed")
    return chart


def genealogy(report: ReportView) -> Chart | None:
    """Draw a population's genealogy: which member continued from which."""
    study = report.study
    trials = report.trials
    if not scheduling(study.scheduler).population or not report.ranked:
        return None
    rows = [
        (trial, rung.epochs, value)
        for trial in trials.values()
        for rung in trial.rungs
        if (value := rung.result(report.objective)) is not None
    ]
    member = {n: n if trial.member is None else trial.member for n, trial in trials.items()}
    members = max(member.values()) + 1
    sign = -1 if report.direction == MINIMIZE else 1
    position: dict[tuple[int, int], float] = {}
    for epochs in study.rungs:
        at = sorted((row for row in rows if row[1] == epochs), key=lambda row: sign * row[2])
        position |= {(trial.number, epochs): i / max(1, len(at) - 1) for i, (trial, _, _) in enumerate(at)}
    height = TOP + BOTTOM + max(140, 26 * members)
    ends = (0, study.rungs[-1] * 1.02), (members - 0.5, -0.5)
    chart = Chart("genealogy of the population", *ends, ("epoch", "member"), width=940, height=height)
    for trial in trials.values():
        points = [(row.epochs, member[trial.number]) for row in trial.rungs if row.state == "done"]
        start = (trial.branch.epochs if trial.branch else 0, member[trial.number])
        values = ", ".join(f"{d.name} = {number(trial.hyperparameters.get(d.name))}" for d in report.dimensions)
        if points:
            chart.line([start, *points], "member", f"trial {trial.number}: {values}")
        if trial.branch and trial.branch.trial in trials:
            parent, epochs = member[trial.branch.trial], trial.branch.epochs
            if parent != start[1]:
                chart.line([(epochs, parent), (epochs + study.rungs[0] * 0.12, start[1])], "copied")
    for trial, epochs, value in rows:
        style = f"q{min(COLORS - 1, int(COLORS * position[trial.number, epochs]))}"
        point = (epochs, member[trial.number])
        chart.add("dot", [point], style, f"trial {trial.number}: {number(value)} at epoch {epochs}")
    return chart


def profiles(samples: Sequence[tuple[str, Sequence[float]]], label: str) -> Chart | None:
    """Draw the fraction of trainings above each threshold."""
    if not samples:
        return None
    low, high = extent(value for _, values in samples for value in values)
    if low == high:
        return None
    chart = Chart("performance profiles", (low, high), (0, 1.02), (f"{label} above", "fraction of trainings"))
    thresholds = [low + (high - low) * i / 100 for i in range(101)]
    for index, (name, values) in enumerate(samples):
        profile = performance_profile([[value] for value in values], thresholds)
        chart.line(list(zip(thresholds, map(float, profile), strict=True)), f"s{index}", name)
    return chart


def chosen_dimensions(report: ReportView) -> list[DimensionView]:
    """Return the searched hyperparameters that vary, at most MOST_AXES."""
    rank = [share.name for share in report.importances]
    trials = report.study.trials
    varied = [
        dimension
        for dimension in report.dimensions
        if len({str(trial.hyperparameters.get(dimension.name)) for trial in trials}) > 1
    ]
    axes = sorted(varied, key=lambda d: rank.index(d.name) if d.name in rank else len(rank))[:MOST_AXES]
    return [dimension for dimension in varied if dimension in axes]


def _hashable(value: Any) -> Any:
    """Return numbers unchanged, and all other values as text."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


Place = Callable[[Any], float]


def value_of(trial: TrialView, dimension: DimensionView) -> Any:
    """Return a trial's value of a hyperparameter, or None."""
    return trial.hyperparameters.get(dimension.name)


def axis(dimension: DimensionView, values: Sequence[Any], start: float, end: float) -> tuple[Place, Ticks]:
    """Return a map from values to positions, and the ticks."""
    if dimension.axis == "choice":
        choices = sorted(set(map(_hashable, values)), key=lambda v: (isinstance(v, str), v))
        scale = Scale(-0.3, len(choices) - 0.7, start, end)
        position = {choice: scale(index) for index, choice in enumerate(choices)}
        return lambda value: position[_hashable(value)], [(at, number(choice)) for choice, at in position.items()]
    scale = Scale(min(values), max(values), start, end, dimension.axis)
    whole = all(isinstance(value, int) for value in values)
    ticks = [value for value in scale.ticks(5) if not whole or float(value).is_integer()]
    return scale, [(scale(value), text) for value, text in labelled(ticks)]


def axis_with_none(dimension: DimensionView, values: Sequence[Any]) -> tuple[Place, Ticks]:
    """Return `axis` from 0 to 1, with a place for None."""
    present = [value for value in values if value is not None]
    if len(present) == len(values):
        return axis(dimension, values, FIRST, LAST)
    place, ticks = axis(dimension, present, AFTER_NONE, LAST) if present else (lambda value: FIRST, [])
    return lambda value: FIRST if value is None else place(value), [(FIRST, "none"), *ticks]


def parallel(report: ReportView) -> Parallel | None:
    """Draw parallel coordinates, with one line for each trial."""
    results, of = report.results, colors(report)
    trials = {trial.number: trial for trial in report.study.trials if trial.number in results}
    chosen = chosen_dimensions(report)
    dimensions = [x for x in chosen if any(value_of(trial, x) is not None for trial in trials.values())]
    if not dimensions or len(trials) < 2:
        return None
    ends = (1.0, 0.0) if report.direction == MINIMIZE else (0.0, 1.0)
    scale = Scale(*extent(results.values()), *ends)
    places, axes = list[Place](), list[tuple[str, Ticks]]()
    for dimension in dimensions:
        values = [value for trial in trials.values() if (value := value_of(trial, dimension)) is not None]
        position, ticks = axis(dimension, values, 0.0, 1.0)
        places.append(position)
        axes.append((dimension.name, ticks))
    axes.append((report.objective, [(scale(value), text) for value, text in labelled(scale.ticks(6))]))
    lines = []
    for trial in (trial for trial in reversed(report.ranked) if trial in trials):
        measured = [value_of(trials[trial], dimension) for dimension in dimensions]
        at = [None if value is None else position(value) for value, position in zip(measured, places, strict=True)]
        lines.append((trial, of[trial], f"trial {trial}: {number(results[trial])}", [*at, scale(results[trial])]))
    return Parallel(axes, lines)


def slices(report: ReportView) -> list[Chart]:
    """Draw the results against each searched hyperparameter."""
    results, of, drawn = report.results, colors(report), list[Chart]()
    trials = [trial for trial in report.study.trials if trial.number in results]
    rank = [share.name for share in report.importances]
    order = sorted(chosen_dimensions(report), key=lambda d: rank.index(d.name) if d.name in rank else len(rank))
    for dimension in order if len(trials) > 1 else ():
        name = dimension.name
        values = {trial.number: value_of(trial, dimension) for trial in trials}
        if all(value is None for value in values.values()):
            continue
        place, ticks = axis_with_none(dimension, [*values.values()])
        few = ticks if len(ticks) <= 4 else ticks[:: math.ceil(len(ticks) / 4)]
        few = [(at, brief(text)) for at, text in few]
        labels, ends = (name, report.objective), extent(results.values())
        chart = Chart(f"results by {name}", (0, 1), ends, labels, width=300, height=210, left=46, x_ticks=few)
        for color in range(COLORS):
            some = [trial.number for trial in trials if of[trial.number] == f"q{color}"]
            chart.dots([(place(values[n]), results[n]) for n in some], f"q{color}")
        drawn.append(chart)
    return drawn


def front(report: ReportView) -> Chart | None:
    """Draw the Pareto front of the first two objectives."""
    study = report.study
    if len(study.objectives) < 2 or not report.ranked:
        return None
    one, two = list(study.objectives)[:2]
    points = {
        trial.number: (trial.objectives[one], trial.objectives[two])
        for trial in study.trials
        if trial.objectives and one in trial.objectives and two in trial.objectives
    }
    ends = [extent([point[axis] for point in points.values()], 0.08) for axis in (0, 1)]
    labels = (f"{one} ({study.objectives[one]})", f"{two} ({study.objectives[two]})")
    chart = Chart("Pareto front", ends[0], ends[1], labels, left=66)
    chart.dots([point for trial, point in points.items() if trial not in study.front], "q1")
    best = sorted(points[trial] for trial in study.front if trial in points)
    chart.line(best, "front")
    for trial in study.front:
        x, y = points[trial]
        chart.add("dot", [(x, y)], "q5", f"trial {trial}: {number(x)}, {number(y)}")
    return chart


def workers(report: ReportView) -> Chart | None:
    """Draw the work of each process over time, with takeovers and failures."""
    timeline = report.timeline
    if not timeline:
        return None
    rows = timeline.workers
    size, unit = max(timeline.seconds, 1e-3), "seconds"
    factor = 1.0
    if size > 7200:
        factor, unit = 3600.0, "hours"
    elif size > 300:
        factor, unit = 60.0, "minutes"
    height = TOP + BOTTOM + max(60, 22 * len(rows))
    left = 24 + LETTER * max(len(row.name) for row in rows)
    ends, ticks = ((0, size / factor), (len(rows), 0)), [(i + 0.5, row.name[:34]) for i, row in enumerate(rows)]
    left = min(left, 260)
    chart = Chart("work of each process", *ends, (unit, ""), width=940, height=height, left=left, y_ticks=ticks)
    index = {row.name: i for i, row in enumerate(rows)}
    for i, worker in enumerate(rows):
        for work in worker.work:
            trials = ", ".join(map(str, work.trials[:12])) + ("..." if len(work.trials) > 12 else "")
            chart.bar((work.from_ / factor, work.to / factor), (i + 0.2, i + 0.8), "work", f"trials {trials}")
    for lost in timeline.lost:
        row, text = index[lost.worker], f"trial {lost.trial}: about {lost.epochs:.1f} epochs were lost"
        chart.bar((lost.from_ / factor, lost.to / factor), (row + 0.2, row + 0.8), "lost", text)
    for mark in timeline.marks:
        at = (mark.at / factor, index[mark.worker] + 0.5)
        style = "takeover" if mark.kind == "takeover" else "failure"
        chart.add("diamond", [at], style, f"trial {mark.trial}: {mark.kind}")
    return chart
