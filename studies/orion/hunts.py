"""Hunts: studies that the released Orion runs, on the store's database.

    client = hunt(PPO, "CartPole-v1", name="cartpole", storage="sqlite:///studies.db", algorithm="asha",
                  epochs=fidelity(1, 27, 3), max_trials=40, search=["optimizer.lr", "gamma"])
    client.stats.best_evaluation      # minus the best return

Orion's experiment, trials and algorithm are stored in tables of that database, beside the checkpoints. A trial that
Orion promotes resumes from the checkpoint of the lower rung. The same call in another process, on any machine, joins or
resumes the hunt.
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
from ...spaces.values import argument
from ...tasks.errors import Diverged, Hung, Stopped
from ...tasks.registry import load
from ...tasks.runtime import STUCK, progress
from ..errors import LeaseLost, StudyMismatch
from ..options.durations import seconds_of
from ..storage.sql.database import full_url
from ..storage.store import Store
from ..study.code import FILES, IN_PYTHON, check_files
from ..study.config import check_epochs, parse_epochs
from ..study.searched import defaults_except
from .trial import INTERRUPTED, Results, train, whole
from .trial_rows import parent_of

try:
    from . import db  # noqa: F401 - silences the warnings of orion's imports
except ImportError as error:
    raise ImportError(f"hunts need Orion: pip install 'pip<26' 'rekindle-rl[orion]' ({error})") from error

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

KEY, FIDELITY = "rekindle", "epochs"  # key of a hunt's identity in an experiment's metadata; name of the fidelity

log = logging.getLogger(__name__)


def total_or_fidelity(epochs: int | str | Sequence[int] | Fidelity) -> int | Fidelity:
    """Return a number of epochs, or a fidelity from which Orion chooses.

    Raises:
        BadConfig: it is neither.
    """
    if isinstance(epochs, Fidelity):
        check_epochs([epochs.low, epochs.high])
        return epochs
    low, high, base = parse_epochs(argument(epochs))
    return high if low == high else Fidelity(low=low, high=high, base=base)


class OrionObjective:
    """A task's training as the objective of Orion's trials.

    Use it as ``client.workon(objective)``, with any algorithm and executor. Called with a trial's parameters, it
    returns Orion's results: minus the return, since Orion minimizes, and the statistics rk_uid, rk_resumed (epochs
    trained before this trial), rk_epochs and rk_digest.

    A NaN raises Diverged: Orion marks the trial broken, and the reason is stored with the task. A simulator that hangs
    raises Hung if it runs in a process of its own (``env_processes=1``). That process is killed and replaced, and
    the trial is broken if it hangs twice in a row. A trial that SIGTERM stops is saved and interrupted.

    Orion's PBT branches trials from each other's states. Pass ``client.workon(objective, trial_arg="trial")`` then, and
    keep Orion's experiments in the database of the tasks.

    Args:
        task: task class or name, such as PPO or "ppo".
        env: see `Task`.
        epochs: total epochs of each trial; or a fidelity, from which Orion chooses, also written (1, 27) or "1:27".
        storage: URL of the tasks' database; preferably Orion's own.
        seed: seed of every trial's training.
        search: dotted names of the hyperparameters to search, the others keeping their defaults; None for all.
        stuck: time without a step after which an environment process is killed: seconds, or text such as "10m"; None
            for never.
        code: whether trials continue with the task's code as it is here, though they began with other code.
        fixed: hyperparameters that are not searched, nested, and other arguments of the task.
    """

    def __init__(
        self,
        task: type[Task] | str,
        env: Any = None,
        *,
        storage: str,
        epochs: int | str | Sequence[int] | Fidelity = 1,
        seed: int = 0,
        search: Sequence[str] | None = None,
        stuck: float | str | None = STUCK,
        code: bool = False,
        **fixed: Any,
    ):
        self.stuck, self.code = seconds_of("OrionObjective: stuck", stuck), code
        task = load(task) if isinstance(task, str) else task
        self.algorithm, self.storage, self.seed, self.fixed = task, full_url(storage), seed, fixed
        first = task(env, seed=seed, **fixed)  # checks the arguments
        self.env, space = first.env, first.get_space()
        if search is not None:
            space = space.fix(defaults_except(space, search))
        self.epochs = total_or_fidelity(epochs)
        self.space = space.extend(**{FIDELITY: self.epochs}) if isinstance(self.epochs, Fidelity) else space
        self.stopped: BaseException | None = None
        self._store: Store | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process, which opens its own store."""
        return {**vars(self), "_store": None, "_lock": None, "stopped": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """Store of the tasks, opened at the first use."""
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
        """Everything that hunts of one name must agree on, as JSON."""
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
            FILES: dict(first.learner.files()),
        }

    def make(self, storage: Storage | None) -> Task:
        """Return a task without hyperparameters yet."""
        return self.algorithm(self.env, seed=self.seed, storage=storage, **self.fixed)

    def __call__(self, trial: Trial | None = None, **params: Any) -> Results:
        """Return Orion's results for a trial's parameters.

        Args:
            trial: Orion's trial, which names the parent of a branch.
            params: values by dotted name.
        """
        if FIDELITY in params:
            params[FIDELITY] = whole(params[FIDELITY])
        values = from_params(self.space, params)
        epochs = values.pop(FIDELITY, self.epochs)
        try:
            parent = parent_of(self.storage, trial.experiment, trial.id) if trial and trial.parent else None
            with progress.limited(self.stuck):
                return train(self.make, values, epochs, self.store, parent=parent, code=self.code)
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
    epochs: int | str | Sequence[int] | Fidelity = 1,
    seed: int = 0,
    workers: int = 1,
    search: Sequence[str] | None = None,
    idle_timeout: int = 60,
    stuck: float | str | None = STUCK,
    code: bool = False,
    **fixed: Any,
) -> ExperimentClient:
    """Hunt until `max_trials` or the algorithm's end; return Orion's client.

    A trial that diverges, or hangs repeatedly, is broken and the hunt continues. Any other error ends the hunt.

    Args:
        task: see `OrionObjective`, as for env, storage, epochs, search, stuck, code and fixed.
        env: environment of the task.
        name: name of Orion's experiment.
        storage: URL of the database.
        max_trials: number of trials as Orion counts them: every rung of a configuration is one.
        algorithm: name of an algorithm that Orion has installed, or {name: {option: value}}. It gets `seed` unless it
            has one. A population (pbt) searches only hyperparameters that may change while a task trains.
        epochs: total epochs of each trial, or a fidelity, see `OrionObjective`.
        seed: seed of trainings and suggestions.
        workers: number of trials that this process trains at once; more than one train in processes of their own.
        search: dotted names of the hyperparameters to search.
        idle_timeout: seconds to wait while the algorithm suggests nothing and no worker trains.
        stuck: time limit for environment processes.
        code: whether the hunt continues with other code.
        fixed: hyperparameters that are not searched, and other arguments of the task, such as device="cuda" and
            env_processes=1.

    Raises:
        Stopped: after SIGTERM.
        SpaceError: Orion cannot express a prior.
        ValueError: an argument is out of range, or Orion lacks the algorithm.
        StudyMismatch: another hunt has the name.
        MachineMismatch: the hunt began with other code.
        LazyWorkers: `idle_timeout` has passed (Orion's error).
    """
    workers, max_trials, idle_timeout = argument([workers, max_trials, idle_timeout])
    for word, value in (("workers", workers), ("max_trials", max_trials), ("idle_timeout", idle_timeout)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{word} must be an integer of at least 1, but got {value!r}")
    task, storage = load(task) if isinstance(task, str) else task, full_url(storage)
    epochs = total_or_fidelity(epochs)
    chosen = algorithm_config(algorithm, seed, epochs)
    if is_population(chosen):
        search = changeable(task(env, seed=seed, **fixed).get_space(), search)
    how: dict[str, Any] = {"search": search, "stuck": stuck, "code": code}
    objective = OrionObjective(task, env, storage=storage, epochs=epochs, seed=seed, **how, **fixed)
    client = _experiment(name, objective, storage, chosen, max_trials)
    try:
        with client.tmp_executor("poolexecutor" if workers > 1 else "singleexecutor", n_workers=workers):
            _work(client, objective, workers, max_trials, idle_timeout)
        return client
    except KeyboardInterrupt as error:
        if objective.stopped is not None:
            raise objective.stopped from error
        raise
    finally:
        objective.close()


def _work(
    client: ExperimentClient, objective: OrionObjective, workers: int, max_trials: int, idle_timeout: int
) -> None:
    """Train trials until the hunt is complete.

    Raises:
        LazyWorkers: nobody has trained anything for `idle_timeout` seconds.
    """
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
            return
        except LazyWorkers:  # Orion gives up, though another worker's result may let the algorithm continue
            if _states(client) == before and not _others_train(client):
                raise


def _states(client: ExperimentClient) -> set[tuple[str, str]]:
    """Return the trials' states, which change whenever a worker does anything."""
    return {(trial.id, trial.status) for trial in client.fetch_trials()}


def _others_train(client: ExperimentClient) -> bool:
    """Return whether living workers train trials.

    The algorithm may be waiting for their results.
    """
    lost = {trial.id for trial in client.storage.fetch_lost_trials(client)}
    waiting = [trial for trial in client.fetch_trials_by_status("reserved") if trial.id not in lost]
    if waiting:
        log.info("nothing to do until other workers have trained %d trials", len(waiting))
    return bool(waiting)


def storage_of(url: str) -> dict[str, Any]:
    """Return a configuration of Orion's storage, for `build_experiment`."""
    return {"type": "rekindlestorage", "database": {"type": "rekindlesql", "host": url}}


def _user() -> str:
    """Return the user's name, which Orion stores.

    Raises:
        ValueError: the user has none.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container, the user may have no name
        raise ValueError(
            f"Orion stores who hunts, but user {os.getuid()} has no name on this machine; set one, as in USER=me"
        ) from None


def _experiment(
    name: str, objective: OrionObjective, url: str, algorithm: dict[str, Any], max_trials: int
) -> ExperimentClient:
    """Return Orion's experiment of this name; create it if it is new.

    Raises:
        StudyMismatch: the experiment belongs to another hunt.
        MachineMismatch: the hunt began with other code.
    """
    identity = json.loads(json.dumps({**objective.identity, "algorithm": algorithm}))
    with suppress(NoConfigurationError):
        client = get_experiment(name, storage=storage_of(url), mode="w")
        files = _check_same(name, client.metadata.get(KEY), identity)
        if files != identity[FILES]:
            if not objective.code:
                check_files(f"the hunt {name!r}", files, identity[FILES], IN_PYTHON)
            metadata = {**client.metadata, KEY: json.dumps(identity)}
            client.storage.update_experiment(uid=client.id, metadata=metadata)
    space = grid_priors(identity["space"]) if is_grid(algorithm) else identity["space"]
    # The identity is written together with the experiment, so that a process that joins at this moment can read it.
    metadata = {"user": _user(), KEY: json.dumps(identity)}
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


def _check_same(name: str, stored_text: str | None, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a hunt's code, which may differ.

    Raises:
        StudyMismatch: anything else differs.
    """
    if stored_text is None:
        raise StudyMismatch(
            f"the experiment {name} was not started by a hunt from Python, and cannot be resumed by "
            "one; give this hunt another name"
        )
    stored = json.loads(stored_text)
    files: dict[str, str] = stored.pop(FILES, identity[FILES])
    if stored != (identity := {key: value for key, value in identity.items() if key != FILES}):
        names = sorted(key for key in identity.keys() | stored.keys() if identity.get(key) != stored.get(key))
        raise StudyMismatch(
            f"hunts of the same name must be equal, but {name} was started with another "
            f"{' and another '.join(names)}; give this one another name"
        )
    return files


def _on_error(runner: Any, trial: Any, error: BaseException, broken: int) -> bool:
    """Continue after a trial that diverged or hung.

    Any other error would happen again.
    """
    if isinstance(error, Diverged | Hung):
        return False
    raise error


def _no_directory(client: Any, trial: Any) -> None:
    """Copy no directory, since the state is in the database."""
