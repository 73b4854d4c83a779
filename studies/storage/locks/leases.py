"""Leases held by this process, and the thread that renews them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Self

from ....tasks.checkpoint.storage import Saved
from ...errors import LeaseLost, StoreError

# All leases of this process, of any Store, by the object's id: equal tasks of several databases may have equal tokens.
process_leases: weakref.WeakValueDictionary[int, StoreLease] = weakref.WeakValueDictionary()


def held_here(uid: str) -> list[StoreLease]:
    """Return this process's leases of a task in any database.

    If a row names this process but none of these has its token, it remains from a commit whose answer was lost, or from
    a lease that was dropped without release; the lease may be taken again.
    """
    references = process_leases.valuerefs()  # a list, as other threads add leases meanwhile
    return [lease for ref in references if (lease := ref()) is not None and lease.uid == uid and not lease.lost]


class LeaseStore(Protocol):
    """The store, with the interface that its leases use."""

    @property
    def url(self) -> str:
        """The database, without its password."""

    def load_leased(self, lease: StoreLease, allow_previous: bool) -> Saved | None:
        """Return the last checkpoint of the task."""

    def discard(self, lease: StoreLease) -> None:
        """Delete all checkpoints of the task."""

    def release(self, leases: Iterable[StoreLease]) -> None:
        """Free the tasks for other processes."""


class StoreLease:
    """The right to write one task, until it is released or lost.

    Attributes:
        uid: the task.
        token: the fencing token; every write names it, and a smaller one than the task's is refused.
        lost: True once it was released, or the heartbeat has seen that another process took the task.
        identity: the task's, when the lease was taken; None if it was not known then.
        note: what the event that begins it records besides, such as the study for which the task is trained.
        share: of the time until the lease's end that counts as the task's training; 1 / P in a cohort of P.
        give_up: releases the lease if its holder is idle, and returns whether it did; None: nobody can tell.
    """

    share: float = 0.0
    give_up: Callable[[], bool] | None = None

    def __init__(
        self, store: LeaseStore, uid: str, token: int, identity: Mapping[str, Any] | None, note: Mapping[str, Any]
    ):
        self._store, self.uid, self.token, self.identity, self.note = store, uid, token, identity, note
        self.lost = False
        self._pid = os.getpid()
        process_leases[id(self)] = self

    def load(self, allow_previous: bool = False) -> Saved | None:
        """Return the last checkpoint, None without one.

        With ``allow_previous``, every byte is verified, the newest intact checkpoint is returned, and damage is
        recorded as an event.

        Raises:
            DamagedCheckpoint: the checkpoint is damaged; raised when the damaged part is read, or, with
                ``allow_previous``, if none is intact.
        """
        return self._store.load_leased(self, allow_previous)

    def discard(self) -> None:
        """Delete all checkpoints of the task, so that it starts from scratch.

        An event records the deletion.
        """
        self._store.discard(self)

    def is_of(self, url: str, uid: str) -> bool:
        """Return whether this process holds the given task by this lease."""
        return self.uid == uid and not self.lost and self._pid == os.getpid() and self._store.url == url

    def release(self) -> None:
        """Free the task for other processes; releasing again has no effect."""
        self._store.release([self])

    def check(self) -> None:
        """Raise LeaseLost if this process cannot hold the lease."""
        if self._pid != os.getpid():
            raise LeaseLost([self.uid], "a forked process does not inherit its parent's leases")
        if self.lost:
            raise LeaseLost([self.uid])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lease {self.token} on task {self.uid}{', lost' if self.lost else ''}>"


class Heartbeat:
    """Daemon thread that calls a method every few seconds.

    It ends when the method's object is collected.
    """

    def __init__(self, beat: Callable[[], None], seconds: float):
        self._beat, self._seconds, self._stop = weakref.WeakMethod(beat), seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, name="rekindle-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait until it has ended."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            beat = self._beat()
            if beat is None:
                return
            try:
                beat()
            except StoreError:
                continue  # the database may come back before the leases end
            finally:
                del beat  # do not keep the store alive while waiting


class Leases:
    """The leases held by a store, and their heartbeat; thread-safe."""

    def __init__(self, beat: Callable[[], None], seconds: float):
        self._beat, self._seconds = beat, seconds
        self._lock = threading.RLock()  # a garbage collection under it may release a lease
        self._leases: weakref.WeakValueDictionary[str, StoreLease] = weakref.WeakValueDictionary()
        self._tokens: dict[str, int] = {}  # of what is held, and of leases that were dropped without release
        self._heartbeat: Heartbeat | None = None

    def add(self, lease: StoreLease) -> StoreLease:
        """Add a lease and return it; start the heartbeat if necessary."""
        with self._lock:
            self._leases[lease.uid] = lease
            self._tokens[lease.uid] = lease.token
            if self._heartbeat is None:
                self._heartbeat = Heartbeat(self._beat, self._seconds)
        return lease

    def all(self) -> list[StoreLease]:
        """Return the leases."""
        with self._lock:
            return list(self._leases.values())

    def remove(self, leases: Iterable[StoreLease]) -> dict[str, int]:
        """Remove leases; return the tokens of those that were held, by uid."""
        with self._lock:
            removed = {lease.uid: lease for lease in leases if self._leases.get(lease.uid) is lease}
            for uid, lease in removed.items():
                lease.lost = True
                del self._leases[uid]
            return {uid: self._tokens.pop(uid) for uid in removed}

    def abandon(self, lease: StoreLease) -> None:
        """Remove a lease; the heartbeat will release it."""
        with self._lock:
            if self._leases.get(lease.uid) is lease:
                lease.lost = True
                del self._leases[lease.uid]

    def abandoned(self) -> dict[str, int]:
        """Return the tokens, by uid, of leases without references in this process."""
        with self._lock:
            return {uid: self._tokens.pop(uid) for uid in [*self._tokens] if uid not in self._leases}

    def stop(self) -> None:
        """End the heartbeat."""
        with self._lock:
            heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat:
            heartbeat.stop()
