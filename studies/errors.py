"""The errors of the store; each message states the law, the value, the place and the cure, and no password."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ..tasks.errors import DamagedState


class StoreError(Exception):
    """Something is wrong with the store or with how it is used; nothing was written."""


class BadURL(StoreError, ValueError):
    """The URL does not name a database that can be used."""


class StoreUnreachable(StoreError):
    """The database cannot be opened, or stopped answering."""


class StoreLocked(StoreError):
    """Others kept the database busy for longer than the store's patience."""


class StoreReadOnly(StoreError):
    """The database may be read, but not written."""


class StoreFull(StoreError):
    """There is no room for the write."""


class SchemaMismatch(StoreError):
    """The tables are of a version that this Rekindle does not know."""


class DamagedRow(StoreError):
    """A column that must hold JSON does not."""


class DamagedCheckpoint(StoreError, DamagedState):
    """The bytes of a checkpoint are not those that were written."""


class IdentityMismatch(StoreError, ValueError):
    """A uid is in use for a task of another identity."""


class StudyMismatch(StoreError, ValueError):
    """A study of this name has another configuration."""


class UnknownStudy(StoreError, LookupError):
    """No study has this name."""


class ResultMismatch(StoreError):
    """A segment or trial that is finished was finished again with something else."""


class TaskBusy(StoreError):
    """Another process holds the task.

    Attributes:
        uid: the task.
        owner: who holds it, as ``host:boot:pid:started``.
        host, pid: the same, in parts.
        seconds: how long its lease still lasts if it is not renewed.
    """

    def __init__(self, uid: str, owner: str, host: str, pid: int, seconds: float):
        self.uid, self.owner, self.host, self.pid, self.seconds = uid, owner, host, pid, seconds
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        super().__init__(
            f"a task is held by one process at a time, but task {uid} is held by process {pid} on {host} "
            f"until {until:%H:%M:%S} UTC ({seconds:.0f} s from now) unless it renews its lease; "
            "wait for that process or end it, then try again"
        )


class LeaseLost(StoreError):
    """A write came too late: the lease was released, or another process took it over.

    Attributes:
        uids: the tasks that are no longer held.
    """

    def __init__(self, uids: Sequence[str], why: str = "another process took it over, or it was released"):
        self.uids = tuple(uids)
        super().__init__(
            f"only the process that holds a task may write it, but the lease on {', '.join(uids)} is gone: {why}. "
            "Nothing was written; drop this copy of the task and open it again to carry on from its last checkpoint"
        )
