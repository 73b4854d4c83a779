"""Resumable tasks as the objective of a user's own Optuna study.

    study = optuna.create_study(direction="maximize", storage=url, sampler=..., pruner=...)
    study.optimize(rekindle.Objective(PPO, "CartPole-v1", epochs=27, storage=url), n_trials=20)

The hyperparameters identify the checkpoint, not the trial's number: a killed trial resumes whether Optuna retries it
(heartbeat_interval, RetryHeartbeatStaleTrialCallback), a user enqueues its parameters again, or a sampler suggests them
a second time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna

from ..spaces import flatten
from ..spaces.drivers.to_optuna import from_params, suggest
from ..tasks.errors import Diverged, Hung
from ..tasks.runtime import progress
from ..tasks.runtime.observers import EpochEvent
from .storage.store import Store
from .study.config import check_epochs
from .study.digits import in_digits_alone
from .study.durations import seconds_of
from .study.objectives import DEFAULT, Unmeasured, measure, objective_options, own_objective
from .study.searched import open_space
from .workers.waiting import open_when_free

if TYPE_CHECKING:
    from ..tasks.task import Task


class Objective:
    """Objective that trains tasks with the hyperparameters that Optuna suggests.

    It reports returns and obeys the pruner.

    The value of a trial is the return after the last epoch, to maximize, or a list of its objectives. The trial gets
    the attributes ``rk_uid``, ``rk_epochs`` and ``rk_digest`` (of the whole state). A trial whose numbers become NaN
    fails with the reason in ``rk_error``, and the study continues; so does one whose simulator hangs in a process of
    its own (``env_processes=1``), which is killed and replaced, if the new one hangs in the same step. Any other error
    is raised, such as a ValueError where the study's directions differ from those of the objectives.

    Args:
        task: the algorithm, such as PPO.
        env: see `Task`.
        epochs: of each trial, in all.
        storage: a URL, or a Store; may be the database of the study itself.
        seed: of the training of every trial.
        report: epochs between two reports of the return to the pruner; 0 for none.
        objectives: as `rekindle tune --objective` takes them, such as "return" and "model_size"; see `objectives`. None
            stand for the task's own, such as the return.
        priors: ranges that replace those of the space, or add a hyperparameter to the search, as texts by dotted name,
            such as {"optimizer.lr": "loguniform(1e-5, 1e-3)"}; see `spaces.priors`.
        device: of the trainings, see `Task`.
        env_processes: number of processes that step the environments, 0 for this one alone; it changes no result.
        stuck: seconds, or text such as "10m", after which an environment process that makes no step is killed; None:
            never.
        fixed: hyperparameters that are not suggested, nested.
    """

    def __init__(
        self,
        task: type[Task],
        env: Any = None,
        *,
        epochs: int,
        storage: str | Store,
        seed: int = 0,
        report: int = 1,
        objectives: Sequence[str] = (),
        priors: Mapping[str, str] | None = None,
        device: str = "cpu",
        env_processes: int = 0,
        stuck: float | str | None = progress.STUCK,
        **fixed: Any,
    ):
        check_epochs([epochs])
        if isinstance(report, bool) or not isinstance(report, int) or report < 0:
            raise ValueError(
                f"Objective: report must be 0 or how many epochs lie between two reports, but got {report!r}"
            )
        self.algorithm, self.epochs, self.seed, self.report, self.fixed = task, epochs, seed, report, fixed
        self.objectives: dict[str, str] = objective_options(objectives, own_objective(task)).get("objectives", DEFAULT)
        self.own = task.learner.objective
        if self.objectives != own_objective(task):
            self.report = 0  # Optuna prunes studies of one objective only
        self.device, self.env_processes, self.stuck = device, env_processes, seconds_of("Objective: stuck", stuck)
        first = task(env, seed=seed, device=device, env_processes=env_processes, **fixed)  # checks the arguments
        self.env, self.space = first.env, open_space(task, first.env, first.fixed, priors or {})
        self._url = storage
        self._store = storage if isinstance(storage, Store) else None
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """The store of the tasks, opened on first use."""
        with self._lock:  # study.optimize(n_jobs=...) calls from several threads
            if self._store is None:
                assert isinstance(self._url, str)
                self._store = Store(self._url)
            return self._store

    def hyperparameters(self, trial: optuna.trial.BaseTrial | optuna.trial.FrozenTrial) -> dict[str, Any]:
        """Return a trial's complete hyperparameters, nested, as `Task.init` takes them.

        Optuna's own ``trial.params`` hold them in the form in which samplers see them.
        """
        values = flatten(from_params(self.space, trial.params)) | flatten(self.fixed)
        return self.algorithm.learner.hyperparameters.validate(values)

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        """Train one trial, and return its objectives; TrialPruned if pruned."""
        self._check_directions(trial)
        values = suggest(self.space, trial)
        with progress.limited(self.stuck), open_when_free(lambda: self._make(self.store), values) as task:
            trial.set_user_attr("rk_uid", task.uid)
            # A stored task that has trained further is trained again without the storage, to the same bits.
            if task.epochs > self.epochs:
                task = self._make(None).init(**values)
            try:
                value = self._train(trial, task)
                return value if [*self.objectives] == [self.own] else self._measure(task, value, values)
            except (Diverged, Hung, Unmeasured) as error:
                trial.set_user_attr("rk_error", f"{type(error).__name__}: {error}")
                return math.nan if len(self.objectives) == 1 else [math.nan] * len(self.objectives)  # a failed trial

    def _check_directions(self, trial: optuna.Trial) -> None:
        study = getattr(trial, "study", None)  # a FixedTrial has none
        expected = [*self.objectives.values()]
        directions = [direction.name.lower() for direction in study.directions] if study else expected
        if directions != expected:
            own = ", ".join(f"{direction} {name}" for name, direction in self.objectives.items())
            raise ValueError(
                f"Objective: the directions of the study must be those of the objectives ({own}), but they are "
                f"{', '.join(directions)}; make it with optuna.create_study(directions={expected})"
            )

    def _measure(self, task: Task, value: float, values: dict[str, Any]) -> list[float]:
        measured = measure(self.objectives, task, value, lambda: self._make(None).init(**values))
        return [measured[name] for name in self.objectives]

    def _train(self, trial: optuna.Trial, task: Task) -> float:
        reported = _reported_epochs(trial)

        def at_epoch_end(event: EpochEvent) -> None:
            if self._reports(event.epoch) or event.epoch == self.epochs:
                event.metrics[self.own] = event.task.evaluate()
                self._tell(trial, reported, event.epoch, event.metrics[self.own])

        try:
            for epoch, metrics in task.history:  # of an earlier run, which may have stopped at any epoch
                if self.own not in metrics and epoch == task.epochs and self._reports(epoch):
                    metrics[self.own] = task.evaluate()
                if self.own in metrics:
                    self._tell(trial, reported, epoch, metrics[self.own])
            task.fit(self.epochs, at_epoch_end)
        finally:
            if task.bad is None:
                trial.set_user_attr("rk_epochs", task.epochs)
                trial.set_user_attr("rk_digest", task.digest)
        return task.metrics[self.own] if self.own in task.metrics else task.evaluate()

    def _reports(self, epoch: int) -> bool:
        return self.report > 0 and epoch % self.report == 0

    def _tell(self, trial: optuna.Trial, reported: Collection[int], epoch: int, value: float) -> None:
        if not self._reports(epoch):
            return
        if epoch not in reported:
            trial.report(value, epoch)
        if epoch < self.epochs and trial.should_prune():
            raise optuna.TrialPruned(f"pruned after {epoch} epochs with a {self.own} of {in_digits_alone(value)}")

    def _make(self, storage: Store | None) -> Task:
        how: dict[str, Any] = {"device": self.device, "env_processes": self.env_processes}
        return self.algorithm(self.env, seed=self.seed, storage=storage, **how, **self.fixed)


def _reported_epochs(trial: optuna.Trial) -> Collection[int]:
    """Return the epochs with inherited reports, which Optuna accepts only once."""
    study = getattr(trial, "study", None)  # a FixedTrial has none
    return study.get_trials(deepcopy=False)[trial.number].intermediate_values if study else ()
