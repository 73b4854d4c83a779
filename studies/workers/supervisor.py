"""Supervisor of a study's workers: starts and replaces them, and shows progress."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from ...tasks.runtime.interrupts import in_this_process
from ..engine.snapshots import Snapshot, StudyProgress
from ..errors import StoreError
from ..options.study_options import BOUNDS
from ..options.worker_options import WORKER
from ..storage.commands import STOP, Command
from ..storage.sql.retry import SAY_EVERY, WAITING
from ..storage.store import Store
from .forked import CommandProcess, Crew
from .grace import LEFT

GIVE_UP = 6  # deaths in a row per worker, without a new epoch or a failed trial in between
POLL = 0.25  # seconds between snapshots, unless a worker ends
AT_ONCE = 5.0  # seconds that a worker has to exit without saving, when it is asked twice
ERROR = "rekindle: error: "  # before an error that a worker has explained
LOOK = 0.02  # seconds between checks whether a worker has ended
SAME_REQUEST = 0.5  # seconds in which a signal that ended a worker reaches this process, too, if it is for both


SAVED = "everything is saved"
LOST = "a step was cut off, and what was trained since the last save is trained again"


class WorkersFailed(StoreError):
    """The workers of a study die repeatedly without progress."""


class WorkerHandle(Protocol):
    """A worker process, here or on another machine."""

    @property
    def name(self) -> str:
        """Name shown to the user."""

    @property
    def pid(self) -> int | None:
        """Its process, if that is on this machine and `kill` kills it."""

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs.

        0: the study is complete or stopped; 128 + n: stopped by signal n; -n: killed by signal n.
        """

    @property
    def last_words(self) -> Sequence[str]:
        """Last lines on its stderr."""

    def stop(self, hurried: bool = False) -> None:
        """Ask the worker to save and stop, or to end its step."""

    def kill(self) -> None:
        """Kill the worker."""

    def wait(self, seconds: float) -> object:
        """Wait until the worker ends; kill it after `seconds`."""


class Display(Protocol):
    """Display of a study's progress, such as a terminal.

    Attributes:
        workers: number of running worker processes.
    """

    workers: int

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""

    def say(self, text: str) -> None:
        """Print a line that stays."""


class WorkerProcess(CommandProcess):
    """A process that runs ``rekindle worker`` and ends with its parent."""

    def __init__(self, url: str, study: str, workers: int, extra: Sequence[str] = (), crew: Crew | None = None):
        words = ["worker", "--quiet", "--with-parent", f"--study={study}", "--workers", str(workers), *extra]
        super().__init__(words, url, crew)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM asked to stop.

    Attributes:
        signal: the signal received.
        saved: whether all training is saved; otherwise what came after the last save is trained again.
    """

    def __init__(self, number: signal.Signals, saved: bool = True):
        self.signal, self.saved = number, saved
        super().__init__(f"stopped by {number.name}; {SAVED if saved else LOST}; run the same command to resume")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs to raise this error, too."""
        return type(self), (self.signal, self.saved)


def raise_interrupted(number: int, frame: object) -> None:
    """Raise Interrupted, as a signal's handler."""
    raise Interrupted(signal.Signals(number))


