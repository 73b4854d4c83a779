"""The store: tasks, their leases, checkpoints, metrics and events, and the studies over them, in one SQL database.

    with Store("sqlite:///studies.db") as store:
        lease = store.open(uid, identity)          # TaskBusy while another process holds the task
        saved = lease.load()                       # the last checkpoint, or None
        store.save([Write(lease, epochs=1, ...)])  # all or nothing; LeaseLost if the lease was taken over
        lease.release()

Any number of processes may share a database. A task is written by the one that holds its lease; each taking of the
lease raises its fencing token, and every write names the token in the same transaction, so a process that was paused
past its lease cannot write a row or a blob afterwards. A thread renews the leases of this process while it lives. The
lease of a dead process is free at once on the same machine, and when it ends elsewhere, by the database's clock.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from sqlalchemy import Connection

from ...tasks.checkpoint.storage import Metrics, Saved, Write
from ..errors import StoreError, TaskBusy
from ..failures import FAILED
from . import branches, queries, totals
from . import trials as ledger
from .branches import Start
from .checkpoints import Reader, go_back, merge_metrics, metrics_until, put_blobs, put_checkpoint, put_metrics
from .locks import fencing
from .locks import planning_lock as planners
from .locks.leases import Holdings, StoreLease, held_here
from .retention import Keep, prune
from .rows import Changes, CheckpointRow, Event, Result, Segment, Study, TaskRow, Trial
from .sql import schema
from .sql import sqlite_guard as disguise
from .sql.database import Database
from .sql.events import add_events
from .sql.retry import Patience
from .totals import Totals
from .troubles import History, claimable, histories

KEEP = Keep()
TURN = 30.0  # seconds


class Store:
    """One database of tasks and studies; safe to use from several threads, and in a child after fork.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user:password@host/name``.
        lease_seconds: how long a lease outlives the last sign of life of its process.
        keep: which checkpoints of a task stay that has no `snapshots` of its own.
        patience: how long an operation is tried again while the database is busy or gone; seconds, or a Patience.
    """

    def __init__(self, url: str, *, lease_seconds: float = 60.0, keep: Keep = KEEP, patience: float | Patience = 60.0):
        if not (math.isfinite(lease_seconds) and lease_seconds > 0):
            raise ValueError(f"Store: lease_seconds must be above 0, but got {lease_seconds}")
        self.lease_seconds, self.keep = lease_seconds, keep
        self._database = Database(url, patience, stall=max(lease_seconds, 1.0))
        self._holdings = Holdings(self._renew, lease_seconds / 4)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise
        _stores.add(self)

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._database.name

    def wait_until(self, stop: Callable[[], bool]) -> None:
        """Ends a wait for the database early, with its error, once ``stop()`` holds."""
        self._database.patience = replace(self._database.patience, stop=stop)

    def _prepare(self) -> None:
        version = self._database.read(self._version)
        schema.check(version, self.url)
        if version < schema.VERSION:
            self._database.write(lambda connection: schema.upgrade(connection, self.url))

    def _version(self, connection: Connection) -> int:
        disguise.refuse(connection, self.url)
        return schema.version_of(connection)

    # Tasks, for the process that holds them

    def open(self, uid: str, identity: Mapping[str, Any] | None, claimed: StoreLease | None = None) -> StoreLease:
        """Take the lease of a task, which is created if it is new.

        Args:
            uid: the task.
            identity: the task's; None if it is not known.
            claimed: a lease of the task from ``claim``, returned unless it was lost since.

        Raises:
            TaskBusy: a living process holds the lease, this one included.
            IdentityMismatch: the uid belongs to another identity.
        """
        if claimed is not None and not claimed.lost:
            fencing.check_identity(uid, claimed.identity, identity)
            if claimed.identity is None and identity is not None:
                self._database.write(lambda connection: fencing.identify(connection, uid, identity))
            return claimed
        return self._hold(self._database.write(lambda connection: self._take(connection, uid, identity, {})))

    def claim(
        self, study: str, uids: Iterable[str], limit: int | None = None
    ) -> list[tuple[StoreLease, History | None]]:
        """Take the leases of the tasks that are free, in the order given, at most ``limit``.

        A task that failed is not free before its pause is over, and a task to be trained alone is claimed alone. Each
        lease comes with the task's recent failures, if it had any; pass it to ``open`` when the task is made. Read the
        segments again after claiming: another worker may have finished one between your reading and the claim.
        """
        uids = list(uids)
        free, troubles = self._database.read(lambda connection: claimable(connection, uids, limit))
        leases: list[StoreLease] = []
        while free and (limit is None or len(leases) < limit):  # until others were not quicker
            count = len(free) if limit is None else limit - len(leases)
            first, free = free[:count], free[count:]
            taken = self._database.write(partial(self._take_free, uids=first, study=study))
            leases += (self._hold(taken[uid]) for uid in first if uid in taken)
        return [(lease, troubles.get(lease.uid)) for lease in leases]

    def save(self, writes: Sequence[Write]) -> None:
        """Makes all of the writes visible together, or none of them. LeaseLost names every task that is lost."""
        leases = _checked(write.lease for write in writes)
        blobs = {name: write.blobs for write in writes if write.manifest is not None for name in write.blobs}

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            put_blobs(connection, blobs)
            put_metrics(connection, [(write.lease.uid, *row) for write in writes for row in write.metrics])
            kept = [(write, lease) for write, lease in zip(writes, leases, strict=True) if write.manifest is not None]
            for write, lease in kept:
                put_checkpoint(connection, write, lease.token)
            for keep in {write.keep or self.keep for write, _ in kept}:
                prune(connection, {lease.uid for write, lease in kept if (write.keep or self.keep) == keep}, keep)
            add_events(connection, [(write.lease.uid, *row) for write in writes for row in write.events])

        self._database.write(work)

    # Tasks, for everybody

    def load(self, uid: str, epochs: int | None = None, digest: str | None = None) -> Saved | None:
        """The last checkpoint of a task (of ``epochs``, or with ``digest``), checked, or None; needs no lease."""
        return Reader(self._database, uid).last(epochs, digest)

    def tasks(self, uids: Collection[str] | None = None) -> list[TaskRow]:
        """The tasks (all, or those given), the oldest first."""
        return self._database.read(lambda connection: queries.tasks(connection, uids))

    def count_tasks(self, without: Sequence[str]) -> int:
        """How many tasks there are whose uids begin with none of these."""
        return self._database.read(lambda connection: queries.count_tasks(connection, without))

    def reached(self, uids: Collection[str]) -> dict[str, int]:
        """By uid: the epochs of a task's last checkpoint; of tasks only that there are."""
        return self._database.read(lambda connection: queries.reached(connection, uids))

    def trials_of(self, uid: str) -> list[tuple[str, Trial]]:
        """The trials that a task is, each with the name of its study."""
        return self._database.read(lambda connection: queries.trials_of(connection, uid))

    def held(self) -> set[str]:
        """The uids of the tasks that a process holds, or held when it died."""
        return self._database.read(queries.held)

    def holders(self) -> dict[str, str]:
        """By uid of the tasks that are held: the process, as ``host:boot:pid:started``; not those known to be dead."""
        return self._database.read(queries.holders)

    def workers(self) -> list[str]:
        """The processes that hold leases and are not known to be dead."""
        return sorted(set(self.holders().values()))

    def checkpoints(self, uid: str) -> list[CheckpointRow]:
        """The checkpoints of a task, the oldest first."""
        return self._database.read(lambda connection: queries.checkpoints(connection, uid))

    def metrics(self, uid: str) -> list[tuple[int, Metrics]]:
        """(epoch, metrics) of a task, in order."""
        return self._database.read(lambda connection: metrics_until(connection, uid))

    def events(self, uid: str) -> list[Event]:
        """What happened to a task, the oldest first."""
        return self._database.read(lambda connection: queries.events(connection, uid))

    def histories(self, uids: Collection[str]) -> dict[str, History]:
        """What went wrong, since its last new epoch, with each of the tasks that had troubles."""
        return self._database.read(lambda connection: histories(connection, uids))

    def branch(self, uid: str, identity: Mapping[str, Any], start: Start) -> bool:
        """Makes a task that starts from a state of another one; False if that state is not stored any more.

        The same again changes nothing.
        """
        return self._database.write(lambda connection: branches.plant(connection, uid, identity, start))

    # Studies

    def create_study(self, name: str, config: Mapping[str, Any], extend: Collection[str] = ()) -> Study:
        """The study of this name, made if there is none.

        StudyMismatch names the keys in which a stored configuration differs; those in ``extend`` (dotted) may differ
        and are updated.
        """
        return self._database.write(lambda connection: ledger.create_study(connection, name, config, extend))

    def change_study(self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Study:
        """The study of this name with the configuration that ``change`` makes of the stored one, or of None.

        Of two changes at once the second makes its own of what the first has left. ``change`` may run more than once.
        """
        return self._database.write(lambda connection: ledger.change_study(connection, name, change))

    def study(self, name: str) -> Study:
        """A study; UnknownStudy names those that there are."""
        return self._database.read(lambda connection: ledger.get_study(connection, name))

    def studies(self) -> list[Study]:
        """All studies, the oldest first."""
        return self._database.read(ledger.studies)

    def add_trials(self, study: str, trials: Iterable[Trial]) -> None:
        """Adds the trials whose numbers are not taken, and leaves the others as they are."""
        self.carry_forward(study, trials=trials)

    def add_segments(self, study: str, segments: Iterable[Segment]) -> None:
        """Adds the segments whose (number, rung) is not taken, and leaves the others as they are."""
        self.carry_forward(study, segments=segments)

    def carry_forward(
        self,
        study: str,
        *,
        trials: Iterable[Trial] = (),
        segments: Iterable[Segment] = (),
        finished: Iterable[tuple[int, str]] = (),
        since: int | None = None,
    ) -> bool:
        """Adds what is not there yet, and ends trials given as (number, state), all at once.

        With ``since`` that is done only if nothing has changed after this revision of the study; False otherwise.
        """
        new, ways = list(trials), list(segments)
        ends: dict[str, list[int]] = {}
        for number, state in finished:
            ends.setdefault(state, []).append(number)

        def work(connection: Connection) -> bool:
            revision = ledger.revise(connection, study)
            if since is not None and revision != since + 1:
                return False
            ledger.add_trials(connection, study, new, revision)
            ledger.add_segments(connection, study, ways, revision)
            for state, numbers in ends.items():
                ledger.finish_trials(connection, study, numbers, state, None, revision)
            if new:
                planners.end(connection, study)
            return True

        return self._database.write(work)

    def take_turn(self, study: str, revision: int) -> bool:
        """Whether this process is to make the trials that follow from a revision; False while another one does so.

        The turn ends when trials are added, or when it has lasted for ``lease_seconds``, and TURN at most.
        """
        if not self._database.read(lambda connection: planners.due(connection, study, revision)):
            return False
        seconds = min(self.lease_seconds, TURN)
        return self._database.write(lambda connection: planners.take(connection, study, revision, seconds))

    def changes(self, study: str, since: int = -1) -> Changes | None:
        """What has changed in a study since a revision (-1: everything is new), or None if nothing has."""
        return self._database.read(lambda connection: ledger.changes(connection, study, since))

    def trials(self, study: str) -> list[Trial]:
        """The trials of a study, by number."""
        return self._database.read(lambda connection: ledger.trials(connection, study))

    def segments(self, study: str) -> list[Segment]:
        """The segments of a study, by number and rung."""
        return self._database.read(lambda connection: ledger.segments(connection, study))

    def totals(self, study: str) -> Totals:
        """How far a study is, counted by the database."""
        return self._database.read(lambda connection: totals.totals(connection, study))

    def longest(self, study: str, *, best: bool = False) -> list[tuple[Trial, list[Segment]]]:
        """The trials that trained longest with a result, with all their segments; the ``best`` by score only, if asked.

        Several are the best if they are equal.
        """
        return self._database.read(lambda connection: totals.longest(connection, study, best=best))

    def finish_segment(
        self,
        lease: StoreLease,
        study: str,
        number: int,
        rung: int,
        *,
        score: float,
        digest: str | None = None,
        metrics: Sequence[tuple[int, Metrics]] = (),
        objectives: Mapping[str, float] | None = None,
    ) -> None:
        """Ends a segment with its score, under the lease of its task; ``metrics`` are added to those of their epochs.

        The same again changes nothing; another score, digest or objective is a ResultMismatch.
        """
        self.finish_segments(study, [Result(lease, number, rung, score, digest, metrics, objectives)])

    def finish_segments(self, study: str, results: Sequence[Result]) -> None:
        """Ends segments as `finish_segment` does, all or none of them; LeaseLost names every task that is lost."""
        leases = _checked(result.lease for result in results)

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            for each in results:
                merge_metrics(connection, each.lease.uid, each.metrics)
            revision = ledger.revise(connection, study)  # late: others wait for the study from here on
            for each in results:
                ledger.finish_segment(
                    connection,
                    study,
                    each.number,
                    each.rung,
                    "done",
                    each.score,
                    each.digest,
                    revision,
                    each.objectives,
                )

        self._database.write(work)

    def fail_trial(
        self, lease: StoreLease, study: str, number: int, rung: int, error: str, note: Mapping[str, Any] | None = None
    ) -> None:
        """Ends a segment and its trial as failed, with the traceback, under the lease of its task.

        ``note`` is what the event says of it (``failures.note``).
        """
        leases = _checked([lease])

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            revision = ledger.revise(connection, study)
            ledger.finish_segment(connection, study, number, rung, "failed", None, None, revision)
            ledger.finish_trials(connection, study, [number], "failed", error, revision)
            add_events(connection, [(lease.uid, FAILED, note)] if note else [])

        self._database.write(work)

    def finish_trial(self, study: str, number: int, state: str) -> None:
        """Ends a trial as "complete" or "pruned". Needs no lease: it follows from the segments, whoever sees them."""
        self.carry_forward(study, finished=[(number, state)])

    # Life

    def close(self) -> None:
        """Releases every lease and closes the connections. Does nothing the second time."""
        self._holdings.stop()
        with contextlib.suppress(StoreError):  # if the database is gone, the leases end by themselves
            self._let_go(self._holdings.drop(self._holdings.all()) | self._holdings.forgotten(), patience=1.0)
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # What a lease asks of its store

    def _take_free(self, connection: Connection, uids: Iterable[str], study: str) -> dict[str, StoreLease]:
        """The leases of those of the tasks that are still free, by uid."""
        leases = {}
        for uid in sorted(uids):  # rows are locked in one order everywhere
            with contextlib.suppress(TaskBusy):  # another worker was quicker
                leases[uid] = self._take(connection, uid, None, {"study": study})
        return leases

    def _take(
        self, connection: Connection, uid: str, identity: Mapping[str, Any] | None, note: Mapping[str, Any]
    ) -> StoreLease:
        """A lease, made before the transaction ends: other threads know by it that the task is not left over."""
        token, known = fencing.take(connection, uid, identity, self.lease_seconds, note)
        return StoreLease(self, uid, token, known)

    def _hold(self, lease: StoreLease) -> StoreLease:
        self._holdings.add(lease)
        return lease

    def _renew(self) -> None:
        leases = sorted(self._holdings.all(), key=lambda lease: lease.uid)

        def work(connection: Connection) -> list[StoreLease]:
            return [lease for lease in leases if not fencing.renewed(connection, lease, self.lease_seconds)]

        if leases:
            self._holdings.drop(self._database.write(work, patience=self.lease_seconds / 4))
        self._let_go(self._holdings.forgotten(), self.lease_seconds / 4)

    def release(self, leases: Iterable[StoreLease]) -> None:
        """Lets other processes take these tasks; if the database is gone, their leases end by themselves."""
        if self._database.busy:  # called by a finalizer within a transaction, which a second one would wait for
            for lease in leases:
                self._holdings.forget(lease)
            return
        with contextlib.suppress(StoreError):
            self._let_go(self._holdings.drop(leases), self.lease_seconds / 4)

    def _let_go(self, tokens: Mapping[str, int], patience: float | None = None) -> None:
        if tokens:
            self._database.write(lambda connection: fencing.release(connection, tokens), patience)

    def load_leased(self, lease: StoreLease, allow_previous: bool) -> Saved | None:
        """Return the last checkpoint of a task that this process holds; see `StoreLease.load`."""
        lease.check()
        reader = Reader(self._database, lease.uid)
        if not allow_previous:
            return reader.last()
        saved, damages = reader.last_sound()
        if saved is not None and damages:
            note = {"damage": [str(damage) for damage in damages]}
            self._go_back(lease, saved.epochs, "damaged", note, [name for damage in damages for name in damage.blobs])
        return saved

    def discard(self, lease: StoreLease) -> None:
        """Delete all checkpoints of a task that this process holds; an event records it."""
        self._go_back(lease, 0, "discarded", {}, [])

    def _go_back(self, lease: StoreLease, epochs: int, kind: str, note: Mapping[str, Any], bad: Sequence[str]) -> None:
        leases = _checked([lease])

        def work(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            go_back(connection, lease.uid, epochs, bad)
            add_events(connection, [(lease.uid, kind, {"epochs": epochs, **note})])

        self._database.write(work)

    def _after_fork(self) -> None:
        """A child holds nothing: its parent keeps the leases, the thread and the connections."""
        self._holdings = Holdings(self._renew, self.lease_seconds / 4)
        self._database.connect()


def _checked(leases: Iterable[Any]) -> list[StoreLease]:
    checked = list(leases)
    for lease in checked:
        lease.check()
    return checked


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    held_here.clear()
    for store in _stores:
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
