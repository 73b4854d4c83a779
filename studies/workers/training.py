"""Training of a cohort of segments, and the storage of its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

from ...tasks.base_learner import BaseLearner
from ...tasks.checkpoint.storage import Metrics, Saved, Write
from ...tasks.cohort import Cohort
from ...tasks.errors import Diverged, Stopped
from ...tasks.evaluation.objective import Evaluated, evaluate_within
from ...tasks.evaluation.players import plays_episodes
from ...tasks.runtime import EVALUATION_ENVS, EVALUATION_SEED
from ...tasks.runtime.interrupts import Interrupts
from ...tasks.runtime.observers import EpochEvent
from ...tasks.task import Task
from ..engine.bounds import overdue, spent_by
from ..engine.lineage import bring_start, lineage, retrain
from ..engine.runner import ReadySegment, StudyRunner
from ..errors import DamagedCheckpoint, LeaseLost, TaskBusy
from ..schedulers.confirming import episodes_seed
from ..storage.commands import CANCELLED, hold_of
from ..storage.locks.leases import StoreLease
from ..storage.rows import Result, score_of
from ..storage.store import Store
from ..study.number_text import in_digits_alone
from ..study.objectives import RETURN, constraints_of, measure, measured_names, objectives_of, point, violation
from .goal_tests import check_goal

LOOK_EVERY = 0.2  # seconds between checks for commands
Row = TypeVar("Row", Write, Result)


class Held(Exception):
    """The study was stopped or paused, or its budget spent, meanwhile."""


class Training:
    """Training of a cohort to the end of its segments.

    Args:
        runner: runner of the study.
        items: segments to train.
        claimed: leases of the items' tasks, by uid.
        use_previous: whether a damaged checkpoint may be replaced by the last intact one.
        env_processes: number of processes that step the environments; 0 to step them in this process.
        eval_envs: most environments that an evaluation steps at the same time, see `Task`.

    Attributes:
        failed: errors of failed members, by uid; the others trained to the end.
        results: descriptions of the results of members that trained to the end, by uid.
        lost: uids of members whose lease was lost before their results were written.
    """

    def __init__(
        self,
        runner: StudyRunner,
        items: Sequence[ReadySegment],
        claimed: Mapping[str, StoreLease],
        use_previous: bool = False,
        env_processes: int = 0,
        eval_envs: int = EVALUATION_ENVS,
    ):
        self.runner, self.store, self.items = runner, runner.store, items
        self.env_processes, self.eval_envs = env_processes, eval_envs
        self.storage = TaskStorage(self.store, use_previous, self._drop, claimed, runner.device)
        self.epochs, self.objective = items[0].segment.epochs, runner.algorithm.learner.objective
        self.plays = plays_episodes(runner.algorithm.learner)  # else no seed of episodes is told beside its results
        self.tasks: dict[str, Task] = {}
        self.failed: dict[str, BaseException] = {}
        self.results: dict[str, str] = {}
        self.lost: list[str] = []
        self._commands = len(runner.rows.commands)
        self._looked_at = 0.0
        self.measured: dict[tuple[BaseLearner, int], list[Evaluated]] = {}  # of all members, by (learner, epoch)

    def run(self) -> None:
        """Train all members and write their results; always release all leases."""
        try:
            for item in self.items:
                self._open(item)
            self._end_overdue()
            ahead = {uid for uid, task in self.tasks.items() if task.is_beyond(self.epochs)}
            if behind := [task for uid, task in self.tasks.items() if uid not in ahead and task.bad is None]:
                for item in self.items:
                    self._evaluate_passed(item)
                with suppress(Diverged, LeaseLost):
                    Cohort(behind).fit(self.epochs, self._evaluate)
            results = []
            for item in self.items:
                if (task := self.tasks.get(item.trial.uid)) is not None and task.bad is None:
                    results += self.results_of(item, self._retrain(item) if item.trial.uid in ahead else task)
            write_leased(lambda leases: self.store.finish_segments(self.runner.name, leases), results, self._drop)
            self.results = {
                result.lease.uid: _described(result) for result in results if result.lease.uid not in self.lost
            }
            self.failed = {
                uid: task.bad
                for uid, task in self.tasks.items()
                if task.bad is not None and not isinstance(task.bad, LeaseLost)
            }
        finally:
            self.store.release(self.storage.leases.values())
            for task in self.tasks.values():
                task.close()

    def _open(self, item: ReadySegment) -> None:
        try:
            task = self.tasks[item.trial.uid] = self.runner.task(item.trial, self.storage)
        except (LeaseLost, TaskBusy):
            self.lost.append(item.trial.uid)
            self.storage.busy = False
        else:
            task.env_processes, task.eval_envs = self.env_processes, self.eval_envs
            self.storage.leases[task.uid].share = 1 / len(self.items)

    def _drop(self, lost: LeaseLost) -> None:
        """Stop the members whose leases were lost; the others continue."""
        for uid in lost.uids:
            self.lost.append(uid)
            self.tasks[uid].fail(lost)

    def _evaluate(self, event: EpochEvent) -> None:
        """Add the return to the metrics of a rung's last epoch.

        Commands given in the meantime are obeyed first.
        """
        assert isinstance(event.task, Task)
        self.obey(event)
        if event.epoch in self.runner.config.rungs:
            event.metrics.update(self._score_metrics(event.task))

    def _evaluate_passed(self, item: ReadySegment) -> None:
        """Evaluate a task that was stopped just at a rung it passes.

        The trials of some brackets begin on a later rung. They are evaluated on earlier ones for their curves alone,
        unless a signal or command came first.
        """
        rungs, task = self.runner.config.rungs, self.tasks.get(item.trial.uid)
        if task is None or task.bad is not None or not 0 < task.epochs < self.epochs or task.epochs not in rungs:
            return
        passed = (item.trial.number, rungs.index(task.epochs)) not in self.runner.rows.segments
        at_its_end = task.history and task.history[-1][0] == task.epochs and not task.is_beyond(task.epochs)
        if passed and at_its_end and task.score_in(task.metrics) is None:
            task.stored.add_metrics(self._score_metrics(task))

    def obey(self, event: EpochEvent) -> None:
        """Stop cancelled members, or all if the study is stopped or paused.

        A cohort that has reached the end of its segments is still evaluated, as its training would otherwise be
        wasted.

        Raises:
            Held: the study was stopped or paused, or has spent its budget; the training so far is saved.
        """
        if time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at, name = time.monotonic(), self.runner.name
        unsaved = {uid: task.epochs for uid, task in self._living().items()}
        if event.epoch < self.epochs and spent_by(self.store, self.runner.rows, unsaved):
            raise Held  # only what is saved counts: if this process dies now, the study is not stopped without it
        self._end_overdue()
        if self.store.count_commands(name) == self._commands:
            return
        steering = self.store.commands(name)
        self._commands = len(steering)
        if hold_of(steering) is not None and event.epoch < self.epochs:
            raise Held
        rows = self.store.trials(name, of=[item.trial.number for item in self.items])
        if over := [row.uid for row in rows if row.state == CANCELLED and row.uid in self._living()]:
            self._drop(LeaseLost(over))

    def _end_overdue(self) -> None:
        """Fail members that trained longer than the study allows."""
        epochs = {uid: task.epochs for uid, task in self._living().items()}
        if overdue(self.store, self.runner.config, epochs):
            self.runner.rows.refresh()  # the study may allow more by now
        for uid, error in overdue(self.store, self.runner.config, epochs).items():
            self.tasks[uid].fail(error)

    def _living(self) -> dict[str, Task]:
        return {uid: task for uid, task in self.tasks.items() if task.bad is None}

    def measure(self, task: Task) -> Evaluated:
        """Return a task's score, measured together with those of its cohort.

        Earlier metrics do not say which steps measured a return; measuring again gives the same one.
        """
        if not plays_episodes(task.learner) and (score := task.score_in(task.metrics)) is not None:
            return Evaluated(score, task.eval_episodes, 0)
        learner, member = task.member_ref()
        if (learner, task.epochs) not in self.measured:
            config, seeds = self.runner.config, [self._episodes_seed(seed) for seed in learner.seeds]
            steps, most = config.eval_steps(task.epochs, task.identity.hyperparameters)
            self.measured[learner, task.epochs] = evaluate_within(
                learner, steps, seeds, self._stop_if_asked, most, whole=config.scheduling.confirms
            )
        return self.measured[learner, task.epochs][member]

    def _score_metrics(self, task: Task) -> Metrics:
        measured = self.measure(task)
        return task.score_metrics(measured.value, measured.episodes, self._episodes_seed(task.seed))

    def _episodes_seed(self, seed: int) -> int:
        """Return the seed of the evaluation episodes of a task."""
        return episodes_seed(self.runner.config, seed) if self.plays else EVALUATION_SEED

    def _stop_if_asked(self, *step: object) -> None:
        """Raise Stopped if this process was asked to stop."""
        if self.runner.stop() or Interrupts.pending_anywhere():
            raise Stopped("an evaluation was asked to stop by SIGTERM; the state is saved, and any worker repeats it")

    def results_of(self, item: ReadySegment, task: Task) -> list[Result]:
        """Return a task's result; nothing if its return is no finite number."""
        score, episodes, steps, error = self.measure(task)
        seed = self._episodes_seed(task.seed)
        segment, member = item.segment, self.tasks[task.uid]
        try:
            task.finite(score)
        except Diverged as diverged:
            member.fail(diverged)
            return []
        names, measured = measured_names(self.runner.config), None
        untrained = lambda: self.runner.task(item.trial, None)  # noqa: E731
        if names:
            measured = measure(names, task, score, untrained, seed)
            score = point(objectives_of(self.runner.config), measured)[0]
        if not violation(constraints_of(self.runner.config), measured):
            check_goal(self.store, self.runner.name, segment, score, task, untrained, self._stop_if_asked)
        objective = score if measured is None else measured.get(self.objective)
        values = {} if objective is None else task.score_metrics(objective, episodes, seed)
        metrics = [(segment.epochs, values | (measured or {}))]
        lease = self.storage.leases[task.uid]
        return [Result(lease, segment.number, segment.rung, score, task.digest, metrics, measured, steps, error)]

    def _retrain(self, item: ReadySegment) -> Task:
        """Retrain a task whose checkpoint is beyond the end of this segment.

        Another trial or study has trained the same hyperparameters further. The result must not depend on that, so the
        task is trained again without the storage.
        """
        how: dict[str, Any] = {"device": self.runner.device, "eval_episodes": self.runner.config.eval_episodes}
        return retrain(lineage(self.store, item.trial.uid), self.epochs, self._evaluate, **how)


