"""The store: tasks, leases, checkpoints, events and studies in one database.

    with Store("sqlite:///studies.db") as store:
        lease = store.open(uid, identity)          # TaskBusy while another process holds the task
        saved = lease.load()                       # the last checkpoint, or None
        store.save([Write(lease, epochs=1, ...)])  # all or nothing; LeaseLost if another process has the task
        lease.release()

Any number of processes may share a database. Only the process that holds its lease writes a task; each taking of the
lease raises its fencing token, and every write names the token in the same transaction, so a process that was paused
past its lease cannot write a row or a blob afterwards. A thread renews the leases of this process while it lives. The
lease of a dead process is free at once on the same machine, and elsewhere when it ends, by the database's clock.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from ...tasks.checkpoint.storage import Saved, Write
from ...tasks.errors import Hung
from ..errors import StoreError, TaskBusy
from ..failures import FAILED, HUNG, decide, note
from . import branches
from . import commands as command_rows
from . import studies as study_rows
from . import tasks as task_rows
from .branches import Start
from .checkpoints import Reader, go_back, merge_metrics, metrics_until, put_blobs, put_checkpoint, put_metrics
from .failure_history import FailureHistory, claimable, histories
from .locks import fencing, planning_lock
from .locks.leases import HeldLeases, StoreLease, held_here
from .locks.owner import Owner
from .retention import Keep, prune
from .rows import Result, Segment, Study, Trial
from .sql import schema, sqlite_guard
from .sql.database import Database
from .sql.retry import RetryPolicy
from .sql.writes import add_events

KEEP = Keep()
LONGEST_LEASE = 1e7  # seconds; what clocks can express, and people would wait for
MIRROR = task_rows.MIRROR
P = ParamSpec("P")
T = TypeVar("T")


def _reading(query: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Return the method that runs a query in its own transaction."""

    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.database.read(lambda connection: query(connection, *args, **kwargs))

    return method


