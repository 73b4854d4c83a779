"""HTML of a study's present state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..engine.snapshots import clock
from ..report.drawing import escape, number
from ..report.markup import part, table
from .views import FailureView, HolderView, RunningView, WatchView

WIDTH, HEIGHT = 130, 22  # size of a curve in pixels


def fragment(now: WatchView) -> str:
    """Return the part of a study's page that changes."""
    counts = ", ".join(f"{count} {state}" for state, count in now.counts.items())
    best = now.best
    words = [
        f"{now.state.capitalize()}: {counts}.",
        f"Best {number(best.value)}, {best.name} at epoch {best.epochs}." if best else "No result yet.",
        f"{now.epochs:,} of {now.epochs_total:,} epochs{_pace(now)}.",
    ]
    bar = f'<progress max="{max(1, now.epochs_total)}" value="{now.epochs}"></progress>'
    rungs = [(str(rung.epochs), str(rung.done), str(rung.expected)) for rung in now.rungs]
    return "".join(
        [
            f'<div class="verdict">{"".join(f"<p>{escape(text)}</p>" for text in words)}{bar}</div>',
            part("Rungs", "", table(("epochs", "done", "expected"), rungs, "nnn")),
            part("In training", "", _running(now.running)),
            part("Workers", "", _workers(now.workers)),
            part("Last failures", "", _failures(now.failures)),
        ]
    )


def _pace(now: WatchView) -> str:
    if not now.epochs_per_second:
        return ""
    left = "" if now.seconds_left is None else f", about {clock(now.seconds_left)} left"
    return f", {now.env_steps_per_second:,.0f} steps and {now.epochs_per_second:.3g} epochs a second{left}"


def _running(rows: Sequence[RunningView]) -> str:
    cells = [
        (
            escape(row.name),
            f"{row.epochs}/{row.target}",
            clock(row.seconds),
            number(row.curve[-1]) if row.curve else "",
            _curve(row.curve) + "".join(f" {escape(name)} {_curve(curve)}" for name, curve in row.curves.items()),
            escape(row.worker),
        )
        for row in rows
    ]
    return table(("trial", "epoch", "for", "last", "curve", "worker"), cells, "nnnn--") if cells else ""


def _curve(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    step = WIDTH / (len(values) - 1)
    places = (
        f"{i * step:.0f},{HEIGHT - 2 - (value - low) / span * (HEIGHT - 4):.0f}" for i, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="from {number(values[0])} to '
        f'{number(values[-1])}"><polyline class="line q4" points="{" ".join(places)}"/></svg>'
    )


def _workers(rows: Sequence[HolderView]) -> str:
    cells = [(escape(row.name), row.state, clock(row.seconds), ", ".join(map(str, row.trials))) for row in rows]
    return table(("process", "state", "since", "holds trials"), cells, "--n-") if cells else ""


def _failures(rows: Sequence[FailureView]) -> str:
    cells = [
        (
            f"{datetime.fromtimestamp(row.time):%H:%M:%S}",
            str(row.trial),
            escape(row.outcome),
            f'<span class="wrap">{escape(row.text)}</span>',
        )
        for row in rows
    ]
    return table(("at", "trial", "kind", "message"), cells, "-n--") if cells else ""
