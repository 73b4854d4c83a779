"""Workers that share their time between studies.

Whose turn it is follows from rows: each study has its share of the seconds in which all workers trained, by weight. So
shares are kept by any number of workers, of whatever studies, and whoever is killed.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from ...tasks.errors import DamagedState
from ...tasks.runtime.guard import is_control_flow
from ...tasks.runtime.interrupts import Interrupts
from ..engine.optuna_mirror import mirror
from ..errors import StoreError, StoreLocked, StoreUnreachable, UnknownStudy
from ..storage.rows import Work
from ..storage.store import Store
from ..study.config import weight_of
from .grace import graceful
from .worker import StopSignals, Turn, Worker, take_turns

WINDOW = 500  # pieces of work that shares are counted over: a study that waited does not catch up for ever
LOOK_EVERY = 5.0  # seconds between two looks at what is over, and for new studies
OVER = (Turn.COMPLETE, Turn.STOPPED)


def in_turn(work: Sequence[Work], weights: Mapping[str, float]) -> list[str]:
    """Return the studies by whose turn it is.

    Those come first that have no work in it, then those that had least of it for their weight, since all of them had
    some. Running work counts at least what that of its study took in the mean.

    Args:
        work: the last of all workers, the oldest first.
        weights: of the studies, by name.
    """
    begun = {name: next((n for n, each in enumerate(work) if each.study == name), None) for name in weights}
    since = max((first for first in begun.values() if first is not None), default=0)
    ended = [each for each in work if not each.runs]
    usual = {name: _mean([each for each in ended if each.study == name] or ended) for name in weights}
    had = dict.fromkeys(weights, 0.0)
    for each in work[since:]:
        if each.study in had:
            had[each.study] += max(each.seconds, usual[each.study]) if each.runs else each.seconds
    return sorted(weights, key=lambda name: (begun[name] is not None, had[name] / weights[name], -weights[name], name))


def _mean(work: Sequence[Work]) -> float:
    return sum(each.seconds for each in work) / len(work) if work else 1.0


class SharingWorker:
    """Worker that trains several studies by their weights.

    Args:
        store: holds them.
        make: returns the worker of a study.
        studies: their names; of none, all of the store, also those that are made meanwhile.
        say: is called with a study's name and why this process leaves it to others.
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
        self.trained: set[str] = set()  # names of the studies that this process trained
        self.left: dict[str, Exception] = {}  # by name: what only the user, or another machine, can do
        self._over: dict[str, Turn] = {}
        self._weights: dict[str, float] = {}
        self._looked_at = -math.inf
        if twice := [name for name in studies if [*studies].count(name) > 1]:
            raise ValueError(f"a worker trains a study once, but {twice[0]!r} is named twice; leave one out")
        if not studies and not store.studies():
            raise UnknownStudy(f"a worker trains studies, but {store.url} has none yet; `rekindle create` makes one")
        for name in studies:
            self.workers[name] = self._checked(name)

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train until all studies are complete or stopped, or ``stop()`` holds.

        Return whether all are complete.

        Raises:
            StoreError: the store failed, or only trials are left that need a decision of the user.
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
            except DamagedState as error:
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
        return next(each for each in (Turn.BUSY, Turn.PAUSED, Turn.STOPPED, Turn.COMPLETE) if each in turns)

    def _look(self) -> None:
        """Find new studies and weights, and studies that were resumed."""
        if time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        self._over.clear()
        found = {study.name: study.config for study in self.store.studies()}
        self._weights = {name: weight_of(config) for name, config in found.items()}
        for name in () if self.studies else found:
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

    def _leave(self, name: str, error: Exception) -> None:
        self.workers.pop(name, None)
        self.left[name] = error
        self.say(name, f"is left to others: {error}")

    def _order(self) -> list[str]:
        """Return the studies that are not over, by whose turn it is."""
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
    """Run a worker process, and return its exit status.

    Args:
        store: holds the studies.
        studies: their names; of none, all of the store.
        with_parent: whether to stop when stdin ends.
        grace: seconds after a request to stop within which it exits.
        say: is called with a study's name and a line about it.
        options: those of `Worker`.
    """
    with StopSignals(with_parent) as signals, ExitStack() as stack:
        asked = lambda: signals.asked is not None or Interrupts.asked()  # noqa: E731
        store.wait_until(asked)
        stack.enter_context(graceful(store, grace, asked))
        try:
            worker = sharing_worker(store, studies, say, **options)
            if worker.run(lambda: signals.asked is not None) or (worker.stopped and signals.asked is None):
                return 0
        except BaseException as error:
            if not is_control_flow(error) and not (isinstance(error, StoreError) and signals.asked):
                raise
            signals.asked = signals.asked or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    assert signals.asked is not None
    return 128 + signals.asked


def sharing_worker(
    store: Store, studies: Sequence[str], say: Callable[[str, str], None], **options: Any
) -> SharingWorker:
    """Return the worker of studies, with options of `Worker`."""

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
    use_previous: bool = False,
) -> bool:
    """Train studies in this process, each by its weight.

    `rekindle worker` does the same.

    Ctrl-C stops after the step that is being computed. Everything is saved then, and the same call resumes.

    Args:
        storage: a URL, or a Store.
        studies: their names; of none, all of the storage, also those that are made meanwhile.
        say: is called with a study's name and a line for each result, failure and retry.
        device: see `Task`.
        env_processes: see `Task`.
        use_previous: whether a damaged checkpoint may be replaced by the last sound one.

    Returns:
        Whether all are complete; others are stopped.

    Raises:
        UnknownStudy: the storage has no such study.
        KeyboardInterrupt: after Ctrl-C.
        StoreError: the store failed, or only trials are left that need a decision of the user.
    """
    store = storage if isinstance(storage, Store) else Store(storage)
    options = {"device": device, "env_processes": env_processes, "use_previous": use_previous}
    worker = sharing_worker(store, studies, say, **options)
    complete = worker.run()
    for name in worker.trained:
        with suppress(StoreError, SQLAlchemyError, RuntimeError):  # Optuna's tables are a copy for its dashboard
            mirror(store, store.database.url.render_as_string(hide_password=False), name)
    return complete