def _described(result: Result) -> str:
    measured = result.objectives or {RETURN: score_of(result)}
    return ", ".join(f"{name} {in_digits_alone(value)}" for name, value in measured.items())


def write_leased(
    write: Callable[[Sequence[Row]], object], rows: Sequence[Row], drop: Callable[[LeaseLost], None] | None
) -> None:
    """Write all rows together, without those whose leases are lost.

    Args:
        write: writes rows in one transaction.
        rows: rows to write.
        drop: called with the error for lost leases; None to raise it.

    Raises:
        LeaseLost: a lease is lost and `drop` is None.
    """
    while rows:
        try:
            write(rows)
            return
        except LeaseLost as lost:
            if drop is None:
                raise
            drop(lost)
            rows = [row for row in rows if row.lease.uid not in lost.uids]


class TaskStorage:
    """The store, with the interface that tasks use.

    Args:
        store: the store.
        use_previous: whether a damaged checkpoint may be replaced by the last intact one.
        drop: called with the error for tasks whose leases are lost, so that the others are saved; None to raise
            LeaseLost.
        claimed: leases taken before the tasks were created, by uid.
        device: device on which a branch's initial state is trained again if it is not stored.

    Attributes:
        leases: leases of the tasks, by uid; results are written under them.
        busy: True while the store is at work, and after an error in it: such an error is not the trial's.
    """

    def __init__(
        self,
        store: Store,
        use_previous: bool,
        drop: Callable[[LeaseLost], None] | None = None,
        claimed: Mapping[str, StoreLease] = MappingProxyType({}),
        device: str = "cpu",
    ):
        self.store, self.use_previous, self.drop, self.claimed = store, use_previous, drop, claimed
        self.device = device
        self.leases: dict[str, StoreLease] = {}
        self.busy = False

    def open(self, uid: str, identity: Mapping[str, Any]) -> StoreLease:
        """Take a task's lease and, for a branch, provide its initial state."""
        self.busy = True
        lease = self.leases[uid] = self.store.open(uid, identity, self.claimed.get(uid))
        if self.use_previous:
            try:  # drops damaged checkpoints, so that the task loads the last intact one
                lease.load(allow_previous=True)
            except DamagedCheckpoint:  # no checkpoint is intact; training from the start gives the same bits
                lease.discard()
        if "start" in identity:
            bring_start(self.store, lease, self.device)
        self.busy = False
        return lease

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        """Return the last checkpoint, or the one at `epochs`."""
        return self.store.load(uid, epochs)

    def save(self, writes: Sequence[Write]) -> None:
        """Write all in one transaction, without tasks whose leases are lost."""
        self.busy = True
        write_leased(self.store.save, writes, self.drop)
        self.busy = False
