"""Store: tasks, leases, checkpoints, events and studies in one SQL database.

    with Store("sqlite:///studies.db") as store:
        lease = store.open(uid, identity)          # TaskBusy while another process holds the task
        saved = lease.load()                       # the last checkpoint, or None
        store.save([Write(lease, epochs=1, ...)])  # all or nothing; LeaseLost if another process has the task
        lease.release()

Any number of processes can share a database. Only the process that holds a task's lease writes the task. Each time the
lease is taken, its fencing token grows, and every write checks the token in its own transaction. A process that was
paused past its lease therefore cannot write a row or a blob afterwards. While a process lives, a thread renews its
leases. When it dies, its leases are free at once on the same machine; elsewhere they are free when they expire by the
database's clock.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from ...tasks.checkpoint.storage import OPEN, Saved, Write
from ...tasks.errors import Hung
from ..errors import LeaseLost, StoreError, TaskBusy
from ..failures import FAILED, HUNG, decide, event_data
from . import branches
from . import commands as command_rows
from . import studies as study_rows
from . import tasks as task_rows
from .branches import Start
from .checkpoints import (
    Reader,
    go_back,
    mark_damaged,
    merge_metrics,
    metrics_until,
    none_sound,
    put_blobs,
    put_checkpoint,
    put_metrics,
)
from .failure_history import FailureHistory, claimable, histories
from .locks import fencing, planning_lock
from .locks.leases import Leases, StoreLease, held_here, process_leases
from .locks.owner import Owner
from .retention import Keep, prune
from .rows import Changes, Result, Segment, Study, Trial
from .sql import schema, sqlite_guard
from .sql.database import Database
from .sql.retry import RetryPolicy
from .sql.writes import add_events

KEEP = Keep()
LONGEST_LEASE = 1e7  # seconds, about four months; clocks can express it, and nobody would wait longer
MIRROR = task_rows.MIRROR
P = ParamSpec("P")
T = TypeVar("T")


def _reading(query: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Return a Store method that runs a query in its own transaction."""

    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.database.read(lambda connection: query(connection, *args, **kwargs))

    return method