@contextmanager
def stoppable(stop: Callable[[int, object], None] = raise_interrupted) -> Iterator[None]:
    """Call a function at SIGINT and SIGTERM."""
    handler = in_this_process(stop)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Supervisor:
    """Runs a study with worker processes until it is complete.

    Args:
        store: store with the study.
        study: name of the study.
        count: number of workers.
        start_worker: starts a worker.
        display: shows progress.
        grace: seconds that a worker has to save and stop before it is killed.
    """

    def __init__(
        self,
        store: Store,
        study: str,
        count: int,
        start_worker: Callable[[], WorkerHandle],
        display: Display,
        grace: float = WORKER["grace"].default,
    ):
        self.store, self.study, self.count, self.start_worker, self.display = store, study, count, start_worker, display
        self.grace = grace
        self.workers: list[WorkerHandle] = []
        self.deaths = 0  # in a row
        self.steps = -1  # epochs and failed trials so far
        self.received: signal.Signals | None = None
        self.requests = 0  # to stop, by the user; at the second no worker waits for its step to end
        self._waiting = False  # whether the user was told that a worker waits for the database
        self._tell_at = 0.0  # time from which a further wait is told

    def run(self) -> None:
        """Return when the study is complete, or stopped by a command.

        Raises:
            Interrupted: SIGINT or SIGTERM asked to stop.
            WorkersFailed: workers die without progress.
        """
        with stoppable(self._ask):
            self.store.wait_until(lambda: self.received is not None)
            is_reachable = True
            try:
                self._watch()
            except StoreError:
                if self.received is None:  # else the wait for the database was interrupted
                    raise
                is_reachable = False
            finally:
                saved = self._end_workers()
        if self.received is not None:
            raise Interrupted(self.received, saved and is_reachable)

    def _ask(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        self.requests += 1

    def _end_workers(self) -> bool:
        """Stop all workers, and return whether they have saved everything.

        At a second request they exit in the middle of a step, at a third they are killed. No trial is blamed for that.
        """
        running = [worker for worker in self.workers if worker.status is None]
        for worker in running:
            worker.stop()
        deadline, hurried = time.monotonic() + self.grace, False
        while any(worker.status is None for worker in running) and time.monotonic() < deadline:
            if self.requests > 1 and not hurried:
                deadline, hurried = min(deadline, time.monotonic() + AT_ONCE), True
                for worker in running:
                    worker.stop(hurried=True)
            if self.requests > 2:
                break
            time.sleep(LOOK)
        killed = [worker for worker in running if worker.status is None]
        for worker in killed:
            worker.kill()
        for worker in self.workers:
            worker.wait(1.0)
        if pids := [worker.pid for worker in killed if worker.pid is not None]:
            with suppress(StoreError):  # then the leases end by themselves
                self.store.excuse(pids)
        lines = [line for worker in self.workers for line in worker.last_words]
        return not (hurried or killed or any(LEFT in line or LOST in line for line in lines))

    def _watch(self) -> None:
        self.workers = [self.start_worker() for _ in range(self.count)]
        progress = StudyProgress(self.store, self.study)
        while self.received is None:
            ended = [index for index, worker in enumerate(self.workers) if worker.status == 0]
            snapshot = progress.look()
            steps = snapshot.epochs + snapshot.counts.get("failed", 0)
            if steps > self.steps:
                self.deaths, self.steps = 0, steps
            self.display.workers = self._running()
            self.display.show(snapshot)
            if snapshot.complete or self._is_over(snapshot.hold):
                return
            self._tell_waits()
            self._replace_killed()
            if snapshot.hold is None or snapshot.hold.kind != STOP:
                self._replace_ended(ended)
            self._rest(self._running())

    def _is_over(self, command: Command | None) -> bool:
        """Return whether a stopped study needs its workers no longer.

        Where it has reached a bound, they end by themselves, when all that is trained has results. A signal would
        interrupt its evaluation.
        """
        if command is None or command.kind != STOP:
            return False
        return command.who not in BOUNDS or all(worker.status == 0 for worker in self.workers)

    def _running(self) -> int:
        return sum(worker.status is None for worker in self.workers)

    def _tell_waits(self) -> None:
        """Say that workers wait for the database, once for all of them."""
        lines = [worker.last_words[-1] for worker in self.workers if worker.status is None and worker.last_words]
        waits = [line for line in lines if line.startswith(WAITING)]
        if waits and not self._waiting and time.monotonic() >= self._tell_at:
            self.display.say(f"{len(waits)} of {len(self.workers)} workers: {waits[0]}")
            self._tell_at = time.monotonic() + SAY_EVERY  # connections that come and go tell nothing new
        self._waiting = bool(waits)

    def _rest(self, running: int) -> None:
        """Wait until the next snapshot is due or a worker ends."""
        end = time.monotonic() + POLL
        while time.monotonic() < end and self.received is None and self._running() == running:
            time.sleep(LOOK)

    def _replace_killed(self) -> None:
        for index, worker in enumerate(self.workers):
            if not worker.status:  # still running, or it saw that the study is complete or stopped
                continue
            worker.wait(1.0)
            lines = list(worker.last_words)
            last = lines[-1] if lines else "nothing"
            number = -worker.status if worker.status < 0 else worker.status - 128
            if self._stops_with(number):
                return
            if not 0 < number < signal.NSIG:  # not killed: it reported an error that another worker would hit as well
                if last.startswith(ERROR):
                    raise WorkersFailed(last.removeprefix(ERROR))
                raise WorkersFailed(f"a worker must run until the study is complete, but one ended with: {last}")
            self.deaths += 1
            if self.deaths >= GIVE_UP * self.count:
                raise WorkersFailed(
                    f"{self.deaths} workers in a row were killed before they finished an epoch, the last one by "
                    f"{_named(number)}; is there enough memory? Its last line: {last}"
                )
            self.display.say(f"worker {worker.name} was killed by {_named(number)}; another one replaces it")
            self.workers[index] = self.start_worker()

    def _stops_with(self, number: int) -> bool:
        """Return whether a signal that ended a worker stops this process.

        A scheduler signals all processes of a job one after the other.
        """
        end = time.monotonic() + (SAME_REQUEST if number in (signal.SIGINT, signal.SIGTERM) else 0.0)
        while self.received is None and time.monotonic() < end:
            time.sleep(LOOK)
        return self.received is not None

    def _replace_ended(self, ended: Sequence[int]) -> None:
        """Replace workers that had ended, though the study now has work.

        It was stopped, or complete, and somebody has resumed or extended it since.
        """
        for index in ended:
            self.workers[index].wait(1.0)
            self.workers[index] = self.start_worker()


def _named(number: int) -> str:
    """Return the name of a signal; those for real-time use have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
