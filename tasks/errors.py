"""Errors of tasks; each message states law, value, place and cure."""

from __future__ import annotations


class TaskError(Exception):
    """Something is wrong with a task or with how it is used."""


class NotInitialized(TaskError):
    """The task has no hyperparameters yet."""


class UnsupportedSpace(TaskError, ValueError):
    """Observations or actions of a kind that the algorithm cannot use."""


class StateMismatch(TaskError, ValueError):
    """A state belongs to another task, environment, structure or format."""


class DamagedState(TaskError):
    """Stored bytes are not the bytes that were written."""


class EnvironmentFailed(TaskError):
    """An environment's own code raised an exception, or killed its process."""


class Hung(EnvironmentFailed):
    """A training made no step for too long."""


class BadResume(TaskError):
    """Use of a task that broke earlier.

    Its state may be half-changed, so it is neither trained, saved nor loaded.
    """


class Diverged(TaskError):
    """A loss or a parameter became NaN or infinite."""


class Stopped(TaskError):
    """A stop on request, at a step boundary, with everything saved."""
