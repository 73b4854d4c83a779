"""A trial of Orion's: training to an epoch, and the result.

To Orion, a promoted trial is a new trial, with the same hyperparameters and more epochs. To Rekindle it is the same
task, since the uid does not depend on the epochs. It resumes from the checkpoint of the lower rung, on any machine. A
trial that Orion branches from another, with other hyperparameters, starts from that trial's state (see trial_rows.py).

Importing this module imports neither orion nor torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...tasks.errors import class_and_text, text_of

if TYPE_CHECKING:
    from ...tasks.base_learner import BaseLearner
    from ...tasks.checkpoint.storage import Storage
    from ...tasks.runtime.observers import EpochEvent
    from ...tasks.task import Task
    from ..storage.branches import Start
    from ..storage.store import Store

    Make = Callable[[Storage | None], Task]  # returns a task that is not initialized yet

RESULTS_VARIABLE = "ORION_RESULTS_PATH"  # set by Orion for the programs that it runs; it reads the file at their end
INTERRUPTED = 130  # exit status that tells Orion to retry the trial

PASSING = ("memory", "environment", "unknown")  # kinds of failures that are retried in the same process

Results = list[dict[str, Any]]


def results(value: float, learner: type[BaseLearner], **statistics: Any) -> Results:
    """Return Orion's results for the value of a learner's objective.

    Orion minimizes. This is the only place that negates the return.
    """
    minimized = learner.direction == "minimize"
    name = learner.objective if minimized else f"negative_{learner.objective}"
    more = [{"name": f"rk_{name}", "type": "statistic", "value": value} for name, value in statistics.items()]
    return [{"name": name, "type": "objective", "value": value if minimized else -value}, *more]


def train(
    make: Make,
    values: Mapping[str, Any],
    epochs: int,
    store: Store,
    *,
    parent: Start | None = None,
    warm: str | None = None,
    use_previous: bool = False,
    code: bool = False,
    at_epoch_end: Callable[[EpochEvent], None] = lambda event: None,
) -> Results:
    """Train the task to a total of `epochs`; return Orion's results.

    Training resumes from the task's last checkpoint. While another process trains the task, the call waits. Transient
    failures are retried, as in a study (see failures.py). The statistics are ``rk_uid``, ``rk_resumed`` (epochs that
    were already trained), ``rk_epochs`` and ``rk_digest`` (of the whole state).

    Args:
        make: function that returns the task, not initialized yet.
        values: hyperparameters.
        epochs: total epochs.
        store: store of the tasks.
        parent: final state of the trial from which Orion branched this one, if any.
        warm: digest of the stored policy that all trials start from, if any.
        use_previous: whether to resume from the previous checkpoint if the last one is damaged.
        code: whether the task may continue with other code than it began with.
        at_epoch_end: function that is called after each epoch.

    Raises:
        Diverged: training diverged; the reason is also stored with the task.
        Hung: the environment hung repeatedly; the reason is also stored with the task.
        Stopped: after SIGTERM.
    """
    from ..workers.waiting import open_when_free
    from .trial_rows import start_of

    def train_again(task: Task) -> Task:
        """Train again without the storage, whose task has more epochs."""
        if start is None:
            return make(None).init(**values)
        from ..engine.lineage import lineage, retrain

        how: dict[str, Any] = {"device": str(task.device), "eval_episodes": task.eval_episodes}
        return retrain(lineage(store, task.uid), epochs, at_epoch_end, **how)

    start = warm
    if parent is not None:
        start = start_of(store, make(None).init(**values).identity.to_json(), parent)
    whole = {**values, "start": start}
    while True:
        with open_when_free(lambda: make(_storage(store, start, use_previous)), whole, code) as task:
            try:
                return _train_once(task, epochs, store, at_epoch_end, train_again)
            except _Transient as error:
                failure = error
        say(f"tried again in {failure.pause:.0f} s: {failure}")
        time.sleep(failure.pause)


class _Transient(Exception):
    """A failure that may pass, with the seconds until the retry."""

    def __init__(self, error: Exception, pause: float):
        super().__init__(f"{type(error).__name__}: {' '.join(text_of(error).split())}")
        self.pause = pause


def _train_once(
    task: Task,
    epochs: int,
    store: Store,
    at_epoch_end: Callable[[EpochEvent], None],
    train_again: Callable[[Task], Task],
) -> Results:
    """Train an initialized task; store the reason if that fails.

    Args:
        task: the task.
        epochs: total epochs.
        store: store of the tasks.
        at_epoch_end: function that is called after each epoch.
        train_again: replaces a task that has more epochs already.

    Raises:
        _Transient: the failure may pass, and the trial has retries left.
    """
    from ...tasks.errors import Diverged, Hung

    resumed = task.epochs
    try:
        _raise_if_hung(store, task)
        if task.is_beyond(epochs):
            task, resumed = train_again(task), 0
        task.fit(epochs, at_epoch_end)
        score = task.score_epoch()
    except (Diverged, Hung) as error:  # Orion's trials have no field for the reason
        _write_event(store, task, task.epochs, "broken", {"error": class_and_text(error)})
        raise
    except Exception as error:  # an environment may raise anything; errors that do not pass are raised again
        if (pause := _pause(store, task, error)) is None:
            raise
        raise _Transient(error, pause) from error
    return results(score, task.learner, uid=task.uid, resumed=resumed, epochs=task.epochs, digest=task.digest)


def _raise_if_hung(store: Store, task: Task) -> None:
    """Raise Hung if the task has hung as often as is allowed."""
    from ...tasks.errors import Hung

    history = store.histories([task.uid]).get(task.uid)
    if history is not None and (verdict := history.final()) and isinstance(verdict[0], Hung):
        raise verdict[0]


def _storage(store: Store, start: str | None, use_previous: bool) -> Storage:
    if start is None and not use_previous:
        return store
    from ..workers.training import TaskStorage  # imports optuna, which takes a second

    return TaskStorage(store, use_previous)


def _pause(store: Store, task: Task, error: Exception) -> float | None:
    """Return the seconds until a failed trial's retry, or None.

    A failure that may pass is stored with the task.
    """
    from ..failures import FAILED, classify, decide, event_data
    from ..storage.failure_history import FailureHistory

    if classify(error) not in PASSING:
        return None
    tried = store.histories([task.uid]).get(task.uid, FailureHistory()).failed
    decision = decide(error, tried[classify(error)])
    epochs = store.reached([task.uid]).get(task.uid, 0)
    _write_event(store, task, epochs, FAILED, event_data(error, decision, epochs))
    return decision.pause if decision.retry else None


def _write_event(store: Store, task: Task, epochs: int, category: str, data: dict[str, Any]) -> None:
    """Store an event with a task.

    The event is lost if the database cannot be written or another process holds the task.
    """
    from ...tasks.checkpoint.storage import Write
    from ..errors import StoreError

    with suppress(StoreError), store.open(task.uid, task.identity.to_json()) as lease:
        store.save([Write(lease, epochs, events=[(category, data)])])


def whole(epochs: float) -> int:
    """Return Orion's epochs rounded; its PBT uses fractions of epochs."""
    return round(epochs)


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"rekindle: {text}\n")
    sys.stderr.flush()


def is_under_orion() -> bool:
    """Return whether Orion runs this process and waits for its result."""
    return RESULTS_VARIABLE in os.environ


def storage_url() -> str | None:
    """Return the URL of Orion's own database, or None.

    The result is None if Orion does not run this process, or if its database cannot hold checkpoints.
    """
    address = os.environ.get("ORION_DB_ADDRESS")
    if not is_under_orion() or not address or os.environ.get("ORION_DB_TYPE", "").lower() != "rekindlesql":
        return None
    return address if "://" in address else f"sqlite:///{address}"
