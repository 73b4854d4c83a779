"""A worker: claims segments of a study that can train together, trains them as a cohort, writes down what came of it.

Workers know nothing of each other. They come and go, are killed and paused; the leases of the store see to it that each
trial is trained by one of them at a time, and carried on by another one from its last checkpoint.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ..tasks.cohort import Cohort, EpochEvent, one_thread
from ..tasks.errors import BadResume, DamagedState, Diverged, Stopped
from ..tasks.guard import is_control_flow
from ..tasks.learner import Learner
from ..tasks.storage import Saved, Write
from ..tasks.task import Task
from .engine import Engine, Ready
from .errors import DamagedCheckpoint, LeaseLost, StoreError, TaskBusy
from .leases import StoreLease
from .lineage import bring_start, lineage, retrain
from .report import RETURN
from .store import Store

LARGEST_COHORT = 32
POLL = (0.05, 0.5)  # seconds between two looks for work: at first, and at most


class Worker:
    """Trains a study until it is complete, or until it is asked to stop.

    Args:
        store, study: where, and which.
        workers: how many workers share the study, as far as is known; cohorts are made small enough for all of them.
        use_previous: whether a damaged checkpoint may be replaced by the sound one before it.
    """

    def __init__(self, store: Store, study: str, *, workers: int = 1, use_previous: bool = False):
        self.store, self.study, self.workers = store, study, workers
        self.engine = Engine(store, study)
        self.use_previous = use_previous
        self.blocked: dict[str, StoreError] = {}  # by uid: what nobody but the user can decide

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Works until the study is complete, and says whether it is; raises the StoreError that leaves no way on."""
        pause = POLL[0]
        while not stop():
            ready = [item for item in self.engine.advance() if item.trial.uid not in self.blocked]
            if self.engine.complete:
                return True
            if not ready and self.blocked:
                raise next(iter(self.blocked.values()))
            if self._work(ready):
                pause = POLL[0]
                continue
            time.sleep(pause)  # others train what there is, and the schedule waits for them
            pause = min(2 * pause, POLL[1])
        return False

    def _work(self, ready: Sequence[Ready]) -> bool:
        """Trains one cohort of what is ready; False if nothing was to be had."""
        with self._claim(ready) as claimed:
            if claimed:
                self._train(claimed)
            return bool(claimed)

    @contextmanager
    def _claim(self, ready: Sequence[Ready]) -> Iterator[list[Ready]]:
        """This worker's share of the most urgent segments that can train together and that nobody else trains."""
        workers = max(self.workers, len(self.store.workers()) + 1)  # this one holds nothing at the moment
        share = min(LARGEST_COHORT, max(1, -(-len(ready) // workers)))
        groups: dict[tuple[str, int, int], dict[str, Ready]] = {}
        for item in ready:  # trials with the same hyperparameters are one task: the second waits for the first
            groups.setdefault(self.engine.structure(item), {}).setdefault(item.trial.uid, item)
        leases: list[StoreLease] = []
        try:
            for group in groups.values():
                leases = self.store.claim(self.study, group, limit=share)
                open_still = self.engine.ready() if leases else set()
                mine = [group[lease.uid] for lease in leases]
                for lease, item in zip(leases, mine, strict=True):
                    if (item.segment.number, item.segment.rung) not in open_still:
                        lease.release()
                mine = [item for item in mine if (item.segment.number, item.segment.rung) in open_still]
                if mine:
                    yield mine
                    return
            yield []
        finally:
            for lease in leases:
                lease.release()

    def _train(self, items: Sequence[Ready]) -> None:
        training = _Training(self, items)
        try:
            training.run()
        except (LeaseLost, TaskBusy):
            return  # another worker has what we had; whatever we did was not written
        except StoreError as error:
            if not isinstance(error, DamagedState):
                raise
            if len(items) == 1:
                self.blocked[items[0].trial.uid] = error
            else:
                self._train_alone(items)
        except (Stopped, MemoryError):
            raise
        except Exception as error:  # an environment may raise anything; it belongs to the trial
            if training.storage.busy:
                raise
            if len(items) == 1:
                self._fail(items[0], _report(error))
            else:
                self._train_alone(items)

    def _train_alone(self, items: Sequence[Ready]) -> None:
        """Trains the segments one by one, to find out whose error it was; results do not depend on the company."""
        for item in items:
            self._train([item])

    def _fail(self, item: Ready, report: str) -> None:
        with suppress(LeaseLost, TaskBusy), self.store.open(item.trial.uid, self._identity(item)) as lease:
            self.store.fail_trial(lease, self.study, item.segment.number, item.segment.rung, report)

    def _identity(self, item: Ready) -> dict[str, Any]:
        return self.engine.task(item.trial, None).identity


class _Training:
    """One cohort's way to the end of its segments."""

    def __init__(self, worker: Worker, items: Sequence[Ready]):
        self.worker, self.items = worker, items
        self.store, self.engine = worker.store, worker.engine
        self.storage = TaskStorage(worker.store, worker.use_previous)
        self.epochs = items[0].segment.epochs
        self.returns: dict[tuple[Learner, int], list[float]] = {}  # at an epoch, of all members

    def run(self) -> None:
        tasks: dict[str, Task] = {}
        try:
            for item in self.items:
                tasks[item.trial.uid] = self.engine.task(item.trial, self.storage)
            ahead = {uid for uid, task in tasks.items() if task.epochs > self.epochs}
            if behind := [task for uid, task in tasks.items() if uid not in ahead]:
                with suppress(Diverged):
                    Cohort(behind).fit(self.epochs, self._evaluate)
            for item in self.items:
                task = tasks[item.trial.uid]
                if item.trial.uid in ahead:
                    self._finish(item, self._again(item))
                elif task.bad is None:
                    self._finish(item, task)
            for item in self.items:  # last: it lets go of the lease
                if (cause := tasks[item.trial.uid].bad) is not None:
                    self.worker._fail(item, _report(cause))
        finally:
            for task in tasks.values():
                task.release()

    def _evaluate(self, event: EpochEvent) -> None:
        """Stores the return with the metrics of the last epoch of a rung, all members' measured at once."""
        if event.epoch in self.engine.config.rungs and RETURN not in event.metrics:
            event.metrics[RETURN] = self._return(event.task)

    def _return(self, task: Task) -> float:
        if task.seat is None:
            return task.evaluate()
        learner, member = task.seat
        measured = self.returns.get((learner, learner.epochs))
        if measured is None:
            with one_thread():
                measured = self.returns[learner, learner.epochs] = learner.evaluate().tolist()
        return measured[member]

    def _finish(self, item: Ready, task: Task) -> None:
        """Writes down what the task came to."""
        score = task.metrics.get(RETURN)
        if score is None:  # trained to this very epoch by someone who did not measure
            score = self._return(task)
        segment = item.segment
        if not math.isfinite(score):
            self.worker._fail(item, f"the evaluation return became {score}")
            return
        self.store.finish_segment(
            self.storage.leases[task.uid],
            self.worker.study,
            segment.number,
            segment.rung,
            score=score,
            digest=task.digest,
            metrics=[(segment.epochs, {RETURN: score})],
        )

    def _again(self, item: Ready) -> Task:
        """The task at the end of this segment, when the stored one is further already.

        Another trial or another study has trained the same hyperparameters for longer. To be the same bits whatever was
        there before, it is trained once more, without the storage.
        """
        return retrain(lineage(self.store, item.trial.uid), self.epochs, self._evaluate)


class TaskStorage:
    """The store as tasks use it.

    Attributes:
        leases: of the tasks, by uid; results are written under them.
        busy: true after an error that came out of the store; that is no fault of a trial's.
    """

    def __init__(self, store: Store, use_previous: bool):
        self.store, self.use_previous = store, use_previous
        self.leases: dict[str, StoreLease] = {}
        self.busy = False

    def open(self, uid: str, identity: Mapping[str, Any]) -> StoreLease:
        self.busy = True
        lease = self.leases[uid] = self.store.open(uid, identity)
        if self.use_previous:
            try:  # drops what is damaged, so that the task finds the sound one before it
                lease.load(allow_previous=True)
            except DamagedCheckpoint:  # there is none; it starts anew, and ends the same
                lease.discard()
        if "start" in identity:
            bring_start(self.store, lease)
        self.busy = False
        return lease

    def save(self, writes: Sequence[Write]) -> None:
        self.busy = True
        self.store.save(writes)
        self.busy = False

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        return self.store.load(uid, epochs)


def _report(error: BaseException) -> str:
    """What is kept with a failed trial: the trace; of Diverged the message, as its trace depends on the company."""
    if isinstance(error, BadResume) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, Diverged):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error))


class StopSignals:
    """While entered, SIGTERM and SIGINT ask the worker to stop; so does the end of stdin, a parent's pipe, if asked."""

    def __init__(self, until_stdin_ends: bool = False):
        self.asked: signal.Signals | None = None
        if until_stdin_ends:
            threading.Thread(target=self._wait_for_parent, daemon=True).start()

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)

    def _wait_for_parent(self) -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)


def run_worker(store: Store, study: str, *, workers: int, use_previous: bool, with_parent: bool) -> int:
    """The exit status of a worker process: 0 when the study is complete, 128 + the signal when it was asked to stop."""
    with StopSignals(with_parent) as signals:
        try:
            worker = Worker(store, study, workers=workers, use_previous=use_previous)
            if worker.run(lambda: signals.asked is not None):
                return 0
        except BaseException as error:
            if not is_control_flow(error):
                raise
            signals.asked = signals.asked or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    assert signals.asked is not None
    return 128 + signals.asked
