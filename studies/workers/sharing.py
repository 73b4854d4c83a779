"""Workers that divide their time between studies.

The turn is decided from rows: each study gets a share, by weight, of the seconds that all workers train. The shares
therefore hold for any number of workers on any studies, even if some are killed.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from ...tasks.errors import DamagedState
from ...tasks.runtime import EVALUATION_ENVS
from ...tasks.runtime.guard import is_control_flow
from ...tasks.runtime.interrupts import Interrupts, StepInterrupted
from ..engine.optuna_mirror import mirror
from ..errors import BadConfig, MachineMismatch, StoreError, StoreLocked, StoreUnreachable, UnknownStudy
from ..storage.rows import Work
from ..storage.store import Store, opened
from ..study.config import weight_of
from .grace import graceful
from .supervisor import LOST, SAVED
from .worker import StopSignals, Turn, Worker, take_turns

WINDOW = 500  # shares are of the last 500 pieces of work, so a study that waited catches up only so far
LOOK_EVERY = 5.0  # seconds between searches for new and resumed studies
OVER = (Turn.COMPLETE, Turn.STOPPED)


def in_turn(history: Sequence[Work], weights: Mapping[str, float]) -> list[str]:
    """Return the studies in the order of their turns.

    Studies without work in the window come first. The others follow by time trained divided by weight, the least first,
    counted from when each of them had some work. Running work counts as at least the mean of the study's finished work.

    Args:
        history: the latest work of all workers, oldest first.
        weights: weight of each study, by name.
    """
    first: dict[str, int] = {}  # by study: index of its first piece
    for index, piece in enumerate(history):
        first.setdefault(piece.study, index)
    all_began = max((first[name] for name in weights if name in first), default=0)
    finished = [piece for piece in history if not piece.runs]

    def priority(name: str) -> tuple[bool, float, float, str]:
        usual = _mean([piece for piece in finished if piece.study == name] or finished)
        pieces = [piece for piece in history[all_began:] if piece.study == name]
        trained = sum(max(piece.seconds, usual) if piece.runs else piece.seconds for piece in pieces)
        return name in first, trained / weights[name], -weights[name], name

    return sorted(weights, key=priority)


def _mean(history: Sequence[Work]) -> float:
    return sum(piece.seconds for piece in history) / len(history) if history else 1.0


class SharingWorker:
    """Worker that trains several studies in proportion to their weights.

    Args:
        store: store with the studies.
        make: creates the worker of a study.
        studies: names of the studies; if empty, all studies of the store, including later ones.
        say: called with a study's name and the reason why this process leaves it to others.
    """

    def __init__(
        self,
        store: Store,
        make: Callable[[str], Worker],
        studies: Sequence[str] = (),
        say: Callable[[str, str], None] = lambda study, text: None,
    ):
        self.store, self.make, self.studies, self.say = store, make, studies, say
        self.workers: dict[str, Worker] = {}
        self.trained: set[str] = set()  # names of studies trained by this process
        self.left: dict[str, Exception] = {}  # by name: why this process cannot train the study
        self._over: dict[str, Turn] = {}
        self._weights: dict[str, float] = {}
        self._looked_at = -math.inf
        if twice := [name for name in studies if [*studies].count(name) > 1]:
            raise ValueError(f"a worker trains a study once, but {twice[0]!r} is named twice; leave one out")
        if not studies and not store.studies():
            raise UnknownStudy(f"a worker trains studies, but {store.url} has none yet; `rekindle create` makes one")
        for name in studies:
            try:
                self.workers[name] = self._checked(name)
            except MachineMismatch as error:
                if [name] == [*studies]:
                    raise
                self._leave(name, error)

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train until all studies are complete or stopped, or ``stop()`` is true.

        Returns:
            Whether all studies are complete.

        Raises:
            StoreError: the store failed, or the remaining trials need a decision of the user.
        """
        last = take_turns(lambda: self._turn(stop), stop)
        if last in OVER and self.left and self.studies:
            raise next(iter(self.left.values()))
        return last is Turn.COMPLETE

    @property
    def stopped(self) -> bool:
        """True if a command has stopped one of the studies."""
        return any(turn is Turn.STOPPED for turn in self._over.values())

    def _turn(self, stop: Callable[[], bool]) -> Turn:
        self._look()
        turns = [Turn.COMPLETE, *self._over.values()]
        for name in self._order():
            try:
                turn = self.workers[name].turn(stop)
            except UnknownStudy as error:
                if [name] == [*self.studies]:
                    raise
                self._forget(name, error)
                turns.append(Turn.BUSY)  # another study of its name may follow
                continue
            except (DamagedState, MachineMismatch, BadConfig) as error:
                if [name] == [*self.studies]:
                    raise
                self._leave(name, error)
                continue
            if turn is Turn.TRAINED:
                self.trained.add(name)
                return turn
            if turn in OVER:
                self._over[name] = turn
            turns.append(turn)
        return next(turn for turn in (Turn.BUSY, Turn.PAUSED, Turn.STOPPED, Turn.COMPLETE) if turn in turns)

    def _look(self) -> None:
        """Find new and resumed studies, and changed weights."""
        if time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        self._over.clear()
        configs = {study.name: study.config for study in self.store.studies()}
        self._weights = {name: weight_of(config) for name, config in configs.items()}
        for name in () if self.studies else configs:
            if name not in self.workers and name not in self.left:
                try:
                    self.workers[name] = self._checked(name)
                except (StoreUnreachable, StoreLocked):
                    raise
                except Exception as error:  # noqa: BLE001 - a machine that cannot train one study trains the others
                    self._leave(name, error)

    def _checked(self, name: str) -> Worker:
        worker = self.make(name)
        worker.runner.check()
        return worker

    def _forget(self, name: str, error: UnknownStudy) -> None:
        """Train the other studies after one was deleted.

        Without named studies, one that has its name since is found as any new one.
        """
        self.workers.pop(name)
        self._looked_at = -math.inf
        if name in self.studies:
            self.left[name] = error
        self.say(name, f"is trained no longer: {error}")

    def _leave(self, name: str, error: Exception) -> None:
        self.workers.pop(name, None)
        self.left[name] = error
        self.say(name, f"is left to others: {error}")

    def _order(self) -> list[str]:
        """Return the studies that are not over, in turn."""
        names = [name for name in self.workers if name not in self._over]
        if len(names) < 2:
            return names
        return in_turn(self.store.last_work(names, WINDOW), {name: self._weights.get(name, 1.0) for name in names})