class Store:
    """One database of tasks and studies.

    It is thread-safe, and usable in a child after fork.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user:password@host/name``.
        lease_seconds: how long a lease outlives the last sign of life of its process.
        keep: retention of the checkpoints of tasks without `snapshots` of their own.
        retry: how long an operation is retried while the database is busy or gone; seconds, or a RetryPolicy.
    """

    def __init__(self, url: str, *, lease_seconds: float = 60.0, keep: Keep = KEEP, retry: float | RetryPolicy = 60.0):
        if not 0 < lease_seconds <= LONGEST_LEASE:
            raise ValueError(
                f"Store: lease_seconds must be above 0, and {LONGEST_LEASE:.0f} at most, but got {lease_seconds}"
            )
        self.lease_seconds, self.keep = lease_seconds, keep
        self.database = Database(url, retry, stall=max(lease_seconds, 1.0))
        self._held = HeldLeases(self._renew, fencing.BEAT * lease_seconds)
        try:
            self._prepare()
        except BaseException:
            self.database.close()
            raise
        _stores.add(self)

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self.database.name

    def wait_until(self, stop: Callable[[], bool]) -> None:
        """End a wait for the database early, once ``stop()`` holds.

        The call that waits raises its error then.
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
        """Take the lease of a task, created if it is new.

        Args:
            uid: the task.
            identity: the task's; None if it is not known.
            claimed: a lease of the task from ``claim``; returned if it is still held.

        Raises:
            TaskBusy: a living process holds the lease, this one included, unless its holder here is idle and gives
                it up.
            IdentityMismatch: the uid belongs to another identity.
        """
        if claimed is not None and not claimed.lost:
            fencing.check_identity(uid, claimed.identity, identity)
            if claimed.identity is None and identity is not None:
                self.database.write(lambda connection: fencing.identify(connection, uid, identity))
            return claimed
        for holder in [lease for lease in held_here.values() if lease.is_of(self.url, uid)]:
            self._ask(holder)
        return self._held.add(self.database.write(lambda connection: self._take(connection, uid, identity, {})))

    def _ask(self, holder: StoreLease) -> None:
        """Take a lease back from its holder here; TaskBusy if it trains."""
        if holder.give_up is None or not holder.give_up():
            who, how = ("another object", "call its release() or finish()")
            if holder.give_up is not None:
                who, how = ("another thread, or a fit that runs,", "wait until that ends, or stop it")
            cure = f"that is this process, where {who} has it: {how}"
            owner = Owner.current()
            raise TaskBusy(holder.uid, str(owner), owner.host, owner.pid, self.lease_seconds, cure)

    def claim(
        self, study: str, uids: Iterable[str], limit: int | None = None
    ) -> list[tuple[StoreLease, FailureHistory | None]]:
        """Take the leases of at most ``limit`` free tasks, in this order.

        A task that failed is not free before its pause is over, and a task to be trained alone is claimed alone. Each
        lease comes with the task's recent failures, if it had any; pass it to ``open`` when the task is made. Read the
        segments again after claiming: another worker may have finished one between your reading and the claim.
        """
        uids = list(uids)
        free, failures = self.database.read(lambda connection: claimable(connection, uids, limit))
        leases: list[StoreLease] = []
        while free and (limit is None or len(leases) < limit):  # until others were not quicker
            count = len(free) if limit is None else limit - len(leases)
            first, free = free[:count], free[count:]
            taken = self.database.write(partial(self._take_free, uids=first, study=study))
            leases += (self._held.add(taken[uid]) for uid in first if uid in taken)
        return [(lease, failures.get(lease.uid)) for lease in leases]

    def save(self, writes: Sequence[Write]) -> None:
        """Make all of the writes visible together, or none.

        LeaseLost names every task that is lost.
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

        self._write_held(leases, work)

    # Tasks, for everybody

    def load(self, uid: str, epochs: int | None = None, digest: str | None = None) -> Saved | None:
        """Return the last checkpoint of a task, or None; needs no lease.

        With ``epochs`` or ``digest``, return the last one with these.
        """
        return Reader(self.database, uid).last(epochs, digest)

    def uid(self, start: str) -> str:
        """Return the one uid with this prefix; ValueError without exactly one."""
        uids = [task.uid for task in self.tasks() if not task.uid.startswith(MIRROR)]
        matches = [uid for uid in uids if uid.startswith(start)]
        if start in matches or len(matches) == 1:
            return start if start in matches else matches[0]
        if matches:
            raise ValueError(
                f"a uid may be cut short as long as one task begins so, but {start!r} begins {len(matches)}"
            )
        raise ValueError(
            f"no task of {self.url} has a uid that begins with {start!r}; `rekindle trials STUDY` shows them"
        )

    def task(self, start: str, **options: Any) -> Any:
        """Return a stored task, initialized: ready to act, evaluate or train on.

        It holds its lease until `task.finish()` or `task.release()`.

        Args:
            start: its uid, or a unique prefix.
            options: arguments of the task's class, such as its device.

        Raises:
            ValueError: no task, or several, have such a uid.
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
        """Create a task that starts from a state of another one.

        Return False if that state is not stored any more.

        The same again changes nothing.
        """
        return self.database.write(lambda connection: branches.create_branch(connection, uid, identity, start))

    # Studies

    def change_study(self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Study:
        """Store the configuration that ``change`` returns, and return the study.

        ``change`` is given the stored configuration, or None, and may run more than once. Of two changes at once the
        second starts from the result of the first.
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

    def command(self, work: Callable[[Connection], command_rows.Command]) -> command_rows.Command:
        """Write a command, made by one of the functions of `storage.commands`."""
        return self.database.write(work)

    def add_rows(
        self,
        study: str,
        *,
        trials: Iterable[Trial] = (),
        segments: Iterable[Segment] = (),
        finished: Iterable[tuple[int, str]] = (),
        since: int | None = None,
        commands_known: int | None = None,
    ) -> bool:
        """Add rows that do not exist, and end trials, in one transaction.

        Args:
            study: the name.
            trials: new ones.
            segments: new ones.
            finished: (number, state) of trials that end.
            since: a revision of the study; if anything has changed after it, nothing is done and False returned.
            commands_known: the number of the study's commands that the rows follow from; likewise.
        """
        new_trials, new_segments = list(trials), list(segments)
        ends: dict[str, list[int]] = {}
        for number, state in finished:
            ends.setdefault(state, []).append(number)

        def work(connection: Connection) -> bool:
            revision = study_rows.revise(connection, study)
            if since is not None and revision != since + 1:
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

        return self.database.write(work)

    def acquire_planning(self, study: str, revision: int) -> bool:
        """Return whether this process makes the trials that follow from a revision.

        Return False while another process does.

        The lock is released when trials are added, or ``planning_seconds`` after it was taken or renewed.
        """
        if not self.database.read(lambda connection: planning_lock.is_free(connection, study, revision)):
            return False
        seconds = self.planning_seconds
        return self.database.write(lambda connection: planning_lock.acquire(connection, study, revision, seconds))

    def renew_planning(self, study: str) -> None:
        """Keep the lock of ``acquire_planning``, if this process has it."""
        self.database.write(lambda connection: planning_lock.renew(connection, study, self.planning_seconds))

    @property
    def planning_seconds(self) -> float:
        """Seconds of silence after which others make a process's trials."""
        return min(self.lease_seconds, planning_lock.SECONDS)

    def finish_segments(self, study: str, results: Sequence[Result]) -> None:
        """End segments with their scores, all or none, under their tasks' leases.

        The metrics of a result are added to those of their epochs. The same result again changes nothing.

        Raises:
            ResultMismatch: a segment is finished already, with another score, digest or objective.
            LeaseLost: a lease was lost; the error names every such task.
        """

        def work(connection: Connection) -> None:
            for each in results:
                merge_metrics(connection, each.lease.uid, each.metrics)
            revision = study_rows.revise(connection, study)  # late: others wait for the study from here on
            for each in results:
                study_rows.finish_segment(connection, study, each, revision)

        self._write_held([each.lease for each in results], work)

    def fail_trial(
        self, lease: StoreLease, study: str, number: int, rung: int, error: str, note: Mapping[str, Any] | None = None
    ) -> None:
        """End a segment and its trial as failed, under its task's lease.

        The traceback is stored. ``note`` is the content of the event (``failures.note``).
        """

        def work(connection: Connection) -> None:
            revision = study_rows.revise(connection, study)
            study_rows.finish_segment(connection, study, Result(lease, number, rung, None), revision)
            study_rows.finish_trials(connection, study, [number], "failed", error, revision)
            add_events(connection, [(lease.uid, FAILED, note)] if note else [])

        self._write_held([lease], work)

    def evict_hung(self, owner: str, ask: Callable[[], Hung]) -> list[str]:
        """Take its tasks away from a process that hangs; return uids.

        An event of each says so; it is to be retried, or fails, by the rule of such failures.

        Args:
            owner: the process.
            ask: finds out where it hangs. It may wake up from that, but cannot write any more.
        """

        def work(connection: Connection) -> list[str]:
            held, error = fencing.evict(connection, owner), ask()
            known = histories(connection, [uid for uid, _ in held])
            tried = {uid: known[uid].failed[HUNG] if uid in known else 0 for uid, _ in held}
            # a retry, also after the last one: who claims it next ends the trial
            decisions = {uid: replace(decide(error, times), retry=True, alone=True) for uid, times in tried.items()}
            add_events(connection, [(uid, FAILED, note(error, decisions[uid], epochs)) for uid, epochs in held])
            return [uid for uid, _ in held]

        return self.database.write(work)

    # Life

    def close(self) -> None:
        """Release every lease and close the connections. Nothing happens the second time."""
        self._held.stop()
        with contextlib.suppress(StoreError):  # if the database is gone, the leases end by themselves
            self._release_tokens(self._held.remove(self._held.all()) | self._held.abandoned(), seconds=1.0)
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    # What a lease asks of its store

    def _take_free(self, connection: Connection, uids: Iterable[str], study: str) -> dict[str, StoreLease]:
        """Take the leases of the tasks that are still free.

        The leases are returned by uid.
        """
        leases = {}
        for uid in sorted(uids):  # rows are locked in one order everywhere
            with contextlib.suppress(TaskBusy):  # another worker was quicker
                leases[uid] = self._take(connection, uid, None, {"study": study})
        return leases

    def _take(
        self, connection: Connection, uid: str, identity: Mapping[str, Any] | None, note: Mapping[str, Any]
    ) -> StoreLease:
        """Return a lease, made before the transaction ends.

        Other threads thus see that the task is held.
        """
        token, known = fencing.take(connection, uid, identity, self.lease_seconds, note)
        return StoreLease(self, uid, token, known)

    def _renew(self) -> None:
        leases = sorted(self._held.all(), key=lambda lease: lease.uid)

        def work(connection: Connection) -> list[StoreLease]:
            return [lease for lease in leases if not fencing.renewed(connection, lease, self.lease_seconds)]

        if leases:
            self._held.remove(self.database.write(work, seconds=self.lease_seconds / 4))
        self._release_tokens(self._held.abandoned(), self.lease_seconds / 4)

    def release(self, leases: Iterable[StoreLease]) -> None:
        """Free these tasks for other processes.

        If the database is gone, their leases expire.
        """
        if self.database.busy:  # called by a finalizer within a transaction, which a second one would wait for
            for lease in leases:
                self._held.abandon(lease)
            return
        with contextlib.suppress(StoreError):
            self._release_tokens(self._held.remove(leases), self.lease_seconds / 4)

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
        saved, damages = reader.last_sound()
        if saved is not None and damages:
            note = {"damage": [str(damage) for damage in damages]}
            self._go_back(lease, saved.epochs, "damaged", note, [name for damage in damages for name in damage.blobs])
        return saved

    def discard(self, lease: StoreLease) -> None:
        """Delete all checkpoints of a task that this process holds.

        An event records the deletion.
        """
        self._go_back(lease, 0, "discarded", {}, [])

    def _go_back(self, lease: StoreLease, epochs: int, kind: str, note: Mapping[str, Any], bad: Sequence[str]) -> None:

        def work(connection: Connection) -> None:
            go_back(connection, lease.uid, epochs, bad)
            add_events(connection, [(lease.uid, kind, {"epochs": epochs, **note})])

        self._write_held([lease], work)

    def _write_held(self, leases: Sequence[Any], work: Callable[[Connection], None]) -> None:
        """Write in one transaction, under leases held until it ends."""
        for lease in leases:
            lease.check()

        def fenced(connection: Connection) -> None:
            fencing.fence(connection, leases, self.lease_seconds)
            work(connection)

        self.database.write(fenced)

    def _after_fork(self) -> None:
        """Start without leases: the parent keeps them, the thread and the connections."""
        self._held = HeldLeases(self._renew, fencing.BEAT * self.lease_seconds)
        self.database.connect()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    held_here.clear()
    for store in _stores:
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
