"""Storage as tasks see it: leases, checkpoints and atomic writes.

A task knows no database. Anything with these methods will do; ``rekindle.Store`` is the one that ships.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .retention import Keep

Metrics = dict[str, float]
POLICY_PREFIX = "policy/"


def policy_uid(digest: str) -> str:
    """Return the uid under which a policy is stored.

    A task that starts from it names it as its parent.
    """
    return POLICY_PREFIX + digest[:20]


@dataclass(frozen=True)
class Saved:
    """A stored checkpoint of a task.

    Attributes:
        epochs: epochs that were done when it was written.
        manifest: the packed state's structure; see ``tasks.checkpoint.state.unpack``.
        fetch: gives the bytes of a blob by its sha256, or raises if they are damaged.
        digest: sha256 of the manifest.
        metrics: (epoch, metrics) of every epoch up to the checkpoint.
        fingerprint: what the task's last "init" event recorded, if any: the versions that wrote the checkpoint.
    """

    epochs: int
    manifest: bytes
    fetch: Callable[[str], bytes]
    digest: str
    metrics: list[tuple[int, Metrics]]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


class Lease(Protocol):
    """Right to write one task.

    One process holds it until it releases it, dies or misses its heartbeats.

    Attributes:
        uid: the task.
        give_up: set by the holder: releases the lease unless the task trains, and returns whether it did. A storage
            asks it when another task of this process opens the same.
    """

    uid: str
    give_up: Callable[[], bool] | None

    def load(self) -> Saved | None:
        """Return the last checkpoint, or None; a damaged one raises."""

    def release(self) -> None:
        """Let another process take the task."""


@dataclass(frozen=True)
class Write:
    """Additions of one member to the storage.

    ``manifest`` None means metrics and events only; ``keep`` says which of its checkpoints stay, None leaves that to
    the storage.
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
    """Keeper of tasks."""

    def open(self, uid: str, identity: Mapping[str, Any]) -> Lease:
        """Take the lease of a task; raise while another process holds it."""

    def save(self, writes: Sequence[Write]) -> None:
        """Make all writes visible together, or none.

        It raises if a lease was lost.
        """

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        """Return the last checkpoint of a task, or that of ``epochs``.

        It returns None if that is not kept; a damaged one raises.
        """