def run_worker(
    store: Store,
    studies: Sequence[str],
    *,
    with_parent: bool,
    grace: float = 60.0,
    say: Callable[[str, str], None] = lambda study, text: None,
    **options: Any,
) -> int:
    """Run a worker process and return its exit status.

    Args:
        store: store with the studies.
        studies: names of the studies; if empty, all studies of the store.
        with_parent: whether to stop when stdin is closed.
        grace: seconds after a stop request within which the process exits.
        say: called with a study's name, or "" for all, and a line about it.
        options: options of `Worker`.
    """
    saved = True
    with StopSignals(with_parent) as signals, ExitStack() as stack:
        stop_requested = lambda: signals.received is not None or Interrupts.pending_anywhere()  # noqa: E731
        store.wait_until(stop_requested)
        stack.enter_context(graceful(store, grace, stop_requested))
        try:
            worker = sharing_worker(store, studies, say, **options)
            if worker.run(lambda: signals.received is not None) or (worker.stopped and signals.received is None):
                return 0
        except BaseException as error:
            if not is_control_flow(error) and not (isinstance(error, StoreError) and signals.received):
                raise
            signals.received = signals.received or (
                signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
            )
            saved = not isinstance(error, StepInterrupted)
    assert signals.received is not None
    say("", f"stopped by {signals.received.name}; {SAVED if saved else LOST}; any worker resumes")
    return 128 + signals.received


def sharing_worker(
    store: Store, studies: Sequence[str], say: Callable[[str, str], None], **options: Any
) -> SharingWorker:
    """Create a `SharingWorker`; `options` are those of `Worker`."""

    def make(name: str) -> Worker:
        line = lambda text: say(name, text)  # noqa: E731
        return Worker(store, name, say=line, tell=line, **options)

    return SharingWorker(store, make, studies, say)


def work(
    storage: str | Store,
    *studies: str,
    say: Callable[[str, str], None] = lambda study, text: None,
    device: str = "cpu",
    env_processes: int = 0,
    eval_envs: int = EVALUATION_ENVS,
    use_previous: bool = False,
) -> bool:
    """Train studies in this process, in proportion to their weights.

    It does the same as `rekindle worker`. Ctrl-C stops after the current step, when everything is saved; the same call
    resumes.

    Args:
        storage: a URL, or a Store.
        studies: names of the studies; if empty, all studies of the storage, including later ones.
        say: called with a study's name and a line for each result, failure and retry.
        device: see `Task`.
        env_processes: see `Task`.
        eval_envs: see `Task`.
        use_previous: whether a damaged checkpoint may be replaced by the last intact one.

    Returns:
        Whether all studies are complete; otherwise some are stopped.

    Raises:
        UnknownStudy: the storage has no such study.
        KeyboardInterrupt: Ctrl-C was pressed.
        StoreError: the store failed, or the remaining trials need a decision of the user.
    """
    if not all(isinstance(name, str) for name in studies):
        raise TypeError(f"work takes names of studies, such as work(url, 'first', 'second'), but got {studies!r}")
    options: dict[str, Any] = {"device": device, "env_processes": env_processes, "use_previous": use_previous}
    options["eval_envs"] = eval_envs
    with opened(storage) as store:
        worker = sharing_worker(store, studies, say, **options)
        complete = worker.run()
        for name in worker.trained:
            mirror(store, name, partial(say, name))
    return complete
