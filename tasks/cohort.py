"""Cohort: P tasks of equal structure, trained as one batched computation.

Each member is saved and recorded as if it trained alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch

from ..spaces.arguments import checked
from ..spaces.values import whole_number
from .base_learner import BaseLearner, MemberRef
from .checkpoint.storage import Metrics, Write
from .envs import EnvSpecError, allows_one
from .errors import Diverged
from .evaluation.objective import evaluate
from .identity import TaskIdentity
from .learner import Learner
from .record import TaskRecord
from .runtime.allocator import keep_freed_memory
from .runtime.fingerprint import products_are_exact
from .runtime.guard import BadResumeGuard, Guarded
from .runtime.interrupts import Interrupts
from .runtime.observers import Context, EpochEvent, Listener, Trainable, Until, check_listener
from .runtime.progress import at_work
from .runtime.threads import one_thread

Events = list[tuple[Listener | None, EpochEvent]]
SAVING_SHARE = 0.02  # largest share of the training time that is spent on checkpoints


class Member(Guarded, Trainable, Protocol):
    """A task as its cohort sees it; `Task` describes the attributes."""

    learner: ClassVar[type[BaseLearner]]
    device: torch.device
    stored: TaskRecord
    ref: MemberRef | None
    eval_episodes: int
    logger: Listener | None

    @property
    def identity(self) -> TaskIdentity: ...
    @property
    def work(self) -> int: ...
    def arrive(self) -> None: ...
    def pending_write(self) -> Write: ...
    def score_metrics(self, score: float) -> Metrics: ...
    def build_learner(self, tasks: Sequence[Any]) -> BaseLearner: ...


class Cohort:
    """Tasks that train together as one batched computation.

    The company does not matter: each member's state and metrics are bit for bit those of the task trained alone.
    Members may be at different epochs; the cohort first trains those that are behind. If the learner cannot batch its
    members (`BaseLearner.batched`), they train one after another.

        tasks = [PPO("CartPole-v1", seed=seed).init() for seed in range(8)]
        Cohort(tasks).fit(epochs=3)

    Attributes:
        tasks: the members.
    """

    @checked()
    def __init__(self, tasks: Sequence[Member]):
        """Check that the tasks can train together.

        Args:
            tasks: initialized tasks that agree in algorithm, environment, structural hyperparameters and device, and
                have the same other hyperparameters.

        Raises:
            TypeError: a member is no task.
            ValueError: there is no task, two tasks have the same uid, or their structures differ.
            NotInitialized: a task has no hyperparameters yet.
        """
        tasks = list(tasks)
        if strangers := [task for task in tasks if not hasattr(task, "identity")]:
            raise TypeError(f"the members of a cohort must be tasks, but got {strangers[0]!r}")
        if not tasks:
            raise ValueError("a cohort must have at least one task, but got none")
        first, *others = tasks
        for other in others:
            if (other.identity.cohort_key, other.device) != (first.identity.cohort_key, first.device):
                names = first.identity.structural_difference(other.identity)
                names += ["device"] if other.device != first.device else []
                raise ValueError(
                    f"the members of a cohort must have the same structure, but {first} and {other} differ in "
                    f"{', '.join(names)}; train them in cohorts of their own"
                )
        if len({task.uid for task in tasks}) < len(tasks):
            raise ValueError("the members of a cohort must be different tasks, but two have the same uid")
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"<Cohort of {len(self.tasks)}: {self.tasks[0]}{', ...' if len(self.tasks) > 1 else ''}>"

    def fit(self, epochs: int, context: Context | None = None, until: Until | None = None) -> None:
        """Train every member until it has done `epochs` epochs in all.

        A member whose numbers become NaN or infinite is marked as bad and left behind, and the others continue. SIGTERM
        and SIGINT take effect between two steps, after the states are saved.

        Any other exception in a step, such as one of an environment, ends the call and marks all members as bad: they
        step together, so no state is whole. Tasks built again with the same hyperparameters resume from what is saved.
        Trained one by one, as a worker does then, only the one at fault fails, and the others may train together again:

            try:
                Cohort(tasks).fit(9)
            except Exception:
                tasks = [PPO(env, seed=seed, storage=store).init() for seed in seeds]
                for task in tasks:
                    with suppress(Exception):
                        task.fit(9)
                tasks = [task for task in tasks if task.bad is None]

        Args:
            epochs: total to reach.
            context: function called with an EpochEvent for each member at the end of each epoch; it may raise to stop
                training. Or a mapping, which the members' loggers find in `EpochEvent.context`.
            until: function of a member's history that returns true to end its training early. It is called before the
                member trains and at the end of each epoch.

        Raises:
            ValueError: `epochs` is negative, not an integer, or more than a recorded table has.
            BadResume: a member broke earlier.
            Diverged: the only member's numbers became NaN or infinite.
            TaskError: a member no longer holds its lease.
            Stopped: SIGTERM arrived; the states are saved.
            KeyboardInterrupt: SIGINT arrived; the states are saved.
        """
        if (total := whole_number(epochs)) is None or total < 0:
            raise ValueError(f"epochs must be an integer of at least 0, the total to reach, but got {epochs!r}")
        epochs = total
        first = self.tasks[0]
        env = first.identity.env
        most = first.learner.most_epochs(env)
        if most is not None and epochs > most:  # said before hours of training, not after
            raise EnvSpecError(f"{env.id} has only {most} epochs, but got {epochs}; train at most {most}")
        for name, listener in (("context", None if isinstance(context, Mapping) else context), ("until", until)):
            check_listener(listener, name, str(first))
        for task in self.tasks:
            check_listener(task.logger, "logger", str(task))
        with BadResumeGuard(*self.tasks):
            pass  # entering the guard refuses bad tasks before any training
        for task in self.tasks:
            task.arrive()
        with self._training(), Interrupts() as interrupts, one_thread(), at_work():
            for task in self.tasks:
                if task.epochs < epochs:
                    task.stored.check_lease(str(task))
            products_are_exact()  # warns if they are not
            keep_freed_memory()
            while behind := [
                task
                for task in self.tasks
                if task.bad is None and task.epochs < epochs and not (until and until(task.history))
            ]:
                group, target = _next_group(behind, epochs)
                _Run(group, context, until, interrupts).train(target)
        if len(self.tasks) == 1 and self.tasks[0].bad is not None:
            raise self.tasks[0].bad

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Mark the tasks as training, which keeps their leases with them."""
        before = [task.stored.training for task in self.tasks]  # a listener may call fit, so calls can nest
        for task in self.tasks:
            task.stored.training = True
        try:
            yield
        finally:
            for task, was in zip(self.tasks, before, strict=True):
                task.stored.training = was