class Store:
    """A database of tasks and studies.

    It is thread-safe, and a child process can use it after a fork.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user:password@host/name``.
        lease_seconds: seconds for which a lease outlives its process's last heartbeat.
        keep: retention rule for the checkpoints of tasks that have no `snapshots` of their own.
        retry: how long to retry an operation while the database is busy or unreachable: seconds or a RetryPolicy.

    Raises:
        ValueError: `lease_seconds` is out of range.
        StoreError: the database cannot be used.
    """

    def __init__(self, url: str, *, lease_seconds: float = 60.0, keep: Keep = KEEP, retry: float | RetryPolicy = 60.0):
        if not 0 < lease_seconds <= LONGEST_LEASE:
            raise ValueError(
                f"Store: lease_seconds must be above 0, and {LONGEST_LEASE:.0f} at most, but got {lease_seconds}"
            )
        self.lease_seconds, self.keep = lease_seconds, keep
        self.database = Database(url, retry, stall=max(lease_seconds, 1.0))
        self._leases = Leases(self._renew, fencing.BEAT * lease_seconds)
        try:
            self._prepare()
        except BaseException:
            self.database.close()
            raise
        _stores.add(self)
        OPEN.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs: the URL, with its password."""
        url, seconds = self.database.url.render_as_string(hide_password=False), self.database.retry.seconds
        return _opened, (url, {"lease_seconds": self.lease_seconds, "keep": self.keep, "retry": seconds})

    @property
    def url(self) -> str:
        """URL without the password."""
        return self.database.name

    def wait_until(self, stop: Callable[[], bool]) -> None:
        """Set a condition that ends every wait for the database early.

        Args:
            stop: function that returns true once waiting should end; the waiting call then raises its error.
        """
        self.database.retry = replace(self.database.retry, stop=stop)

    def _prepare(self) -> None:
        version = self.database.read(self._version)
        schema.check(version, self.url)
        if version < schema.VERSION:
            self.database.write(lambda connection: schema.upgrade(connection, self.url))

    def _version(self, connection: Connection) -> int:
        sqlite_guard.refuse_views_and_triggers(connection, self.url)
        return schema.version_of(connection)

    # Tasks, for the process that holds them

    def open(self, uid: str, identity: Mapping[str, Any] | None, claimed: StoreLease | None = None) -> StoreLease:
        """Take the lease of a task, which is created if new.

        Args:
            uid: uid of the task.
            identity: identity of the task; None if unknown.
            claimed: lease of the task from ``claim``; it is returned if it is still held, else its note is.

        Raises:
            TaskBusy: a living process holds the lease. If that is this process, its holder here is training; an idle
                holder gives the lease up.
            IdentityMismatch: the uid belongs to another identity.
        """
        if claimed is not None and not claimed.lost:
            fencing.check_identity(uid, claimed.identity, identity)
            if claimed.identity is None and identity is not None:
                self.database.write(lambda connection: fencing.identify(connection, uid, identity))
            return claimed
        for holder in held_here(uid):
            if holder.is_of(self.url, uid):
                self._ask(holder)
        note = {} if claimed is None else claimed.note
        return self._leases.add(self.database.write(lambda connection: self._take(connection, uid, identity, note)))

    def _ask(self, holder: StoreLease) -> None:
        """Ask a holder in this process for its lease, or raise TaskBusy."""
        if holder.give_up is None or not holder.give_up():
            user, how = ("another object", "call its release() or finish()")
            if holder.give_up is not None:
                user, how = ("another thread, or a fit that runs,", "wait until that ends, or stop it")
            cure = f"that is this process, where {user} has it: {how}"
            owner = Owner.current()
            raise TaskBusy(holder.uid, str(owner), owner.host, owner.pid, self.lease_seconds, cure)

    def claim(
        self, study: str, uids: Iterable[str], limit: int | None = None
    ) -> list[tuple[StoreLease, FailureHistory | None]]:
        """Take the leases of free tasks, in the given order.

        A task that failed is not free before its pause is over, and a task that must train alone is claimed alone. Read
        the segments again after claiming, since another worker may have finished one in between.

        Args:
            study: name of the study, recorded with the lease.
            uids: the tasks.
            limit: largest number of leases to take; None for no limit.

        Returns:
            Each lease (pass it to ``open``), with the task's recent failures or None.

        Raises:
            UnknownStudy: the study was deleted; no task is created for it.
        """
        uids = list(uids)
        free, failures = self.database.read(lambda connection: claimable(connection, uids, limit))
        leases: list[StoreLease] = []
        while free and (limit is None or len(leases) < limit):  # other workers may have taken some of them first
            count = len(free) if limit is None else limit - len(leases)
            first, free = free[:count], free[count:]
            claims = self.database.write(partial(self._take_free, uids=first, study=study))
            leases += (self._leases.add(claims[uid]) for uid in first if uid in claims)
        return [(lease, failures.get(lease.uid)) for lease in leases]

    def save(self, writes: Sequence[Write]) -> None:
        """Store several writes in one transaction: all become visible, or none.

        Raises:
            LeaseLost: leases were lost; the error names all of their tasks.
        """
        leases: list[Any] = [write.lease for write in writes]
        blobs = {name: write.blobs for write in writes if write.manifest is not None for name in write.blobs}
        kept = [(write, lease) for write, lease in zip(writes, leases, strict=True) if write.manifest is not None]

        def work(connection: Connection) -> None:
            put_blobs(connection, blobs, lambda name: blobs[name][name])
            put_metrics(connection, [(write.lease.uid, *row) for write in writes for row in write.metrics])
            for write, lease in kept:
                put_checkpoint(connection, write, lease.token)
            for keep in {write.keep or self.keep for write, _ in kept}:
                prune(connection, {lease.uid for write, lease in kept if (write.keep or self.keep) == keep}, keep)
            add_events(connection, [(write.lease.uid, *row) for write in writes for row in write.events])

        self._write_leased(leases, work)

    # Tasks, for everybody

    def load(self, uid: str, epochs: int | None = None, digest: str | None = None) -> Saved | None:
        """Return the last checkpoint of a task, or None.

        Reading needs no lease.

        Args:
            uid: uid of the task.
            epochs: return the last checkpoint at this many epochs.
            digest: return the last checkpoint with this digest.
        """
        return Reader(self.database, uid).last(epochs, digest)

    def uid(self, start: str) -> str:
        """Return the only uid with this prefix.

        Raises:
            ValueError: no uid, or more than one, has the prefix.
        """
        uids = [task.uid for task in self.tasks() if not task.uid.startswith(MIRROR)]
        matches = [uid for uid in uids if uid.startswith(start)]
        if start in matches or len(matches) == 1:
            return start if start in matches else matches[0]
        if matches:
            raise ValueError(
                f"a uid may be shortened to a unique prefix, but {start!r} begins {len(matches)} uids; give more of it"
            )
        study = next((row.name for row in self.studies() if row.name == start), "STUDY")
        raise ValueError(
            f"no task of {self.url} has a uid that begins with {start!r}; `rekindle trials {study}` shows them"
        )

    def task(self, start: str, **options: Any) -> Any:
        """Return a stored task, initialized: ready to act, evaluate or train further.

        The task holds its lease until `task.finish()` or `task.release()`.

        Args:
            start: its uid, or a unique prefix of it.
            options: further arguments of the task class, such as its device.

        Raises:
            ValueError: no task or several match, or the uid belongs to a policy.
            TaskBusy: another process trains it.
        """
        from ...tasks.registry import task_of  # imports torch

        uid = self.uid(start)
        [row] = self.tasks([uid])
        if row.identity is None or "task" not in row.identity:
            raise ValueError(f"a task has an algorithm and an environment, but {uid} is a policy; warm_start= takes it")
        return task_of(row.identity, storage=self, **options)

    tasks = _reading(task_rows.tasks)
    count_tasks = _reading(task_rows.count_tasks)
    reached = _reading(task_rows.reached)
    trained_for = _reading(task_rows.trained_for)
    trials_of = _reading(task_rows.trials_of)
    checkpoints = _reading(task_rows.checkpoints)
    metrics = _reading(metrics_until)
    events = _reading(task_rows.events)
    events_of_study = _reading(task_rows.events_of_study)
    labels = _reading(task_rows.labels)
    saved_last = _reading(task_rows.saved_last)
    curves = _reading(task_rows.curves)
    histories = _reading(histories)
    holders = _reading(task_rows.holders)
    in_training = _reading(task_rows.in_training)
    claims = _reading(task_rows.claims)
    last_work = _reading(task_rows.last_work)
    failures = _reading(task_rows.failures)
    started = _reading(task_rows.started)
    metrics_after = _reading(task_rows.metrics_after)

    def workers(self) -> list[str]:
        """Return the processes that hold leases and are not known dead."""
        return sorted(set(self.holders().values()))

    def branch(self, uid: str, identity: Mapping[str, Any], start: Start) -> bool:
        """Create a task that starts from another task's state.

        A repeated call changes nothing.

        Returns:
            False if that state is no longer stored.
        """
        return self.database.write(lambda connection: branches.create_branch(connection, uid, identity, start))

    # Studies

    def change_study(self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Study:
        """Change a study's configuration in one transaction; return the study.

        Args:
            name: name of the study.
            change: function from the stored configuration (None for a new study) to the one to store. It may run more
                than once. Of two concurrent changes, the second starts from the result of the first.
        """
        return self.database.write(lambda connection: study_rows.change_study(connection, name, change))

    study = _reading(study_rows.get_study)
    studies = _reading(study_rows.studies)
    changes = _reading(study_rows.changes)
    trials = _reading(study_rows.trials)
    segments = _reading(study_rows.segments)
    totals = _reading(study_rows.totals)
    longest = _reading(study_rows.longest)

    commands = _reading(command_rows.commands)
    count_commands = _reading(command_rows.count)

    def changes_with_commands(
        self, name: str, after: int = -1, created: float | None = None
    ) -> tuple[Changes, list[command_rows.Command]] | None:
        """Return what `storage.studies.changes` does, and all commands.

        The result is None if nothing changed. Commands and rows are of one moment: a plan is refused if it does not
        know all commands, and one that knew a command without the rows that it changed would pass.
        """

        def work(connection: Connection) -> tuple[Changes, list[command_rows.Command]] | None:
            changes = study_rows.changes(connection, name, after, created)
            return None if changes is None else (changes, command_rows.commands(connection, name))

        return self.database.read(work)

    def command(self, work: Callable[[Connection], command_rows.Command]) -> command_rows.Command:
        """Write a command, created by one of the functions of `storage.commands`."""
        return self.database.write(work)

    def add_rows(
        self,
        study: str,
        *,
        trials: Iterable[Trial] = (),
        segments: Iterable[Segment] = (),
        finished: Iterable[tuple[int, str]] = (),
        after: int | None = None,
        commands_known: int | None = None,
    ) -> bool:
        """Add missing rows, and end trials, in one transaction.

        Args:
            study: name of the study.
            trials: new trials; those that exist already stay unchanged.
            segments: new segments; likewise.
            finished: (number, state) of trials that end.
            after: a revision of the study; if anything changed after it, nothing is written.
            commands_known: number of commands that the rows take into account; if there are more by now, nothing is
                written.

        Returns:
            Whether the rows were written.
        """
        new_trials, new_segments = list(trials), list(segments)
        ends: dict[str, list[int]] = {}
        for number, state in finished:
            ends.setdefault(state, []).append(number)

        def work(connection: Connection) -> bool:
            revision = study_rows.revise(connection, study)
            if after is not None and revision != after + 1:
                return False
            if commands_known is not None and command_rows.count(connection, study) != commands_known:
                return False
            study_rows.add_trials(connection, study, new_trials, revision)
            study_rows.add_segments(connection, study, new_segments, revision)
            for state, numbers in ends.items():
                study_rows.finish_trials(connection, study, numbers, state, None, revision)
            if new_trials:
                planning_lock.release(connection, study)
            return True

        written = self.database.write(work)
        if written and ends:
            self._release_of_dead(study, [number for numbers in ends.values() for number in numbers])
        return written

    def _release_of_dead(self, study: str, numbers: Collection[int]) -> None:
        """Release leases that dead processes hold of trials that have ended.

        They died between a result and its release, and no one will ever take these leases. That is a transaction of
        its own, since others lock tasks before studies.
        """

        def left(connection: Connection) -> dict[str, int]:
            return fencing.left_by_dead(
                connection, {row.uid for row in study_rows.trials(connection, study, of=numbers)}
            )

        if tokens := self.database.read(left):
            self.database.write(lambda connection: fencing.release(connection, tokens))

    def acquire_planning(self, study: str, revision: int) -> bool:
        """Try to become the process that creates the trials after a revision.

        The lock is released when trials are added, or ``planning_seconds`` after it was taken or last renewed.

        Returns:
            False while another process holds the lock.
        """
        if not self.database.read(lambda connection: planning_lock.is_free(connection, study, revision)):
            return False
        seconds = self.planning_seconds
        return self.database.write(lambda connection: planning_lock.acquire(connection, study, revision, seconds))

    def renew_planning(self, study: str) -> None:
        """Renew the lock of ``acquire_planning``, if this process holds it."""
        self.database.write(lambda connection: planning_lock.renew(connection, study, self.planning_seconds))

    @property
    def planning_seconds(self) -> float:
        """Seconds without a renewal after which another process may plan."""
        return min(self.lease_seconds, planning_lock.SECONDS)

    def finish_segments(self, study: str, results: Sequence[Result]) -> None:
        """End segments with their scores, all or none, under their tasks' leases.

        The metrics of a result are merged into those of its epochs. Repeating an equal result changes nothing.

        Raises:
            ResultMismatch: a segment is already finished with another score, digest or objective.
            LeaseLost: leases were lost, or trials cancelled; the error names all of their tasks.
        """

        def work(connection: Connection) -> None:
            for result in results:
                merge_metrics(connection, result.lease.uid, result.metrics)
            revision = study_rows.revise(connection, study)  # last, since it locks the study's row against others
            _refuse_cancelled(connection, study, {result.number: result.lease.uid for result in results})
            for result in results:
                study_rows.finish_segment(connection, study, result, revision)

        self._write_leased([result.lease for result in results], work)

    def fail_trial(
        self, lease: StoreLease, study: str, number: int, rung: int, error: str, note: Mapping[str, Any] | None = None
    ) -> None:
        """End a segment and its trial as failed, under its task's lease.

        Args:
            lease: lease of the task.
            study: name of the study.
            number: number of the trial.
            rung: rung of the segment.
            error: traceback to store.
            note: content of the event to add (``failures.event_data``), if any.

        Raises:
            LeaseLost: the lease was lost, or the trial cancelled.
        """

        def work(connection: Connection) -> None:
            revision = study_rows.revise(connection, study)
            _refuse_cancelled(connection, study, {number: lease.uid})
            study_rows.finish_segment(connection, study, Result(lease, number, rung, None), revision)
            study_rows.finish_trials(connection, study, [number], "failed", error, revision)
            add_events(connection, [(lease.uid, FAILED, note)] if note else [])

        self._write_leased([lease], work)

    def evict_hung(self, owner: str, ask: Callable[[], Hung]) -> list[str]:
        """Take its tasks away from a process that hangs; return their uids.

        An event is added to each task. The usual rule for such failures decides whether it is retried. The process may
        wake up later, but can no longer write.

        Args:
            owner: the process.
            ask: function that finds out where the process hangs.
        """

        def work(connection: Connection) -> list[str]:
            evicted, error = fencing.evict(connection, owner), ask()
            command_rows.note_hung_probe(connection, owner, str(error).splitlines()[0])
            failures = histories(connection, [uid for uid, _ in evicted])
            tried = {uid: failures[uid].failed[HUNG] if uid in failures else 0 for uid, _ in evicted}
            # always recorded as a retry: the worker that claims the task next ends the trial if there were too many
            decisions = {uid: replace(decide(error, times), retry=True, alone=True) for uid, times in tried.items()}
            add_events(
                connection, [(uid, FAILED, event_data(error, decisions[uid], epochs)) for uid, epochs in evicted]
            )
            return [uid for uid, _ in evicted]

        return self.database.write(work)

    def excuse(self, pids: Collection[int]) -> None:
        """Free the tasks of processes that the user has killed here.

        Their deaths count against no trial.
        """

        def work(connection: Connection) -> None:
            for text in fencing.owners(connection):
                if (owner := Owner.parse(text)).pid in pids and owner.is_dead():
                    fencing.evict(connection, text)

        self.database.write(work)

    # Life

    def close(self) -> None:
        """Release every lease and close the connections; a second call does nothing."""
        OPEN.discard(self)
        self._leases.stop()
        with contextlib.suppress(StoreError):  # if the database is gone, the leases end by themselves
            self._release_tokens(self._leases.remove(self._leases.all()) | self._leases.abandoned(), seconds=1.0)
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # What a lease asks of its store

    def _take_free(self, connection: Connection, uids: Iterable[str], study: str) -> dict[str, StoreLease]:
        """Take the leases of those tasks that are still free, by uid."""
        leases = {}
        for uid in sorted(uids):  # rows are locked in one order everywhere
            with contextlib.suppress(TaskBusy):  # another worker was quicker
                leases[uid] = self._take(connection, uid, None, {"study": study})
        study_rows.keep(connection, study)
        return leases

    def _take(
        self, connection: Connection, uid: str, identity: Mapping[str, Any] | None, note: Mapping[str, Any]
    ) -> StoreLease:
        """Create a lease before the transaction ends.

        Other threads of this process therefore see at once that the task is held.
        """
        token, stored = fencing.take(connection, uid, identity, self.lease_seconds, note)
        return StoreLease(self, uid, token, stored, note)

    def _renew(self) -> None:
        leases = sorted(self._leases.all(), key=lambda lease: lease.uid)

        def work(connection: Connection) -> list[StoreLease]:
            return [lease for lease in leases if not fencing.renewed(connection, lease, self.lease_seconds)]

        if leases:
            self._leases.remove(self.database.write(work, seconds=self.lease_seconds / 4))
        self._release_tokens(self._leases.abandoned(), self.lease_seconds / 4)

    def release(self, leases: Iterable[StoreLease]) -> None:
        """Free these tasks for other processes.

        If the database is unreachable, their leases expire instead.
        """
        if self.database.busy:  # called by a finalizer within a transaction, which a second one would wait for
            for lease in leases:
                self._leases.abandon(lease)
            return
        with contextlib.suppress(StoreError):
            self._release_tokens(self._leases.remove(leases), self.lease_seconds / 4)

    def _release_tokens(self, tokens: Mapping[str, int], seconds: float | None = None) -> None:
        if tokens:
            self.database.write(lambda connection: fencing.release(connection, tokens), seconds)

    def load_leased(self, lease: StoreLease, allow_previous: bool) -> Saved | None:
        """Return the last checkpoint of a task that this process holds.

        See `StoreLease.load`.
        """
        lease.check()
        reader = Reader(self.database, lease.uid)
        if not allow_previous:
            return reader.last()
        sound, damages = reader.sound()
        if damages:
            bad = {name for damage in damages for name in damage.blobs}
            self._write_leased([lease], lambda connection: mark_damaged(connection, bad))
            if not sound:
                raise none_sound(damages)
            self._go_back(lease, sound[0].id, "damaged", {"damage": [str(damage) for damage in damages]})
        return reader.saved(sound) if sound else None

    def discard(self, lease: StoreLease) -> None:
        """Delete all checkpoints of a task that this process holds.

        An event records the deletion.
        """
        self._go_back(lease, None, "discarded", {})

    def _go_back(self, lease: StoreLease, last: int | None, category: str, note: Mapping[str, Any]) -> None:

        def work(connection: Connection) -> None:
            epochs = go_back(connection, lease.uid, last)
            add_events(connection, [(lease.uid, category, {"epochs": epochs, **note})])

        self._write_leased([lease], work)

    def _write_leased(self, leases: Sequence[Any], work: Callable[[Connection], None]) -> None:
        """Write in one transaction, under leases that are held until it ends."""
        for lease in leases:
            lease.check()

        def fenced(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            work(connection)

        self.database.write(fenced)

    def _after_fork(self) -> None:
        """Start without leases in a child process.

        Leases, thread and connections stay the parent's.
        """
        self._leases = Leases(self._renew, fencing.BEAT * self.lease_seconds)
        self.database.connect()


def opened(storage: str | Store) -> contextlib.AbstractContextManager[Store]:
    """Open a store for a block; one that is given stays open."""
    return contextlib.nullcontext(storage) if isinstance(storage, Store) else Store(storage)


def _refuse_cancelled(connection: Connection, study: str, uids: Mapping[int, str]) -> None:
    """Raise LeaseLost for cancelled trials, given by number with their tasks.

    A command takes the leases of trials that it ends, but their tasks may have been leased again: by a worker that is
    to record a failure, or one that claimed the task before the command was visible.
    """
    rows = study_rows.trials(connection, study, of=list(uids))
    if over := [uids[row.number] for row in rows if row.state == command_rows.CANCELLED]:
        raise LeaseLost(over, "a command has cancelled its trial")


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    process_leases.clear()
    for store in _stores:
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _opened(url: str, options: Mapping[str, Any]) -> Store:
    """Open the store that `Store.__reduce__` describes."""
    return Store(url, **options)
