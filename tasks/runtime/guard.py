"""Guard against the use of a half-changed state."""

from __future__ import annotations

import sys
from typing import Protocol, Self

from ..errors import BadResume, StateMismatch, Stopped, class_and_text


class Guarded(Protocol):
    """A task, as the guard sees it.

    Attributes:
        bad: the first exception that broke the task, or None.
        between_steps: whether its state is consistent right now.
    """

    bad: BaseException | None
    between_steps: bool

    def fail(self, error: BaseException) -> None:
        """Mark the task as bad."""


def is_control_flow(error: BaseException) -> bool:
    """Return whether an exception is a request to stop, not a defect."""
    optuna = sys.modules.get("optuna")  # not imported: without Optuna loaded, nobody can have raised TrialPruned
    pruned = (optuna.TrialPruned,) if optuna else ()
    return isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, Stopped, *pruned))


class BadResumeGuard:
    """Context manager around fit, state_dict and load_state_dict.

    An exception inside marks the tasks as bad. Entering it with a bad task raises BadResume, with the first exception
    as its cause. Between two steps, two kinds of exceptions leave a task clean: control flow (KeyboardInterrupt,
    SystemExit, Stopped, optuna.TrialPruned), and StateMismatch, which refuses a state before anything changes.

    Args:
        tasks: the tasks to guard.

    Raises:
        BadResume: a task is bad.
    """

    def __init__(self, *tasks: Guarded):
        self.tasks = tasks

    def __enter__(self) -> Self:
        for task in self.tasks:
            if task.bad is not None:
                raise BadResume(
                    f"{task} broke with {class_and_text(task.bad)}. Its state may be half-changed, "
                    "so it is not used again. Build a new task with the same hyperparameters and storage: it resumes "
                    "from the last good checkpoint"
                ) from task.bad
        return self

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        for task in self.tasks:
            harmless = is_control_flow(error) or isinstance(error, StateMismatch)  # a refusal comes before any change
            if task.bad is None and not (task.between_steps and harmless):
                task.fail(error)
