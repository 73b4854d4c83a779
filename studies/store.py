"""The store: tasks, their leases, checkpoints, metrics and events, and the studies over them, in one SQL database.

    with Store("sqlite:///studies.db") as store:
        lease = store.open(uid, identity)          # TaskBusy while another process holds the task
        saved = lease.load()                       # the last checkpoint, or None
        store.save([Write(lease, epochs=1, ...)])  # all or nothing; LeaseLost if the lease was taken over
        lease.release()

Any number of processes may share a database. A task is written by the one that holds its lease; each taking of the lease
raises its fencing token, and every write names the token in the same transaction, so a process that was paused past its
lease cannot write a row or a blob afterwards. A thread renews the leases of this process while it lives. The lease of a
dead process is free at once on the same machine, and when it ends elsewhere, by the database's clock.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection

from ..tasks.storage import Metrics, Saved, Write
from . import fencing, ledger, schema
from .checkpoints import Reader, merge_metrics, metrics_until, put_blobs, put_checkpoint, put_metrics
from .database import Database
from .errors import StoreError, TaskBusy
from .leases import Heartbeat, Owner, StoreLease, held_here
from .retention import Keep, drop, prune
from .rows import CheckpointRow, Event, Segment, Study, TaskRow, Trial
from .schema import Now, blob, checkpoint, checkpoint_blob, event, metric, task

KEEP = Keep()


class Store:
    """One database of tasks and studies; safe to use from several threads, and in a child after fork.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user:password@host/name``.
        lease_seconds: how long a lease outlives the last sign of life of its process.
        keep: which checkpoints of a task stay.
        patience: seconds for which an operation is tried again while the database is locked or lost.
    """

    def __init__(self, url: str, *, lease_seconds: float = 60.0, keep: Keep = KEEP, patience: float = 60.0):
        if not (math.isfinite(lease_seconds) and lease_seconds > 0):
            raise ValueError(f"Store: lease_seconds must be above 0, but got {lease_seconds}")
        self.lease_seconds, self.keep = lease_seconds, keep
        self._database = Database(url, patience)
        self._forget()
        version = self._database.read(schema.version_of)
        schema.check(version, self.url)
        if version < schema.VERSION:
            self._database.write(lambda connection: schema.upgrade(connection, self.url))
        _stores.add(self)

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._database.name

    # Tasks, for the process that holds them

    def open(self, uid: str, identity: Mapping[str, Any]) -> StoreLease:
        """Takes the lease of a task, which is made if it is new.

        Hands over the lease that ``claim`` took, if it did. TaskBusy if a living process holds it (this one, too);
        IdentityMismatch if the uid belongs to another identity.
        """
        with self._lock:
            claimed = self._claimed.pop(uid, None)
        if claimed is not None and not claimed.lost:
            self._database.write(lambda connection: fencing.identify(connection, uid, identity))
            return claimed
        return self._take(uid, identity, {})

    def claim(self, study: str, uids: Iterable[str], limit: int | None = None) -> list[StoreLease]:
        """Takes the leases of those of the tasks that are free, in the order given, at most ``limit``.

        A later ``open`` of the same uid on this store hands the lease over, so the Task made for it gets it. Read the
        segments again after claiming: another worker may have finished one between your reading and the claim.
        """
        uids = list(uids)
        free = self._database.read(lambda connection: fencing.free_among(connection, uids))
        leases: list[StoreLease] = []
        for uid in uids:
            if limit is not None and len(leases) >= limit:
                break
            if uid in free:
                try:
                    leases.append(self._take(uid, None, {"study": study}))
                except TaskBusy:
                    continue  # another worker was quicker
        with self._lock:
            self._claimed.update((lease.uid, lease) for lease in leases)
        return leases

    def save(self, writes: Sequence[Write]) -> None:
        """Makes all of the writes visible together, or none of them. LeaseLost names every task that is lost."""
        leases = _checked(write.lease for write in writes)
        blobs = {name: data for write in writes if write.manifest is not None for name, data in write.blobs.items()}

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            put_blobs(connection, blobs)
            put_metrics(connection, [(write.lease.uid, *row) for write in writes for row in write.metrics])
            for write, lease in zip(writes, leases, strict=True):
                if write.manifest is not None:
                    put_checkpoint(connection, write, lease.token)
                    connection.execute(task.update().where(task.c.uid == lease.uid).values(epochs=write.epochs))
                    prune(connection, lease.uid, self.keep)
            fencing.add_events(connection, [(write.lease.uid, *row) for write in writes for row in write.events])

        self._database.write(work)

    # Tasks, for everybody

    def load(self, uid: str, epochs: int | None = None) -> Saved | None:
        """The last checkpoint of a task (or that of ``epochs``), checked, without taking its lease; None if there is none."""
        return Reader(self._database, uid).last(epochs)

    def tasks(self, uids: Collection[str] | None = None) -> list[TaskRow]:
        """The tasks (all, or those given), the oldest first."""
        left = task.c.lease_expires - Now()
        query = sa.select(
            task.c.uid, task.c.identity, task.c.lease_owner, task.c.lease_epoch, left, task.c.epochs, task.c.created
        )
        if uids is not None:
            query = query.where(task.c.uid.in_(uids))
        return [TaskRow(*row) for row in self._read(query.order_by(task.c.created, task.c.uid))]

    def workers(self) -> list[str]:
        """The processes that hold leases and live, as ``host:boot:pid:started``."""
        query = (
            sa.select(task.c.lease_owner)
            .distinct()
            .where(task.c.lease_owner.is_not(None), task.c.lease_expires > Now())
        )
        return sorted(owner for (owner,) in self._read(query) if not Owner.parse(owner).is_dead())

    def checkpoints(self, uid: str) -> list[CheckpointRow]:
        """The checkpoints of a task, the oldest first."""
        c, named = checkpoint.c, checkpoint_blob.c
        rows = self._read(
            sa.select(c.id, c.uid, c.epochs, c.digest, c.lease_epoch, c.created).where(c.uid == uid).order_by(c.id)
        )
        query = (
            sa.select(named.checkpoint, blob.c.digest, blob.c.size).join_from(checkpoint_blob, blob).join(checkpoint)
        )
        blobs: dict[int, dict[str, int]] = {}
        for id, digest, size in self._read(query.where(c.uid == uid)):
            blobs.setdefault(id, {})[digest] = size
        return [CheckpointRow(*row, blobs.get(row.id, {})) for row in rows]

    def metrics(self, uid: str) -> list[tuple[int, Metrics]]:
        """(epoch, metrics) of a task, in order."""
        return self._database.read(lambda connection: metrics_until(connection, uid))

    def events(self, uid: str) -> list[Event]:
        """What happened to a task, the oldest first."""
        c = event.c
        return [
            Event(*row)
            for row in self._read(sa.select(c.uid, c.created, c.kind, c.data).where(c.uid == uid).order_by(c.id))
        ]

    # Studies

    def create_study(self, name: str, config: Mapping[str, Any], extend: Collection[str] = ()) -> Study:
        """The study of this name, made if there is none.

        StudyMismatch names the keys in which a stored configuration differs; those in ``extend`` (dotted) may differ
        and are updated.
        """
        return self._database.write(lambda connection: ledger.create_study(connection, name, config, extend))

    def study(self, name: str) -> Study:
        """A study; UnknownStudy names those that there are."""
        return self._database.read(lambda connection: ledger.get_study(connection, name))

    def studies(self) -> list[Study]:
        """All studies, the oldest first."""
        return self._database.read(ledger.studies)

    def add_trials(self, study: str, trials: Iterable[Trial]) -> None:
        """Adds the trials whose numbers are not taken, and leaves the others as they are."""
        rows = list(trials)
        self._database.write(lambda connection: ledger.add_trials(connection, study, rows))

    def add_segments(self, study: str, segments: Iterable[Segment]) -> None:
        """Adds the segments whose (number, rung) is not taken, and leaves the others as they are."""
        rows = list(segments)
        self._database.write(lambda connection: ledger.add_segments(connection, study, rows))

    def trials(self, study: str) -> list[Trial]:
        """The trials of a study, by number."""
        return self._database.read(lambda connection: ledger.trials(connection, study))

    def segments(self, study: str) -> list[Segment]:
        """The segments of a study, by number and rung."""
        return self._database.read(lambda connection: ledger.segments(connection, study))

    def finish_segment(
        self, lease: StoreLease, study: str, number: int, rung: int, *,
        score: float, digest: str | None = None, metrics: Sequence[tuple[int, Metrics]] = (),
    ) -> None:  # fmt: skip
        """Ends a segment with its score, under the lease of its task; ``metrics`` are added to those of their epochs.

        The same again changes nothing; another score or digest is a ResultMismatch.
        """
        leases = _checked([lease])

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            ledger.finish_segment(connection, study, number, rung, "done", score, digest)
            merge_metrics(connection, lease.uid, metrics)

        self._database.write(work)

    def fail_trial(self, lease: StoreLease, study: str, number: int, rung: int, error: str) -> None:
        """Ends a segment and its trial as failed, with the traceback, under the lease of its task."""
        leases = _checked([lease])

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            ledger.finish_segment(connection, study, number, rung, "failed", None, None)
            ledger.finish_trial(connection, study, number, "failed", error)

        self._database.write(work)

    def finish_trial(self, study: str, number: int, state: str) -> None:
        """Ends a trial as "complete" or "pruned". Needs no lease: it follows from the segments, whoever sees them."""
        self._database.write(lambda connection: ledger.finish_trial(connection, study, number, state, None))

    # Life

    def close(self) -> None:
        """Releases every lease and closes the connections. Does nothing the second time."""
        if self._heartbeat:
            self._heartbeat.stop()
            self._heartbeat = None
        try:
            self._release(list(self._held.values()), patience=1.0)
        except StoreError:
            pass  # the database is gone; the leases end by themselves
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # Leases

    def _take(self, uid: str, identity: Mapping[str, Any] | None, note: Mapping[str, Any]) -> StoreLease:
        token = self._database.write(
            lambda connection: fencing.take(connection, uid, identity, self.lease_seconds, note)
        )
        lease = StoreLease(self, uid, token)
        with self._lock:
            self._held[uid] = lease
            if self._heartbeat is None:
                self._heartbeat = Heartbeat(self._renew, self.lease_seconds / 4)
        return lease

    def _renew(self) -> None:
        with self._lock:
            leases = sorted(self._held.values(), key=lambda lease: lease.uid)

        def work(connection: Connection) -> list[StoreLease]:
            return [lease for lease in leases if not fencing.renewed(connection, lease, self.lease_seconds)]

        lost = self._database.write(work, patience=self.lease_seconds / 4) if leases else []
        with self._lock:
            for lease in lost:
                lease.lost = True
                self._drop(lease)

    def _release(self, leases: Sequence[StoreLease], patience: float | None = None) -> None:
        with self._lock:
            mine = [lease for lease in leases if self._held.get(lease.uid) is lease]
            for lease in mine:
                lease.lost = True
                self._drop(lease)
        if mine:
            self._database.write(lambda connection: fencing.release(connection, mine), patience)

    def _drop(self, lease: StoreLease) -> None:
        if self._held.get(lease.uid) is lease:
            del self._held[lease.uid]
        if self._claimed.get(lease.uid) is lease:
            del self._claimed[lease.uid]

    def _load(self, lease: StoreLease, allow_previous: bool) -> Saved | None:
        lease.check()
        reader = Reader(self._database, lease.uid)
        if not allow_previous:
            return reader.last()
        saved, damages = reader.last_sound()
        if saved is not None and damages:
            self._go_back(lease, saved.epochs, "damaged", {"damage": [str(damage) for damage in damages]},
                          [name for damage in damages for name in damage.blobs])  # fmt: skip
        return saved

    def _discard(self, lease: StoreLease) -> None:
        self._go_back(lease, 0, "discarded", {}, [])

    def _go_back(self, lease: StoreLease, epochs: int, kind: str, data: Mapping[str, Any], bad: Sequence[str]) -> None:
        """Drops the checkpoints and metrics of a task after ``epochs``."""
        leases = _checked([lease])
        later = sa.select(checkpoint.c.id).where(checkpoint.c.uid == lease.uid, checkpoint.c.epochs > epochs)

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            drop(connection, connection.scalars(later).all())
            # whoever has the right bytes of a damaged blob that others share shall write them again
            connection.execute(blob.update().where(blob.c.digest.in_(bad)).values(size=-1))
            connection.execute(metric.delete().where(metric.c.uid == lease.uid, metric.c.epoch > epochs))
            connection.execute(task.update().where(task.c.uid == lease.uid).values(epochs=epochs))
            fencing.add_events(connection, [(lease.uid, kind, {"epochs": epochs, **data})])

        self._database.write(work)

    def _read(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return self._database.read(lambda connection: connection.execute(query).all())

    def _forget(self) -> None:
        """Holds nothing: at the start, and in a child after fork, whose parent keeps its leases, thread and connections."""
        self._lock = threading.Lock()
        self._held: weakref.WeakValueDictionary[str, StoreLease] = weakref.WeakValueDictionary()
        self._claimed: dict[str, StoreLease] = {}
        self._heartbeat: Heartbeat | None = None


def _checked(leases: Iterable[Any]) -> list[StoreLease]:
    checked = list(leases)
    for lease in checked:
        lease.check()
    return checked


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    held_here.clear()
    for store in _stores:
        store._forget()
        store._database.connect()


os.register_at_fork(after_in_child=_after_fork)
