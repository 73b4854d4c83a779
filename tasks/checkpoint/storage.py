"""Storage as tasks see it: leases, checkpoints and atomic writes.

A task knows no database. Any object with these methods will do; ``rekindle.Store`` is the one that ships.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

from .retention import Keep

Metrics = dict[str, float]
POLICY_PREFIX = "policy/"


def policy_uid(digest: str) -> str:
    """Return the uid under which a policy is stored.

    A task that starts from the policy names this uid as its parent.
    """
    return POLICY_PREFIX + digest[:20]


@dataclass(frozen=True)
class Saved:
    """A stored checkpoint of a task.

    Attributes:
        epochs: number of epochs that were done when it was written.
        manifest: structure of the packed state; see ``tasks.checkpoint.state.unpack``.
        fetch: function that returns a blob by its sha256, or raises if it is damaged.
        digest: sha256 of the manifest.
        metrics: (epoch, metrics) of every epoch up to the checkpoint.
        fingerprint: data of the task's last "init" event, if any: the versions that wrote the checkpoint.
        played: data of the task's last "played" event, if any, see `TaskRecord.note_played`.
    """

    epochs: int
    manifest: bytes
    fetch: Callable[[str], bytes]
    digest: str
    metrics: list[tuple[int, Metrics]]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    played: Mapping[str, str] = field(default_factory=dict)


class Lease(Protocol):
    """The right to write one task.

    One process holds it until it releases it, dies or misses its heartbeats.

    Attributes:
        uid: uid of the task.
        give_up: function set by the holder that releases the lease unless the task trains, and returns whether it did.
            A storage calls it when another task object of this process opens the same uid.
    """

    uid: str
    give_up: Callable[[], bool] | None

    def load(self) -> Saved | None:
        """Return the last checkpoint, or None; raise if it is damaged."""

    def release(self) -> None:
        """Let another process take the task."""


@dataclass(frozen=True)
class Write:
    """Additions of one task to the storage, for one transaction.

    Attributes:
        lease: lease of the task.
        epochs: number of epochs done.
        manifest: manifest of the state; None if there are only metrics and events to store.
        blobs: blobs of the state, by sha256.
        digest: digest of the state.
        metrics: new rows (epoch, metrics).
        events: new events (kind, data).
        keep: retention rule for the task's checkpoints; None leaves it to the storage.
    """

    lease: Lease
    epochs: int
    manifest: bytes | None = None
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    digest: str | None = None
    metrics: Sequence[tuple[int, Metrics]] = ()
    events: Sequence[tuple[str, dict[str, Any]]] = ()
    keep: Keep | None = None


class Storage(Protocol):
    """A place where tasks are stored."""

    def open(self, uid: str, identity: Mapping[str, Any]) -> Lease:
        """Take the lease of a task; raise while another process holds it."""

    def save(self, writes: Sequence[Write]) -> None:
        """Make all writes visible together, or none.

        Raise if a lease was lost.
        """

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        """Return the last checkpoint of a task, or that at ``epochs``.

        Return None if it is not stored; raise if it is damaged.
        """


OPEN: WeakSet[Storage] = WeakSet()  # the storages that are open in this process
