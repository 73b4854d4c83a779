"""The view of `rekindle watch`, which fits into 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...engine.snapshots import Snapshot, clock
from ...live.views import ALIVE, DIED, FailureView, HolderView, RunningView, WatchView
from ...redact import printable
from ...study.number_text import in_digits
from .live_progress import Progress

BLOCKS = "▁▂▃▄▅▆▇█"
SHORT = 8  # points of each curve where behaviours have their own
FIXED_LINES = 25  # lines besides running trials and workers
STYLES = {ALIVE: "green", DIED: "red"}  # styles of workers; other workers are silent


def sparkline(values: Sequence[float]) -> str:
    """Return a curve as blocks, from its lowest to its highest value."""
    if not values:
        return ""
    low, high = min(values), max(values)
    step = (high - low) / (len(BLOCKS) - 1) or 1.0
    return "".join(BLOCKS[round((value - low) / step)] for value in values)


def picture(progress: Progress, view: WatchView, snapshot: Snapshot) -> RenderableType:
    """Return the whole view of a study.

    Args:
        progress: progress, for its panel and the console's size.
        view: present state of the study.
        snapshot: its progress.
    """
    progress.state = view.state if view.state != "stalled" else "stalled: no process trains it"
    progress.workers = sum(worker.state == ALIVE for worker in view.workers)
    room = max(6, progress.console.height - FIXED_LINES) if progress.console.is_terminal else 1000
    workers = view.workers[: max(2, room // 3)]
    parts: list[RenderableType] = [progress.panel(snapshot)]
    if view.running:
        parts.append(_running(view.running, max(3, room - len(workers))))
    if view.workers:
        parts.append(_workers(view.workers, len(workers)))
    if view.failures:
        parts.append(_failures(view.failures))
    return Group(*parts)


def _table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        header_style="bright_black",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def _more(table: Table, rows: Sequence[object], count: int) -> Table:
    if len(rows) > count:
        table.add_row("", Text(f"and {len(rows) - count} more", "bright_black"))
    return table


def _running(rows: Sequence[RunningView], most: int) -> Table:
    table = _table("\nin training", "trial", "epoch", "for", "last", "curve", "worker", left=("curve", "worker"))
    values = in_digits(row.curve[-1] if row.curve else None for row in rows[:most])
    for row, value in zip(rows, values, strict=False):
        name = Text(printable(row.name))
        epochs = f"{row.epochs}/{row.target}"
        last = len(row.curve) if not row.curves else SHORT
        curve, worker = Text(sparkline(row.curve[-last:]), "cyan"), Text(printable(row.worker)[:20])
        for behaviour, points in row.curves.items():
            curve.append(f"  {behaviour} ", "bright_black").append(sparkline(points[-SHORT:]))
        table.add_row(name, epochs, clock(row.seconds), value, curve, worker)
    return _more(table, rows, most)


def _workers(rows: Sequence[HolderView], most: int) -> Table:
    table = _table("\nworkers", "process", "state", "since", "holds trials", left=("process", "state", "holds trials"))
    for row in rows[:most]:
        trials = ", ".join(map(str, row.trials[:8])) + (", ..." if len(row.trials) > 8 else "")
        state = Text(row.state, STYLES.get(row.state, "yellow"))
        table.add_row(Text(printable(row.name)[:28]), state, clock(row.seconds), trials)
    return _more(table, rows, most)


def _failures(rows: Sequence[FailureView]) -> Table:
    table = _table("\nlast failures", "at", "trial", "kind", "message", left=("kind", "message"))
    for row in rows:
        time = f"{datetime.fromtimestamp(row.time):%H:%M:%S}"
        outcome = row.outcome
        message = Text(printable(row.text), overflow="ellipsis")
        table.add_row(time, str(row.trial), Text(printable(outcome), "red"), message)
    return table
