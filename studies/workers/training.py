"""The training of one cohort of segments, and the store as its tasks see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from ...tasks.checkpoint.storage import Saved, Write
from ...tasks.cohort import Cohort, EpochEvent, one_thread
from ...tasks.errors import Diverged
from ...tasks.evaluation import evaluate
from ...tasks.learner import Learner
from ...tasks.task import Task
from ..engine.engine import Engine, Ready
from ..engine.lineage import bring_start, lineage, retrain
from ..errors import DamagedCheckpoint, LeaseLost, TaskBusy
from ..storage.locks.leases import StoreLease
from ..storage.rows import Result
from ..storage.store import Store
from ..study.objectives import DEFAULT, RETURN, measure, objectives_of, point


class Training:
    """One cohort's way to the end of its segments.

    Args:
        engine, items: the study, and what is to be trained of it.
        claimed: the leases of the items' tasks, by uid.
        use_previous: whether a damaged checkpoint may be replaced by the sound one before it.
        env_processes: how many processes step the environments, 0 for this one alone.

    Attributes:
        failed: what went wrong with a member while the others went on, by uid.
        late: of the members that another process took over before this one could write what it had.
    """

    def __init__(
        self,
        engine: Engine,
        items: Sequence[Ready],
        claimed: Mapping[str, StoreLease],
        use_previous: bool = False,
        env_processes: int = 0,
    ):
        self.engine, self.store, self.items, self.env_processes = engine, engine.store, items, env_processes
        self.storage = TaskStorage(self.store, use_previous, self._drop, claimed)
        self.epochs = items[0].segment.epochs
        self.tasks: dict[str, Task] = {}
        self.failed: dict[str, BaseException] = {}
        self.late: list[str] = []
        self.returns: dict[tuple[Learner, int], list[float]] = {}  # at an epoch, of all members

    def run(self) -> None:
        """Trains all, and writes down what they came to; lets go of all leases, whatever happens."""
        try:
            for item in self.items:
                self._open(item)
            ahead = {uid for uid, task in self.tasks.items() if task.epochs > self.epochs}
            if behind := [task for uid, task in self.tasks.items() if uid not in ahead]:
                with suppress(Diverged, LeaseLost):
                    Cohort(behind).fit(self.epochs, self._evaluate)
            results = []
            for item in self.items:
                if (task := self.tasks.get(item.trial.uid)) is not None and task.bad is None:
                    results += self._result(item, self._again(item) if item.trial.uid in ahead else task)
            self._finish(results)
            self.failed = {
                uid: task.bad
                for uid, task in self.tasks.items()
                if task.bad is not None and not isinstance(task.bad, LeaseLost)
            }
        finally:
            self.store.release(self.storage.leases.values())
            for task in self.tasks.values():
                task.release()

    def _open(self, item: Ready) -> None:
        try:
            task = self.tasks[item.trial.uid] = self.engine.task(item.trial, self.storage)
        except (LeaseLost, TaskBusy):
            self.late.append(item.trial.uid)
            self.storage.busy = False
        else:
            task.env_processes = self.env_processes

    def _drop(self, lost: LeaseLost) -> None:
        """Leaves members to the processes that took them over; the others go on."""
        for uid in lost.uids:
            self.late.append(uid)
            self.tasks[uid].fail(lost)

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
                measured = self.returns[learner, learner.epochs] = evaluate(learner).tolist()
        return measured[member]

    def _result(self, item: Ready, task: Task) -> list[Result]:
        """What the task came to; nothing, if that is no number."""
        score = task.metrics.get(RETURN)
        if score is None:  # trained to this very epoch by someone who did not measure
            score = self._return(task)
        segment, held = item.segment, self.tasks[task.uid]
        if not math.isfinite(score):
            held.fail(Diverged(f"{task}: the evaluation return became {score}; try a lower learning rate"))
            return []
        objectives = objectives_of(self.engine.config)
        measured = None
        if objectives != DEFAULT:
            measured = measure(objectives, task, score, lambda: self.engine.task(item.trial, None))
            score = point(objectives, measured)[0]
        metrics = [(segment.epochs, measured or {RETURN: score})]
        lease = self.storage.leases[task.uid]
        return [Result(lease, segment.number, segment.rung, score, task.digest, metrics, measured)]

    def _finish(self, results: Sequence[Result]) -> None:
        """Writes down what all came to, but for those that another process took over."""
        while results:
            try:
                self.store.finish_segments(self.engine.name, results)
                return
            except LeaseLost as lost:
                self._drop(lost)
                results = [each for each in results if each.lease.uid not in lost.uids]

    def _again(self, item: Ready) -> Task:
        """The task at the end of this segment, when the stored one is further already.

        Another trial or another study has trained the same hyperparameters for longer. To be the same bits whatever was
        there before, it is trained once more, without the storage.
        """
        return retrain(lineage(self.store, item.trial.uid), self.epochs, self._evaluate)


class TaskStorage:
    """The store as tasks use it.

    Args:
        drop: is told of tasks whose leases are lost, so that the others can be saved; without it LeaseLost is raised.
        claimed: leases that were taken before the tasks were made, by uid.

    Attributes:
        leases: of the tasks, by uid; results are written under them.
        busy: true after an error that came out of the store; that is no fault of a trial's.
    """

    def __init__(
        self,
        store: Store,
        use_previous: bool,
        drop: Callable[[LeaseLost], None] | None = None,
        claimed: Mapping[str, StoreLease] = MappingProxyType({}),
    ):
        self.store, self.use_previous, self.drop, self.claimed = store, use_previous, drop, claimed
        self.leases: dict[str, StoreLease] = {}
        self.busy = False

    def open(self, uid: str, identity: Mapping[str, Any]) -> StoreLease:
        """Takes a task's lease, and sees to it that what it starts from is there."""
        self.busy = True
        lease = self.leases[uid] = self.store.open(uid, identity, self.claimed.get(uid))
        if self.use_previous:
            try:  # drops what is damaged, so that the task finds the sound one before it
                lease.load(allow_previous=True)
            except DamagedCheckpoint:  # there is none; it starts anew, and ends the same
                lease.discard()
        if "start" in identity:
            bring_start(self.store, lease)
        self.busy = False
        return lease

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        """The last checkpoint, or that of `epochs`."""
        return self.store.load(uid, epochs)

    def save(self, writes: Sequence[Write]) -> None:
        """Makes all writes visible together, but for those of tasks that another process took over."""
        self.busy = True
        while writes:
            try:
                self.store.save(writes)
            except LeaseLost as lost:
                if self.drop is None:
                    raise
                self.drop(lost)
                writes = [write for write in writes if write.lease.uid not in lost.uids]
            else:
                break
        self.busy = False
