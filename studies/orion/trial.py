"""One trial of Orion's: a task trained to so many epochs, and its result in Orion's form.

A promoted trial is a new one to Orion, with the same hyperparameters and more epochs. To Rekindle it is the same task,
whose uid leaves out the epochs: it carries on from the checkpoint of the lower rung, on whichever machine. One that
Orion branched from another one, with other hyperparameters, starts from that one's state (see orion_parents.py).

``rekindle train`` comes here when it runs under ``orion hunt``. This module imports neither orion nor torch at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from ...spaces import Space
    from ...tasks.cohort import EpochEvent
    from ...tasks.storage import Storage
    from ...tasks.task import Task
    from ..storage.branches import Start
    from ..storage.store import Store

    Make = Callable[[Storage | None], Task]  # a task that is not initialized yet

RESULTS_VARIABLE = "ORION_RESULTS_PATH"  # Orion sets it for the programs it runs, and reads the file when they end
INTERRUPT_VARIABLE = "ORION_INTERRUPT_CODE"
TRIAL_VARIABLE, EXPERIMENT_VARIABLE = "ORION_TRIAL_ID", "ORION_EXPERIMENT_ID"
INTERRUPTED = 130  # the exit status by which a program says that its trial is to be tried again

PASSING = ("memory", "environment", "unknown")  # the kinds of failures that may pass while this process lives

Results = list[dict[str, Any]]


def results(returns: float, **statistics: Any) -> Results:
    """What Orion is told. It minimises: this is the one place where the return is negated."""
    more = [{"name": f"rk_{name}", "type": "statistic", "value": value} for name, value in statistics.items()]
    return [{"name": "negative_return", "type": "objective", "value": -returns}, *more]


def train(make: Make, values: Mapping[str, Any], epochs: int, store: Store, *, parent: Start | None = None,
          warm: str | None = None, use_previous: bool = False,
          at_epoch_end: Callable[[EpochEvent], None] = lambda event: None) -> Results:  # fmt: skip
    """Trains the task of these hyperparameters to `epochs` in all, from its last checkpoint if there is one.

    The statistics are ``rk_uid``, ``rk_resumed`` (the epochs that were done already), ``rk_epochs`` and ``rk_digest``
    (of the whole state). Waits while another process trains the task. What passes is tried again, as in a study (see
    failures.py). Raises Diverged, whose reason is also kept with the task, Stopped, and what else goes wrong.

    Args:
        parent: where the trial ended from which Orion branched this one.
        warm: the digest of the stored policy that all trials start from.
        use_previous: whether a damaged checkpoint may be replaced by the sound one before it.
    """
    start = warm
    if parent is not None:
        from .parents import start_of

        start = start_of(store, make(None).init(**values).identity, parent)
    while True:
        try:
            return _train_once(make, {**values, "start": start}, epochs, store, use_previous, at_epoch_end)
        except _Passing as passing:
            _say(f"tried again in {passing.pause:.0f} s: {passing}")
            time.sleep(passing.pause)


class _Passing(Exception):
    """A failure of the trial's surroundings."""

    def __init__(self, error: Exception, pause: float):
        super().__init__(f"{type(error).__name__}: {' '.join(str(error).split())}")
        self.pause = pause


def _train_once(make: Make, values: Mapping[str, Any], epochs: int, store: Store, use_previous: bool,
                at_epoch_end: Callable[[EpochEvent], None]) -> Results:  # fmt: skip
    from ...tasks.errors import Diverged
    from ..report import RETURN
    from ..turns import opened

    def evaluate(event: EpochEvent) -> None:
        if event.epoch == epochs:
            event.metrics[RETURN] = event.task.evaluate()
        at_epoch_end(event)

    start = values["start"]
    with opened(lambda: make(_storage(store, start, use_previous)), values) as task:
        resumed = task.epochs
        try:
            # What is stored may be further than this trial goes: the same bits are trained anew, without the storage.
            if task.epochs > epochs and start is None:
                task, resumed = make(None).init(**values), 0
            elif task.epochs > epochs:
                from ..lineage import lineage, retrain

                task, resumed = retrain(lineage(store, task.uid), epochs, evaluate), 0
            metrics = task.fit(epochs, evaluate)
        except Diverged as error:
            _keep_reason(store, task, error)
            raise
        except Exception as error:  # an environment may raise anything; nothing is swallowed
            if (pause := _pause(store, task, error)) is None:
                raise
            raise _Passing(error, pause) from error
        score = metrics[RETURN] if RETURN in metrics else task.evaluate()
        return results(score, uid=task.uid, resumed=resumed, epochs=task.epochs, digest=task.digest)


def _storage(store: Store, start: str | None, use_previous: bool) -> Storage:
    if start is None and not use_previous:
        return store
    from ..training import TaskStorage  # brings Optuna along, which takes a second

    return TaskStorage(store, use_previous)


def _pause(store: Store, task: Task, error: Exception) -> float | None:
    """Seconds until a trial is tried again that failed so, which is noted with its task; None if it is not."""
    from ...tasks.storage import Write
    from ..errors import StoreError
    from ..failures import FAILED, classify, decide, note
    from ..storage.history import History

    if classify(error) not in PASSING:
        return None
    tried = store.histories([task.uid]).get(task.uid, History()).failed
    decision = decide(error, tried[classify(error)])
    with suppress(StoreError):
        [row] = store.tasks([task.uid])
        with store.open(task.uid, task.identity) as lease:
            store.save([Write(lease, row.epochs, events=[(FAILED, note(error, decision, row.epochs))])])
    return decision.pause if decision.retry else None