def _next_group(tasks: Sequence[Member], epochs: int) -> tuple[list[Member], int]:
    """Return the next members to train as one batch, and their target.

    They are those that have done the least work, which is the same for all of them, and that are measured in equally
    many episodes, since one evaluation measures a batch. Their target is where they catch up with the next member,
    which then joins them, or else `epochs`.
    """

    def standing(task: Member) -> tuple[int, int]:
        return task.work, task.eval_episodes

    ordered = sorted(tasks, key=standing)
    group = [task for task in ordered if standing(task) == standing(ordered[0])]
    learner = group[0].learner
    if not learner.batched or (issubclass(learner, Learner) and allows_one(group[0].identity.env)):
        group = group[:1]
    done = group[0].epochs
    ahead = [task.epochs for task in ordered[len(group) :] if task.epochs > done]
    return group, max(min([epochs, *ahead]), done + 1)


class _Run:
    """A stretch of training with all members at the same step."""

    def __init__(self, tasks: list[Member], context: Context | None, until: Until | None, interrupts: Interrupts):
        self.tasks, self.until, self.interrupts = tasks, until, interrupts
        self.shared: Mapping[str, Any] = context if isinstance(context, Mapping) else {}
        self.listener: Listener | None = None if isinstance(context, Mapping) else context
        self.learner = shared_learner(tasks)
        self.saved_at, self.saving_took = time.monotonic(), 0.0

    def train(self, epochs: int) -> None:
        self.label()
        with BadResumeGuard(*self.living()):
            if self.learner.iterations == 0:  # a branch or warm start already has its start as first checkpoint
                self.write([task for task in self.living() if task.stored.keeps_initial and not task.identity.start])
        with self.learner.training(epochs):
            self.train_epochs(epochs)

    def train_epochs(self, epochs: int) -> None:
        enough = False
        while not enough and self.learner.epochs < epochs and self.living():
            events = []
            with BadResumeGuard(*self.living()):
                self.note_between_steps(False)
                metrics = self.learner.run_epoch(stop=lambda: self.interrupts.pending is not None)
                self.note_between_steps(True)
                if metrics is not None:
                    self.evaluate_for_retention(metrics)
                    events = self.record(metrics)
            enough = self.tell(events)
            with BadResumeGuard(*self.living()):
                self.save_if_due(finished=metrics is None or enough or self.learner.epochs >= epochs)
                self.interrupts.raise_if_pending()

    def tell(self, events: Events) -> bool:
        """Call the listeners; return whether a rule ends training.

        An exception from a listener is not the tasks' fault, and their states are whole, so it stays outside the
        guards.
        """
        try:
            for logger, event in events:
                for listener in (logger, self.listener):
                    if listener is not None:
                        listener(event)
            return self.until is not None and any(self.until(task.history) for task in self.living())
        except BaseException:
            with BadResumeGuard(*self.living()):
                self.save()  # keep the training so far, whoever asked to stop
            raise

    def evaluate_for_retention(self, metrics: list[Metrics]) -> None:
        """Evaluate the members whose retention rule needs it at this epoch.

        Their objectives are added to the metrics. One evaluation measures all members.
        """
        epoch = self.learner.epochs
        due = [
            member
            for member, task in enumerate(self.tasks)
            if task.bad is None
            and task.stored.storage
            and (keep := task.stored.keep)
            and keep.every
            and epoch % keep.every == 0
        ]
        reasons = self.learner.find_nonfinite(metrics) if due else []
        due = [member for member in due if reasons[member] is None]
        values = evaluate(self.learner).tolist() if due else []
        for member in due:
            metrics[member] |= self.tasks[member].score_metrics(values[member])

    def label(self) -> None:
        """Note what is not exact, and advice, among the events to store."""
        for member, task in enumerate(self.tasks):
            task.stored.label(self.learner.epochs, self.learner.inexact(member), self.learner.advice())

    def living(self) -> list[Member]:
        return [task for task in self.tasks if task.bad is None]

    def note_between_steps(self, whole: bool) -> None:
        for task in self.tasks:
            task.between_steps = whole

    def record(self, metrics: list[Metrics]) -> Events:
        """Add the epoch to each member's history, and return events to send.

        Members that diverged are marked as bad.
        """
        self.label()
        events, reasons = [], self.learner.find_nonfinite(metrics)
        for member, (task, row, reason) in enumerate(zip(self.tasks, metrics, reasons, strict=True)):
            if task.bad is not None:
                continue
            if reason:
                cure = self.learner.cure(member)
                task.fail(Diverged(f"{task}: {reason} in epoch {self.learner.epochs}; {cure}"))
                continue
            task.history.append((self.learner.epochs, row))
            events.append((task.logger, EpochEvent(task, self.learner.epochs, row, self.shared)))
        return events

    def save_if_due(self, finished: bool) -> None:
        if finished or (time.monotonic() - self.saved_at) * SAVING_SHARE >= self.saving_took:
            self.save()
        elif due := [
            task
            for task in self.living()
            if (keep := task.stored.keep) and (keep.is_due(self.learner.epochs) or keep.is_among_best(task.history))
        ]:
            self.write(due)

    def save(self) -> None:
        """Write the state of every living member."""
        start = time.monotonic()
        self.write(self.living())
        self.saved_at = time.monotonic()
        self.saving_took = self.saved_at - start

    def write(self, tasks: list[Member]) -> None:
        """Write states and new metrics, in one transaction per storage."""
        storages = {id(storage): storage for task in tasks if (storage := task.stored.storage) is not None}
        for storage in storages.values():
            writes = {task.uid: task.pending_write() for task in tasks if task.stored.storage is storage}
            storage.save([*writes.values()])
            for task in tasks:
                if task.uid in writes:
                    task.stored.note_written(writes[task.uid])


def shared_learner(tasks: list[Member]) -> BaseLearner:
    """Return a learner that holds exactly these tasks and their states.

    If they share such a learner already, it is reused.
    """
    ref = tasks[0].ref
    if ref is not None and [task.ref for task in tasks] == [(ref.learner, i) for i in range(ref.learner.members)]:
        return ref.learner
    return tasks[0].build_learner(tasks)
