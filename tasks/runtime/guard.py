"""Guard against the use of a half-changed state."""

from __future__ import annotations

import sys
from typing import Protocol, Self

from ..errors import BadResume, StateMismatch, Stopped


class Guarded(Protocol):
    """A task, for the guard.

    Attributes:
        bad: the first exception that broke the task, or None.
        between_steps: whether its state is whole at this moment.
    """

    bad: BaseException | None
    between_steps: bool

    def fail(self, error: BaseException) -> None:
        """Mark the task bad."""


def is_control_flow(error: BaseException) -> bool:
    """Return whether an exception asks to stop rather than reports a defect."""
    optuna = sys.modules.get("optuna")  # asked for, never imported: a TrialPruned exists only where Optuna is loaded
    pruned = (optuna.TrialPruned,) if optuna else ()
    return isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, Stopped, *pruned))


class BadResumeGuard:
    """Context manager around fit, state_dict and load_state_dict.

    An exception inside marks the task bad, and a bad task raises BadResume with that first cause when it is entered
    again. Between two steps, control flow (KeyboardInterrupt, SystemExit, Stopped, optuna.TrialPruned) and the refusal
    of a foreign state leave it clean.
    """

    def __init__(self, *tasks: Guarded):
        self.tasks = tasks

    def __enter__(self) -> Self:
        for task in self.tasks:
            if task.bad is not None:
                raise BadResume(
                    f"{task} broke with {type(task.bad).__name__}: {task.bad}. Its state may be half-changed, so it "
                    "is not used again. Build a new task with the same hyperparameters and storage: it resumes from "
                    "the last good checkpoint"
                ) from task.bad
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        for task in self.tasks:
            harmless = is_control_flow(error) or isinstance(error, StateMismatch)  # a refusal comes before any change
            if task.bad is None and not (task.between_steps and harmless):
                task.fail(error)