def _keep_reason(store: Store, task: Task, error: Exception) -> None:
    """Notes with the task why its trial is broken, since a trial of Orion's has no room for it."""
    from ...tasks.storage import Write
    from ..errors import StoreError

    with suppress(StoreError):
        lease = store.open(task.uid, task.identity)
        try:
            store.save([Write(lease, task.epochs, events=[("broken", {"error": f"{type(error).__name__}: {error}"})])])
        finally:
            lease.release()


# --- under `orion hunt` ---


def is_under_orion() -> bool:
    """Whether Orion runs this process and waits for its result."""
    return RESULTS_VARIABLE in os.environ


def storage_url() -> str | None:
    """Orion's own database, if its environment names one that can keep checkpoints too."""
    address = os.environ.get("ORION_DB_ADDRESS")
    if not is_under_orion() or not address or os.environ.get("ORION_DB_TYPE", "").lower() != "rekindlesql":
        return None
    return address if "://" in address else f"sqlite:///{address}"


def run(arguments: argparse.Namespace) -> int:
    """What ``rekindle train`` does under Orion; returns the exit status that Orion understands.

    0: the result is written. ORION_INTERRUPT_CODE: stopped by a signal or overtaken, and Orion will try the trial
    again. Whatever is raised is said by the caller, with another status: the trial is broken.
    """
    again = int(os.environ.get(INTERRUPT_VARIABLE, INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(again))  # while nothing is trained; see Interrupts

    from ...tasks.errors import Stopped
    from ..errors import LeaseLost

    try:
        found = _train(arguments)
    except (KeyboardInterrupt, Stopped, LeaseLost) as error:
        _say(f"the trial is interrupted: {' '.join(str(error).split()) or 'stopped by SIGINT'}")
        return again
    except Exception:  # whatever it was: who takes the trial next is to know that it ended by itself
        _note_failure()
        raise
    with open(os.environ[RESULTS_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(found, file)
    _say(", ".join(f"{row['name'].removeprefix('rk_')} {row['value']}" for row in found))
    return 0


def _train(arguments: argparse.Namespace) -> Results:
    from ...tasks import load
    from ..storage.patience import Patience
    from ..storage.store import Store
    from ..warming import check_start, counted, is_given, warm_start

    check_start(arguments)
    algorithm, space = load(arguments.task), load(arguments.task).learner.hyperparameters
    env = json.loads(arguments.env) if arguments.env.lstrip().startswith("{") else arguments.env
    values = counted(_active(space, space.parse(*arguments.set)), arguments)
    epochs = _epochs(arguments.epochs)

    def make(storage: Storage | None) -> Task:
        what = {"seed": arguments.seed, "env_processes": arguments.env_processes, "snapshots": arguments.snapshots}
        return algorithm(env, storage=storage, **what)

    def at_epoch_end(event: EpochEvent) -> None:
        shown = (name for name in ("episode_return", "return") if name in event.metrics)
        _say(f"epoch {event.epoch}/{epochs}  " + "  ".join(f"{name} {event.metrics[name]:.5g}" for name in shown))

    make(None).init(**values)  # what is wrong with them is said before a database is made
    patience = Patience(arguments.patience, full=True, say=_say)
    with Store(arguments.storage, patience=patience) as store:
        warm = None
        if is_given(arguments):
            warm = warm_start(store, make(None), values, arguments, _say)
        return train(make, values, epochs, store, parent=_parent(), warm=warm, use_previous=arguments.use_previous,
                     at_epoch_end=at_epoch_end)  # fmt: skip


def _place() -> tuple[str, int, str] | None:
    """The database, the experiment and the trial, if they are in a database that is ours too."""
    url, trial, experiment = (storage_url(), os.environ.get(TRIAL_VARIABLE), os.environ.get(EXPERIMENT_VARIABLE, ""))
    if url is None or trial is None or not experiment.isdecimal():
        return None
    return url, int(experiment), trial


def _parent() -> Start | None:
    """Where the trial ended from which Orion branched this one."""
    if (place := _place()) is None:
        return None
    from .parents import parent_of

    return parent_of(*place)


def _note_failure() -> None:
    """Says in Orion's database that the trial failed by itself, and was not killed."""
    from ..errors import StoreError

    if (place := _place()) is not None:
        from .attempts import note_failure

        with suppress(StoreError):  # then it is tried again, which finds out
            note_failure(*place)


def whole(epochs: float) -> int:
    """Epochs as Orion gives them: as floats, of which its PBT also gives fractions; the nearest number is meant."""
    return round(epochs)


def _epochs(text: str) -> int:
    from ..config import check_epochs, parse_epochs

    with suppress(ValueError, OverflowError):
        return check_epochs([whole(float(text))])[0]
    low, high, _ = parse_epochs(text)
    if low != high:
        raise ValueError(f"under Orion a trial has one number of epochs, such as --epochs~'fidelity({low}, {high})' "
                         f"gives it, but got --epochs {text}")  # fmt: skip
    return high


def _active(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that do not apply: Orion knows no conditions and gives every hyperparameter one."""
    from ...spaces import flatten, unflatten

    given = flatten(values)
    applying = flatten(space.decide(lambda path, dimension: given.get(path, dimension.default)))
    return unflatten({path: value for path, value in given.items() if path in applying})


def _say(text: str) -> None:
    sys.stderr.write(f"rekindle: {text}\n")
    sys.stderr.flush()
