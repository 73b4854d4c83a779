"""Errors of the store; messages contain no passwords."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ..tasks.errors import DamagedState


class BadConfig(ValueError):
    """Invalid configuration of a study."""


class StoreError(Exception):
    """An error of the store or its use; nothing was written."""


class BadURL(StoreError, ValueError):
    """A URL that names no usable database."""


class StoreUnreachable(StoreError):
    """A database that cannot be opened, or stopped answering."""


class StoreLocked(StoreError):
    """A database that other processes kept busy until the time-out."""


class StoreReadOnly(StoreError):
    """A database that may be read, but not written."""


class StoreFull(StoreError):
    """A database without room for the write."""


class SchemaMismatch(StoreError):
    """Tables of a version that this Rekindle does not know."""


class DamagedRow(StoreError):
    """A column with invalid data."""


class DamagedCheckpoint(StoreError, DamagedState):
    """A checkpoint whose bytes differ from those that were written."""


class IdentityMismatch(StoreError, ValueError):
    """A uid in use for a task of another identity."""


class StudyMismatch(StoreError, ValueError):
    """A study of the same name with another configuration."""


class MachineMismatch(StoreError):
    """A machine without what a study trains with, as it was."""


class UnknownStudy(StoreError, LookupError):
    """A name that no study has."""


class StudyReplaced(UnknownStudy):
    """A study that was deleted, and whose name another one has now."""


class CommandRefused(StoreError, ValueError):
    """A command that a study cannot obey."""


class ResultMismatch(StoreError):
    """A second, different result of a finished segment or trial."""


class TaskBusy(StoreError):
    """A task that another process holds.

    Attributes:
        uid: of the task.
        owner: the process that holds it, as ``host:boot:pid:started``.
        host: of the owner.
        pid: of the owner.
        seconds: until its lease expires, unless renewed.
        cure: what to do, as text.
    """

    def __init__(
        self,
        uid: str,
        owner: str,
        host: str,
        pid: int,
        seconds: float,
        cure: str = "wait for that process or end it, then try again",
    ):
        self.uid, self.owner, self.host, self.pid, self.seconds, self.cure = uid, owner, host, pid, seconds, cure
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        super().__init__(
            f"a task is held by one process at a time, but task {uid} is held by process {pid} on {host} "
            f"until {until:%H:%M:%S} UTC ({seconds:.0f} s from now) unless it renews its lease; "
            f"{cure}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs to raise this error, too."""
        return type(self), (self.uid, self.owner, self.host, self.pid, self.seconds, self.cure)


class LeaseLost(StoreError):
    """A late write: the lease was released, or another process holds it.

    Attributes:
        uids: tasks that are no longer held.
        why: reason, as text.
    """

    def __init__(self, uids: Sequence[str], why: str = "another process holds it now, or it was released"):
        self.uids = tuple(uids)
        super().__init__(
            f"only the process that holds a task may write it, but the lease on {', '.join(uids)} is gone: {why}. "
            "Nothing was written; drop this copy of the task and open it again to resume from its last checkpoint"
        )
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs to raise this error, too."""
        return type(self), (self.uids, self.why)
