"""What a running study looks like: read from its rows, shown live on a terminal, as a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .config import Config
from .objectives import measured
from .replicas import collapse, seeds_of
from .rows import Segment, Trial
from .view import View

if TYPE_CHECKING:
    from .store import Store

WINDOW = 8.0  # seconds over which speed is measured
LINE_EVERY = 5.0  # seconds between two lines where there is no terminal
LAST = 40  # trials whose states are shown one by one
WAITING, TRAINING = "waiting", "training"
LOOKS = {
    "complete": ("●", "green"),
    "pruned": ("●", "bright_black"),
    "failed": ("✗", "red"),
    TRAINING: ("◐", "yellow"),
    WAITING: ("○", "white"),
    "open": ("·", "bright_black"),
}


@dataclass
class Snapshot:
    """A study at one moment.

    Attributes:
        counts: of trials, by state; "open" ones are not suggested yet.
        last: the states of the trials with the highest numbers, in order.
        rungs: for each rung (epochs, how many trials are through, how many are to come).
        epochs, epochs_total: done, and to be done in all if no trial fails.
        env_steps: done.
        best: (value, trial, epochs), the best so far in the first objective, the return for example, or None.
    """

    config: Config
    complete: bool
    counts: dict[str, int]
    last: list[str]
    rungs: list[tuple[int, int, int]]
    epochs: int
    epochs_total: int
    env_steps: int
    best: tuple[float, int, int] | None
    when: float = field(default_factory=time.monotonic)


def look(store: Store, name: str) -> Snapshot:
    """The study at this moment."""
    return Watch(store, name).look()


class Watch:
    """Looks at a study again and again; each look costs what has changed and what is trained, not what there is."""

    def __init__(self, store: Store, name: str):
        self.store, self.view = store, View(store, name)
        self._begin()

    def _begin(self) -> None:
        """Counts everything anew."""
        self._entrants = self.view.scheduler.entrants()
        self._states: dict[int, str] = {}  # of trials, as their rows say
        self._counts: Counter[str] = Counter()  # of these
        self._epochs: dict[int, int] = {}  # that a trial was trained for
        self._through: set[tuple[int, int]] = set()  # the segments that are finished
        self._rungs = [0] * len(self.view.config.rungs)  # how many these are on each rung
        self._done, self._env_steps = 0, 0  # epochs, steps
        self._trained: set[int] = set()  # by somebody, at the last look
        self._best: Segment | None = None
        self._count(self.view.trials.values(), self.view.segments.values())

    def look(self) -> Snapshot:
        """The study at this moment."""
        config = self.view.config
        changes = self.view.refresh()
        if changes is not None and (changes.whole or self.view.config is not config):
            self._begin()
        elif changes is not None:
            self._count(changes.trials, changes.segments)
        held = self._held()
        config, complete = self.view.config, self.view.plan().complete
        trials = max(len(self.view.trials), config.trials[-1] * seeds_of(config))
        counts = self._counts.copy()
        counts += Counter({TRAINING: len(held), WAITING: counts["running"] - len(held),
                           "open": trials - len(self.view.trials)})  # fmt: skip
        del counts["running"]
        best = self._best
        return Snapshot(
            config,
            complete,
            {state: counts[state] for state in LOOKS if counts[state]},
            [self._state(number, held) for number in range(max(0, trials - LAST), trials)],
            [
                (epochs, through, max(through, total))  # asha promotes more than are expected
                for epochs, through, total in zip(config.rungs, self._rungs, self._entrants, strict=True)
            ],
            self._done,
            max(self._done, self._epochs_total()),
            self._env_steps,
            (measured(config, best), best.number, best.epochs) if best else None,
        )

    def _count(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Takes rows into account that are new or have changed."""
        changed = set()
        for trial in trials:
            if (before := self._states.get(trial.number)) is not None:
                self._counts[before] -= 1
            self._states[trial.number] = trial.state
            self._counts[trial.state] += 1
            changed.add(trial.number)
        scored = []
        for row in segments:
            key = (row.number, row.rung)
            changed.add(row.number)
            if row.state != "ready" and key not in self._through:
                self._through.add(key)
                self._rungs[row.rung] += 1
                scored.append(row)
        self._measure(changed)
        candidates = [row for row in self._configurations(scored) if row.state == "done"]
        candidates += [self._best] if self._best else []
        self._best = max(candidates, key=lambda row: (row.score, row.epochs, -row.number), default=None)

    def _configurations(self, rows: Sequence[Segment]) -> Sequence[Segment]:
        """The segments of the configurations whose replicates these rows are of."""
        seeds = seeds_of(self.view.config)
        if seeds == 1:
            return rows
        keys = {(row.number // seeds * seeds + replicate, row.rung) for row in rows for replicate in range(seeds)}
        return collapse(self.view.config, [], [self.view.segments[k] for k in keys if k in self.view.segments])[1]

    def _held(self) -> set[int]:
        """The trials that somebody trains now; reads how far they are, and how far those are that were let go since."""
        uids = self.store.held()
        running = (number for number, _ in self.view.ready if self._states[number] == "running")
        held = {number for number in running if self.view.trials[number].uid in uids}
        self._measure(held | self._trained)
        self._trained = held
        return held

    def _measure(self, numbers: Collection[int]) -> None:
        """Reads how far trials are trained."""
        trials = [self.view.trials[number] for number in numbers]
        reached = self.store.reached([trial.uid for trial in trials])
        for trial in trials:
            target = max((row.epochs for row in self._segments_of(trial.number)), default=0)
            done = max(0, min(reached.get(trial.uid, 0), target) - _start(trial))
            more = done - self._epochs.get(trial.number, 0)
            self._epochs[trial.number] = done
            self._done += more
            self._env_steps += more * int(trial.params.get("epoch_steps", 0))

    def _segments_of(self, number: int) -> Iterator[Segment]:
        rungs = range(len(self.view.config.rungs))
        return (self.view.segments[number, rung] for rung in rungs if (number, rung) in self.view.segments)

    def _state(self, number: int, held: Collection[int]) -> str:
        state = self._states.get(number, "open")
        return (TRAINING if number in held else WAITING) if state == "running" else state

    def _epochs_total(self) -> int:
        rungs = self.view.config.rungs
        added = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
        return sum(n * more for n, more in zip(self._entrants, added, strict=True))


def _start(trial: Trial) -> int:
    """How many epochs a branch did not have to train."""
    return int(trial.attrs["start"]["epochs"]) if "start" in trial.attrs else 0


class Speed:
    """Env steps and epochs per second over the last seconds."""

    def __init__(self) -> None:
        self.points: deque[tuple[float, int, int]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Takes a moment into account."""
        self.points.append((snapshot.when, snapshot.env_steps, snapshot.epochs))
        while len(self.points) > 2 and snapshot.when - self.points[1][0] > WINDOW:
            self.points.popleft()

    def steps(self) -> float:
        """Env steps per second."""
        return self._rate(1)

    def left(self, snapshot: Snapshot) -> float | None:
        """Seconds until all epochs are done, or None while that cannot be known."""
        rate = self._rate(2)
        return (snapshot.epochs_total - snapshot.epochs) / rate if rate else None

    def _rate(self, column: int) -> float:
        if len(self.points) < 2:
            return 0.0
        first, last = self.points[0], self.points[-1]
        return (last[column] - first[column]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


class Progress:
    """Shows snapshots as they come; a context manager that keeps the terminal in order.

    Args:
        console: of stderr, so that stdout holds results only.
        name, where: of the study and its storage.
    """

    def __init__(self, console: Console, name: str, where: str):
        self.console, self.name, self.where = console, name, where
        self.speed = Speed()
        self.began = time.monotonic()
        self.workers = 0
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
        """A line that stays, above what is live."""
        self.console.print(text, highlight=False, markup=False)

    def show(self, snapshot: Snapshot) -> None:
        """The newest snapshot."""
        self.speed.add(snapshot)
        if self._live is not None:
            self._live.update(self.panel(snapshot), refresh=True)
        elif time.monotonic() - self._line_at >= LINE_EVERY:
            self._line_at = time.monotonic()
            self.say(self.line(snapshot))

    def line(self, snapshot: Snapshot) -> str:
        """A snapshot as one line."""
        counts = ", ".join(f"{count} {state}" for state, count in snapshot.counts.items())
        best = f"best {snapshot.best[0]:.1f} (trial {snapshot.best[1]})" if snapshot.best else "no result yet"
        clock, left = _clock(snapshot.when - self.began), _left(self.speed.left(snapshot))
        return (
            f"{clock}  trials: {counts}  epochs: {snapshot.epochs}/{snapshot.epochs_total}  {best}  "
            f"{self.speed.steps():,.0f} env steps/s{left}"
        )

    def panel(self, snapshot: Snapshot) -> RenderableType:
        """A snapshot as a box of a few lines."""
        config = snapshot.config
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="bright_black")
        rows.add_column()
        dots = Text(" ").join(Text(*LOOKS[state]) for state in snapshot.last)
        counts = Text("   ").join(
            Text(f"{LOOKS[state][0]} {count} {state}", LOOKS[state][1]) for state, count in snapshot.counts.items()
        )
        rows.add_row("trials", dots)
        rows.add_row("", counts)
        rows.add_row("rungs", Text("  →  ").join(_rung(*rung) for rung in snapshot.rungs))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=snapshot.epochs_total, completed=snapshot.epochs, width=32),
            f"{snapshot.epochs}/{snapshot.epochs_total}",
        )
        rows.add_row("epochs", bar)
        if snapshot.best:
            value, trial, epochs = snapshot.best
            rows.add_row("best", Text.assemble((f"{value:.1f}", "bold green"), f"  trial {trial} at epoch {epochs}"))
        speed = f"{self.speed.steps():,.0f} env steps/s on {self.workers} worker{'s' * (self.workers != 1)}"
        rows.add_row("speed", speed)
        rows.add_row("time", f"{_clock(snapshot.when - self.began)}{_left(self.speed.left(snapshot))}")
        title = f"[bold]{self.name}[/]: {config.task} on {config.env['id']}, seed {config.seed}"
        return Panel(
            rows,
            title=title,
            title_align="left",
            subtitle=self.where,
            subtitle_align="right",
            width=76,
            border_style="bright_black",
            padding=(0, 2),
        )


def _rung(epochs: int, through: int, total: int) -> Text:
    style = "green" if through >= total else "yellow" if through else "bright_black"
    return Text.assemble((f"{through}/{total}", style), (f" at {epochs}", "bright_black"))


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {_clock(seconds)} left"
