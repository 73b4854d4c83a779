"""Errors of tasks.

Each message states the rule, the offending value, the place and the remedy.
"""

from __future__ import annotations

import errno
import sys

LOWER_RATES = "try a lower learning rate"  # cure of what diverges, unless the environment is to blame
LAST_LINES = "; its last lines:\n"  # before what a program printed, in a message
INEXACT, ADVICE = "inexact", "advice"  # events of a task, each with a list of texts under the same name
PLAYED = "played"  # event of a task: its environment, and the digest of the episodes that its self-test played
RAISED_BY = "rekindle_environment"  # attribute of exceptions
LARGEST = 1e300  # size of a metric or result; sums and differences of larger ones would be infinite
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory is short."""
    torch = sys.modules.get("torch")  # never imported here: without it, no error is torch's
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in text_of(error).lower() for words in _MEMORY)


def text_of(error: BaseException) -> str:
    """Return an exception's text, also if others' code fails to give it."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - code of others may raise anything
        return f"(its __str__ raised {type(second).__name__})"


def class_and_text(error: BaseException) -> str:
    """Return an exception's class and text, as a traceback ends with them.

    Of a warning it is said why it is an exception, which is not the fault of the code that gives it.
    """
    filtered = " (a warning, which -W, PYTHONWARNINGS or a filter of this program makes an error)"
    return f"{type(error).__name__}: {text_of(error)}{filtered if isinstance(error, Warning) else ''}"


def mark_environment(error: BaseException, id: str) -> None:
    """Note on an exception which environment's code has raised it."""
    vars(error).setdefault(RAISED_BY, id)


def environment_of(error: BaseException) -> str:
    """Return the id of the environment whose code raised, or ""."""
    return str(vars(error).get(RAISED_BY, ""))


def other_episodes(id: str, than: str) -> str:
    """Return why an environment is not the same in all processes.

    `than` says in which ones its episodes are others than in this.
    """
    return (
        f"{id}: equal seeds and actions lead to other episodes than {than}; unless its code, a version or the machine "
        "has changed, its module or class draws values once, as on import, or reads what differs between processes; "
        "give it these values as kwargs"
    )


class TaskError(Exception):
    """A task is broken or used in the wrong way."""


class NotInitialized(TaskError):
    """The task has no hyperparameters yet."""


class UnsupportedSpace(TaskError, ValueError):
    """The algorithm cannot use these observations or actions."""


class StateMismatch(TaskError, ValueError):
    """The state belongs to another task, environment, structure or format."""


class EpisodesLost(StateMismatch):
    """The running episodes of a state cannot be restored."""


class NotData(TaskError, TypeError):
    """A state or a returned value is not data, or too large."""


class DamagedState(TaskError):
    """Stored bytes differ from those that were written."""


class EnvSpecError(TaskError, ValueError):
    """An environment's description is wrong, or not what it is."""


class EnvironmentFailed(TaskError):
    """The environment's own code raised an exception or killed its process."""


class Hung(EnvironmentFailed):
    """Training made no step for too long."""


class ProgramFailed(EnvironmentFailed):
    """A program that trains ended with an error."""


class ProgramError(TaskError, ValueError):
    """A program that trains cannot be started, or does not report."""


class BadResume(TaskError):
    """The task broke earlier and must not be used.

    Its state may be half-changed, so the task can neither train, save nor load.
    """


class Diverged(TaskError):
    """A loss or a parameter became NaN or infinite."""


class Stopped(TaskError):
    """Training stopped on request, between two steps, with everything saved."""
