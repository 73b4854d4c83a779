"""Hunts: studies that the released Orion runs, on the store's database.

    client = hunt(PPO, "CartPole-v1", name="cartpole", storage="sqlite:///studies.db", algorithm="asha",
                  epochs=fidelity(1, 27, 3), max_trials=40, search=["optimizer.lr", "gamma"])
    client.stats.best_evaluation      # minus the best return

Orion's experiment, trials and algorithm live in tables of that database, the checkpoints beside them: a trial that
Orion promotes resumes from the checkpoint of the lower rung. The same call, in another process or on another machine,
joins or resumes the hunt.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...spaces.drivers.to_orion import from_params, priors
from ...spaces.ranges import Fidelity
from ...tasks.errors import Diverged, Hung, Stopped
from ...tasks.registry import load
from ...tasks.runtime import progress
from ..errors import LeaseLost, StudyMismatch
from ..storage.store import Store
from ..study.config import check_epochs
from ..study.durations import seconds_of
from ..study.searched import defaults_except
from .trial import INTERRUPTED, Results, train, whole
from .trial_rows import parent_of

try:
    from . import db  # noqa: F401 - silences the warnings of orion's imports
except ImportError as error:
    raise ImportError(f"hunts need Orion: pip install 'pip<26' 'rekindle[orion]' ({error})") from error

from .algorithms import algorithm_config, changeable, grid_priors, is_grid, is_population  # isort: skip

import orion.core  # isort: skip
from orion.client import ExperimentClient, get_experiment  # isort: skip
from orion.core.io.experiment_builder import ExperimentBuilder  # isort: skip
from orion.core.utils.exceptions import LazyWorkers, NoConfigurationError  # isort: skip
from orion.core.worker.consumer import ExecutionError  # isort: skip
from orion.core.worker.trial import Trial  # isort: skip

if TYPE_CHECKING:
    from ...tasks.checkpoint.storage import Storage
    from ...tasks.task import Task

KEY, FIDELITY = "rekindle", "epochs"  # of the experiment's metadata, where it says what is hunted; and of the space

log = logging.getLogger(__name__)


class OrionObjective:
    """A task's training as the objective of Orion's trials.

    It serves ``client.workon(objective)``, with any algorithm and executor.

    Called with a trial's parameters, it returns Orion's results: minus the return, which Orion minimises, and as
    statistics rk_uid, rk_resumed (epochs that a lower rung had done), rk_epochs and rk_digest. A trial with a NaN
    raises Diverged: Orion marks it broken, and the reason is kept with the task. So does one whose simulator hangs
    twice in a row (Hung), in a process of its own (``env_processes=1``) that is killed and replaced. One that SIGTERM
    stops is interrupted, with everything saved.

    Orion's PBT branches a trial from another one's state: ``client.workon(objective, trial_arg="trial")`` names it, if
    Orion's experiments are in the database of the tasks.

    Args:
        task: the algorithm, such as PPO or "ppo".
        env: see `Task`.
        epochs: number of epochs of each trial in all; or a fidelity, from which Orion chooses.
        storage: a URL; may be, and best is, Orion's own database.
        seed: of the training of every trial.
        search: dotted names of the searched hyperparameters, the others having their defaults; None: all.
        stuck: seconds, or text such as "10m", after which an environment process that makes no step is killed; None:
            never.
        fixed: hyperparameters that are not searched, nested.
    """

    def __init__(
        self,
        task: type[Task] | str,
        env: Any = None,
        *,
        storage: str,
        epochs: int | Fidelity = 1,
        seed: int = 0,
        search: Sequence[str] | None = None,
        stuck: float | str | None = progress.STUCK,
        **fixed: Any,
    ):
        self.stuck = seconds_of("OrionObjective: stuck", stuck)
        task = load(task) if isinstance(task, str) else task
        self.algorithm, self.storage, self.seed, self.fixed = task, storage, seed, fixed
        first = task(env, seed=seed, **fixed)  # checks all that was given
        self.env, space = first.env, first.get_space()
        if search is not None:
            space = space.fix(defaults_except(space, search))
        check_epochs([epochs.low, epochs.high] if isinstance(epochs, Fidelity) else [epochs])
        if isinstance(epochs, Fidelity):
            space = space.extend(**{FIDELITY: epochs})
        self.space, self.epochs = space, epochs
        self.stopped: BaseException | None = None
        self._store: Store | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process, which opens the store again."""
        return {**vars(self), "_store": None, "_lock": None, "stopped": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """The store of the tasks, opened when it is first needed."""
        with self._lock:
            if self._store is None:
                self._store = Store(self.storage)
            return self._store

    def close(self) -> None:
        """Close the store; the next call opens it again."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    @property
    def identity(self) -> dict[str, Any]:
        """The subject of the hunt, as JSON.

        Two hunts of one name must agree on it.
        """
        epochs = self.epochs if isinstance(self.epochs, int) else "searched"
        first = self.make(None)
        return {
            "task": first.name,
            "version": first.version,
            "env": first.env.to_json(),
            "seed": self.seed,
            "fixed": first.fixed,
            "epochs": epochs,
            "space": priors(self.space),
        }

    def make(self, storage: Storage | None) -> Task:
        """Return the task, before it has its hyperparameters."""
        return self.algorithm(self.env, seed=self.seed, storage=storage, **self.fixed)

    def __call__(self, trial: Trial | None = None, **params: Any) -> Results:
        """Return Orion's results for a trial's parameters.

        The trial itself names its parent.
        """
        if FIDELITY in params:
            params[FIDELITY] = whole(params[FIDELITY])
        values = from_params(self.space, params)
        epochs = values.pop(FIDELITY, self.epochs)
        try:
            parent = parent_of(self.storage, trial.experiment, trial.id) if trial and trial.parent else None
            with progress.limited(self.stuck):
                return train(self.make, values, epochs, self.store, parent=parent)
        except (Stopped, LeaseLost) as error:
            self.stopped = error
            raise ExecutionError(orion.core.config.worker.interrupt_signal_code or INTERRUPTED) from error


def hunt(
    task: type[Task] | str,
    env: Any = None,
    *,
    name: str,
    storage: str,
    max_trials: int,
    algorithm: str | Mapping[str, Any] = "tpe",
    epochs: int | Fidelity = 1,
    seed: int = 0,
    workers: int = 1,
    search: Sequence[str] | None = None,
    idle_timeout: int = 60,
    stuck: float | str | None = progress.STUCK,
    **fixed: Any,
) -> ExperimentClient:
    """Hunt until `max_trials` or the algorithm's end; return Orion's client.

    A trial that diverges, or hangs again and again, is broken and the hunt continues; every other error ends it.

    Args:
        task: see `OrionObjective`, like env, storage, epochs, seed, search, stuck and fixed.
        env: of the task.
        name: of Orion's experiment.
        storage: a URL.
        max_trials: as Orion counts: every rung of a configuration is a trial.
        algorithm: the name of one that Orion has installed, or {name: {option: value}}; it gets `seed` unless it has
            one. A population (pbt) searches only hyperparameters that may change while a task trains.
        epochs: of each trial.
        seed: of trainings and suggestions.
        workers: number of trials that this process trains at a time, each in a process if more than one.
        search: dotted names of the searched hyperparameters.
        idle_timeout: seconds to wait while the algorithm suggests nothing and no worker trains.
        stuck: of environment processes.
        fixed: hyperparameters that are not searched, and other arguments of the task, such as device="cuda" and
            env_processes=1.

    Raises:
        Stopped: after SIGTERM.
        SpaceError: Orion cannot express a prior.
        ValueError: Orion lacks the algorithm.
        StudyMismatch: another hunt has the name.
        LazyWorkers: Orion's, after `idle_timeout`.
    """
    for word, value in (("workers", workers), ("max_trials", max_trials), ("idle_timeout", idle_timeout)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{word} must be an integer of at least 1, but got {value!r}")
    task = load(task) if isinstance(task, str) else task
    chosen = algorithm_config(algorithm, seed, epochs)
    if is_population(chosen):
        search = changeable(task(env, seed=seed, **fixed).get_space(), search)
    how: dict[str, Any] = {"search": search, "stuck": stuck}
    objective = OrionObjective(task, env, storage=storage, epochs=epochs, seed=seed, **how, **fixed)
    client = _experiment(name, objective, storage, chosen, max_trials)
    try:
        with client.tmp_executor("poolexecutor" if workers > 1 else "singleexecutor", n_workers=workers):
            while True:
                before = _states(client)
                try:
                    client.workon(
                        objective,
                        n_workers=workers,
                        max_trials=max_trials,
                        max_broken=max(3, max_trials),
                        trial_arg="trial",
                        on_error=_on_error,
                        prepare_trial=_no_directory,
                        idle_timeout=idle_timeout,
                    )
                    return client
                except LazyWorkers:
                    if _states(client) == before and not _others_train(client):
                        raise
    except KeyboardInterrupt as error:
        if objective.stopped is not None:
            raise objective.stopped from error
        raise
    finally:
        objective.close()


def _states(client: ExperimentClient) -> set[tuple[str, str]]:
    """Return the trials' states, which differ after any worker's act."""
    return {(trial.id, trial.status) for trial in client.fetch_trials()}


def _others_train(client: ExperimentClient) -> bool:
    """Return whether living workers train trials.

    The algorithm may be waiting for the end of these.
    """
    lost = {trial.id for trial in client.storage.fetch_lost_trials(client)}
    waiting = [trial for trial in client.fetch_trials_by_status("reserved") if trial.id not in lost]
    if waiting:
        log.info("nothing to do until other workers have trained %d trials", len(waiting))
    return bool(waiting)


def storage_of(url: str) -> dict[str, Any]:
    """Return the configuration of Orion's storage at this URL, for `build_experiment`."""
    return {"type": "rekindlestorage", "database": {"type": "rekindlesql", "host": url}}


def _experiment(
    name: str, objective: OrionObjective, url: str, algorithm: dict[str, Any], max_trials: int
) -> ExperimentClient:
    """Return Orion's experiment of this name, created if it is new.

    Raise StudyMismatch if it hunts something else.
    """
    identity = json.loads(json.dumps({**objective.identity, "algorithm": algorithm}))
    with suppress(NoConfigurationError):
        _check_same(name, get_experiment(name, storage=storage_of(url)).metadata.get(KEY), identity)
    space = grid_priors(identity["space"]) if is_grid(algorithm) else identity["space"]
    # What is hunted is written together with the experiment, for others that begin the same hunt at this moment.
    metadata = {"user": getpass.getuser(), KEY: json.dumps(identity)}
    experiment = ExperimentBuilder(storage_of(url)).build(
        name,
        space=space,
        algorithm=algorithm,
        max_trials=max_trials,
        max_broken=max(3, max_trials),
        metadata=metadata,
        working_dir=os.path.join(tempfile.gettempdir(), "orion"),
    )
    return ExperimentClient(experiment)


def _check_same(name: str, known: str | None, identity: Mapping[str, Any]) -> None:
    if known is None:
        raise StudyMismatch(
            f"the experiment {name} was not begun by a hunt from Python, and cannot be resumed by "
            "one; give this hunt another name"
        )
    if (stored := json.loads(known)) != identity:
        names = sorted(key for key in identity.keys() | stored.keys() if identity.get(key) != stored.get(key))
        raise StudyMismatch(
            f"a hunt of one name hunts one thing, but {name} was begun with another "
            f"{' and another '.join(names)}; give this one another name"
        )


def _on_error(runner: Any, trial: Any, error: BaseException, broken: int) -> bool:
    """Continue after a trial that diverged or hung.

    Any other error would happen again.
    """
    if isinstance(error, Diverged | Hung):
        return False
    raise error


def _no_directory(client: Any, trial: Any) -> None:
    """Prepare nothing, as no directory is copied.

    The state is in the database.
    """
