"""Resumable tasks as the objective of your own Optuna study.

    study = optuna.create_study(direction="maximize", storage=url, sampler=..., pruner=...)
    study.optimize(rekindle.Objective(PPO, "CartPole-v1", epochs=27, storage=url), n_trials=20)

Checkpoints are found by the hyperparameters, not by the trial's number. A killed trial therefore resumes whether Optuna
retries it (heartbeat_interval, RetryHeartbeatStaleTrialCallback), you enqueue its parameters again, or a sampler
suggests them a second time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna

from ..spaces import flatten
from ..spaces.drivers.to_optuna import distributions, from_params, params, suggest
from ..spaces.values import argument
from ..tasks.errors import Diverged, Hung, class_and_text
from ..tasks.identity import TaskIdentity
from ..tasks.registry import load
from ..tasks.runtime import EVALUATION_ENVS, EVALUATION_EPISODES, STUCK, progress
from ..tasks.runtime.interrupts import Interrupts
from ..tasks.runtime.observers import EpochEvent
from .options.durations import seconds_of
from .storage.sql.database import full_url
from .storage.store import Store
from .study.code import FILES, IN_PYTHON, check_files
from .study.config import check_epochs
from .study.number_text import in_digits_alone
from .study.objectives import DEFAULT, Unmeasured, measure, objective_options, own_objective
from .study.searched import open_space
from .workers.waiting import open_when_free

if TYPE_CHECKING:
    from ..tasks.task import Task

ATTRIBUTE = f"rk_{FILES}"  # of an Optuna study


class Objective:
    """Objective that trains tasks with the hyperparameters that Optuna suggests.

    It reports returns to the pruner and stops a trial that is pruned.

    A trial's value is the return after the last epoch, to be maximized, or a list of its objectives. The trial gets the
    user attributes ``rk_uid``, ``rk_epochs`` and ``rk_digest`` (of the complete state).

    If a trial's numbers become NaN, or its hyperparameters contradict each other, the trial fails with the reason in
    ``rk_error`` and the study continues. The same happens if a simulator hangs in its own process
    (``env_processes=1``): the process is killed and replaced, and the trial fails if the new one hangs in the same
    step. All other errors are raised, such as a ValueError if the study's directions differ from those of the
    objectives.

    Args:
        task: algorithm, such as PPO or "ppo".
        env: see `Task`.
        epochs: total epochs of each trial.
        storage: URL or Store; it may be the database of the Optuna study.
        seed: training seed of every trial.
        report: epochs between two reports to the pruner; 0 for none.
        objectives: names as in `rekindle tune --objective`, such as "return" and "model_size", see `objectives`. Empty
            for the task's own objective, such as the return.
        priors: ranges by dotted name, as text, such as {"optimizer.lr": "loguniform(1e-5, 1e-3)"}, see `spaces.priors`.
            They replace those of the space, or add a hyperparameter to the search.
        device: see `Task`.
        env_processes: number of processes that step the environments; 0 steps them in this process. It does not change
            the result.
        eval_episodes: see `Task`.
        eval_envs: see `Task`.
        stuck: seconds, or text such as "10m", after which an environment process that makes no step is killed; None for
            never.
        code: whether the Optuna study continues with the task's code as it is here, though it began with other code.
        fixed: hyperparameters that are not suggested, nested.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self,
        task: type[Task] | str,
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
        eval_episodes: int = EVALUATION_EPISODES,
        eval_envs: int = EVALUATION_ENVS,
        stuck: float | str | None = STUCK,
        code: bool = False,
        **fixed: Any,
    ):
        epochs, report = argument(epochs), argument(report)
        check_epochs([epochs])
        self._url = storage if isinstance(storage, Store) else full_url(storage)
        task = load(task) if isinstance(task, str) else task
        if isinstance(report, bool) or not isinstance(report, int) or report < 0:
            raise ValueError(
                f"Objective: report must be 0 or how many epochs lie between two reports, but got {report!r}"
            )
        self.algorithm, self.epochs, self.seed, self.report, self.fixed = task, epochs, seed, report, fixed
        self.objectives: dict[str, str] = objective_options(objectives, own_objective(task)).get("objectives", DEFAULT)
        self.metric = task.learner.objective
        if self.objectives != own_objective(task):
            self.report = 0  # Optuna prunes studies of one objective only
        self.stuck, self.code = seconds_of("Objective: stuck", stuck), code
        self.how: dict[str, Any] = {"device": device, "env_processes": env_processes}
        self.how |= {"eval_episodes": eval_episodes, "eval_envs": eval_envs}
        first = task(env, seed=seed, **self.how, **fixed)  # checks the arguments
        self.env, self.space = first.env, open_space(task, first.env, first.fixed, priors or {})
        self._fixed = dict(first.fixed)
        self.distributions = distributions(self.space)  # raises for priors that Optuna cannot express
        self._store = storage if isinstance(storage, Store) else None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process, which opens its own store."""
        return {**vars(self), "_store": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._store = self._url if isinstance(self._url, Store) else None
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """Store of the tasks, opened on first use."""
        with self._lock:  # study.optimize(n_jobs=...) calls from several threads
            if self._store is None:
                assert isinstance(self._url, str)
                self._store = Store(self._url)
            return self._store

    def hyperparameters(self, trial: optuna.trial.BaseTrial | optuna.trial.FrozenTrial) -> dict[str, Any]:
        """Return a trial's complete hyperparameters, nested, as `Task.init` takes them.

        In ``trial.params`` they have the form that Optuna's samplers use. Parameters that are none of the task's are
        ignored.
        """
        chosen = {name: value for name, value in trial.params.items() if name in self.distributions}
        values = flatten(from_params(self.space, chosen)) | flatten(self.fixed)
        return self.algorithm.learner.space_in(self.env).validate(values)

    def params(self, **hyperparameters: Any) -> dict[str, Any]:
        """Return hyperparameters as `Study.enqueue_trial` takes them.

            study.enqueue_trial(objective.params(gamma=0.99, width=64))

        Args:
            hyperparameters: some or all values, nested.

        Raises:
            SpaceError: a value is not in the searched space.
        """
        return params(self.space, hyperparameters)

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        """Train one trial, and return its objectives.

        Raises:
            TrialPruned: the pruner ended the trial.
            MachineMismatch: the study began with other code.
            ValueError: the study's directions differ from those of the objectives.
        """
        self._check_directions(trial)
        self._check_enqueued(trial)
        self._check_code(trial)
        values = suggest(self.space, trial)
        try:
            TaskIdentity.of(self.algorithm, self.env, self.seed, {**flatten(values), **self._fixed})
        except ValueError as error:  # the ranges allow values that contradict each other
            return self._failed(trial, error)
        with progress.limited(self.stuck), open_when_free(lambda: self._make(self.store), values, self.code) as task:
            trial.set_user_attr("rk_uid", task.uid)
            # If the stored task has trained further, train it again without the storage; its bits are the same. So too
            # if it was trained without a return that the pruner is to see, or with one of other episodes.
            if task.is_beyond(self.epochs) or self._lacks_reports(task):
                task = self._make(None).init(**values)
            try:
                value = self._train(trial, task)
                return value if [*self.objectives] == [self.metric] else self._measure(task, value, values)
            except (Diverged, Hung, Unmeasured) as error:
                return self._failed(trial, error)

    def _failed(self, trial: optuna.Trial, error: Exception) -> float | list[float]:
        """Note why a trial failed; return what Optuna takes for that."""
        trial.set_user_attr("rk_error", class_and_text(error))
        return math.nan if len(self.objectives) == 1 else [math.nan] * len(self.objectives)

    def _check_directions(self, trial: optuna.Trial) -> None:
        study = getattr(trial, "study", None)  # a FixedTrial has none
        expected = [*self.objectives.values()]
        directions = [direction.name.lower() for direction in study.directions] if study else expected
        if directions != expected:
            declared = ", ".join(f"{direction} {name}" for name, direction in self.objectives.items())
            raise ValueError(
                f"Objective: the directions of the study must be those of the objectives ({declared}), but they are "
                f"{', '.join(directions)}; make it with optuna.create_study(directions={expected})"
            )

    def _check_code(self, trial: optuna.Trial) -> None:
        """Raise MachineMismatch if the study began with other code.

        The code of a new study is noted.
        """
        files, study = dict(self.algorithm.learner.files()), getattr(trial, "study", None)
        if study is None or not files:
            return
        noted = study.user_attrs.get(ATTRIBUTE, {} if self.code else files)
        if not self.code:
            check_files(f"the study {study.study_name!r} of Optuna", noted, files, IN_PYTHON)
        if files != study.user_attrs.get(ATTRIBUTE):
            study.set_user_attr(ATTRIBUTE, files)

    def _check_enqueued(self, trial: optuna.Trial) -> None:
        """Raise ValueError if Optuna would ignore enqueued values."""
        fixed = _stored(trial).system_attrs.get("fixed_params", {}) if hasattr(trial, "study") else {}
        if other := sorted(fixed.keys() & self.space.flat().keys() - self.distributions.keys()):
            raise ValueError(
                "Objective: values are enqueued with the names of Optuna's parameters, "
                f"{', '.join(self.distributions)}, but got {', '.join(other)}, which Optuna ignores; write "
                "study.enqueue_trial(objective.params(...)), which takes the names of hyperparameters"
            )

    def _measure(self, task: Task, value: float, values: dict[str, Any]) -> list[float]:
        measured = measure(self.objectives, task, value, lambda: self._make(None).init(**values))
        return [measured[name] for name in self.objectives]

    def _train(self, trial: optuna.Trial, task: Task) -> float:
        reported = _reported_epochs(trial)

        def at_epoch_end(event: EpochEvent) -> None:
            if self._reports(event.epoch) or event.epoch == self.epochs:
                # A signal ends the evaluation between two steps; the training so far is saved then.
                score = task.finite(task.evaluate(on_step=Interrupts.raise_if_asked))
                event.metrics.update(task.score_metrics(score))
                self._tell(trial, reported, event.epoch, event.metrics[self.metric])

        try:
            for epoch, metrics in task.history:  # report what an earlier run, stopped at any epoch, could not
                score = task.score_in(metrics)
                if score is None and self._reports(epoch):
                    score = task.finite(task.evaluate())  # it is the last epoch, see _lacks_reports
                    metrics |= task.score_metrics(score)
                if score is not None:
                    self._tell(trial, reported, epoch, score)
            task.fit(self.epochs, at_epoch_end)
        finally:
            if task.bad is None:
                trial.set_user_attr("rk_epochs", task.epochs)
                trial.set_user_attr("rk_digest", task.digest)
        return task.score_epoch()

    def _lacks_reports(self, task: Task) -> bool:
        """Return whether an epoch to report lacks a comparable return."""
        return any(
            self._reports(epoch) and task.score_in(metrics) is None and (epoch < task.epochs or task.is_beyond(epoch))
            for epoch, metrics in task.history
        )

    def _reports(self, epoch: int) -> bool:
        return self.report > 0 and epoch % self.report == 0

    def _tell(self, trial: optuna.Trial, reported: Collection[int], epoch: int, value: float) -> None:
        if not self._reports(epoch):
            return
        if epoch not in reported:
            trial.report(value, epoch)
        if epoch < self.epochs and trial.should_prune():
            raise optuna.TrialPruned(f"pruned after {epoch} epochs with a {self.metric} of {in_digits_alone(value)}")

    def _make(self, storage: Store | None) -> Task:
        return self.algorithm(self.env, seed=self.seed, storage=storage, **self.how, **self.fixed)


def _reported_epochs(trial: optuna.Trial) -> Collection[int]:
    """Return the epochs that were reported before a retry.

    Optuna accepts a report for each epoch only once.
    """
    return _stored(trial).intermediate_values if hasattr(trial, "study") else ()  # a FixedTrial has no study


def _stored(trial: optuna.Trial) -> optuna.trial.FrozenTrial:
    return trial.study.get_trials(deepcopy=False)[trial.number]
