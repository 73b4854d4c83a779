"""Progress of a study: a live panel, or lines without a terminal."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...engine.snapshots import OPEN, Snapshot, Speed, clock
from ...engine.trial_views import RUNNING, WAITING
from ...redact import printable
from ...schedulers.seeds import seeds_of
from ...study.number_text import in_digits_alone

LINE_EVERY = 5.0  # seconds between two lines if there is no terminal
LOOKS = {
    "complete": ("●", "green"),
    "pruned": ("●", "bright_black"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "bright_black"),
    RUNNING: ("◐", "yellow"),
    WAITING: ("○", "white"),
    OPEN: ("·", "bright_black"),
}


class Progress:
    """Display of snapshots; a context manager that restores the terminal.

    Args:
        console: console on stderr, so that stdout has only results.
        name: name of the study.
        storage: URL of the storage.
    """

    def __init__(self, console: Console, name: str, storage: str):
        self.console, self.name, self.storage = console, name, storage
        self.speed = Speed()
        self.began = time.monotonic()
        self.workers = 0
        self.state = ""  # state of the study; shown if given
        self.clock = "time"  # label of the elapsed time
        self._line_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the live panel."""
        self.console.print(printable(text), highlight=False, markup=False)

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""
        self.speed.add(snapshot)
        if self._live is not None:
            self._live.update(self.panel(snapshot), refresh=True)
        elif time.monotonic() - self._line_at >= LINE_EVERY:
            self._line_at = time.monotonic()
            self.say(self.line(snapshot))

    def _rate(self, snapshot: Snapshot) -> str:
        if snapshot.config.env:
            return f"{self.speed.steps():,.0f} env steps/s"
        return f"{self.speed.epochs():.3g} epochs/s"

    def line(self, snapshot: Snapshot) -> str:
        """Return a snapshot as one line."""
        counts = ", ".join(f"{count} {state}" for state, count in snapshot.counts.items())
        best = (
            f"best {in_digits_alone(best.value)} ({best.name} at epoch {best.epochs})"
            if (best := snapshot.best)
            else "no result yet"
        )
        passed, left = clock(snapshot.when - self.began), _left(self.speed.left(snapshot))
        return (
            f"{passed}  {_counted(snapshot)}: {counts}  epochs: {snapshot.epochs}/{snapshot.epochs_total}  {best}  "
            f"{self._rate(snapshot)}{left}"
        )

    def panel(self, snapshot: Snapshot) -> RenderableType:
        """Return a snapshot as a panel."""
        config = snapshot.config
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="bright_black")
        rows.add_column()
        if self.state:
            rows.add_row("state", printable(self.state))
        dots = Text(" ").join(Text(*LOOKS[state]) for state in snapshot.last)
        counts = Text("   ").join(
            Text(f"{LOOKS[state][0]} {count} {state}", LOOKS[state][1]) for state, count in snapshot.counts.items()
        )
        rows.add_row(_counted(snapshot), dots)
        rows.add_row("", counts)
        rows.add_row("rungs", Text("  →  ").join(_rung(*rung) for rung in snapshot.rungs))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=snapshot.epochs_total, completed=snapshot.epochs, width=32),
            f"{snapshot.epochs}/{snapshot.epochs_total}",
        )
        rows.add_row("epochs", bar)
        if best := snapshot.best:
            value = (in_digits_alone(best.value), "bold green")
            rows.add_row("best", Text.assemble(value, f"  {best.name} at epoch {best.epochs}"))
        speed = f"{self._rate(snapshot)} on {self.workers} worker{'s' * (self.workers != 1)}"
        rows.add_row("speed", speed)
        rows.add_row(self.clock, f"{clock(snapshot.when - self.began)}{_left(self.speed.left(snapshot))}")
        of = escape(printable(f"{config.title}, seed {config.seed}"))
        title = f"[bold]{escape(printable(self.name))}[/]: {of}"
        return Panel(
            rows,
            title=title,
            title_align="left",
            subtitle=escape(printable(self.storage)),
            subtitle_align="right",
            width=76,
            border_style="bright_black",
            padding=(0, 2),
        )


def _counted(snapshot: Snapshot) -> str:
    """Return what is counted.

    With several seeds or environments, a trial has several trainings.
    """
    return "trainings" if seeds_of(snapshot.config) > 1 else "trials"


def _rung(epochs: int, done: int, total: int) -> Text:
    style = "green" if done >= total else "yellow" if done else "bright_black"
    return Text.assemble((f"{done}/{total}", style), (f" at {epochs}", "bright_black"))


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {clock(seconds)} left"
