"""Rows of Orion's database held by a process, and algorithms' locks.

A process holds a row by writing a token into it, and a thread renews the row's heartbeat.

Orion's workers take turns: lock the algorithm's row, read its state, suggest or observe trials, write the state back.
Here the lock is a lease with its holder's token. A result that a worker wrote is marked as unobserved ("untold") until
a state that has observed it is written. If the worker is killed in between, the next holder of the lock makes the
algorithm observe the result, for which Hyperband would otherwise wait forever. If the algorithm has nothing to suggest,
its row says when to ask again ("dry").
"""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from ..storage.locks.leases import Heartbeat
from ..storage.locks.owner import Owner
from .algorithm_state import UnreadableState, dump_state, load_state
from .db import RekindleSQL
from .document_tables import Collections
from .documents import Document

# After `db`, which silences the warnings of orion's imports.
from orion.core.io.database import DatabaseError  # isort: skip
from orion.core.worker.trial import Trial  # isort: skip
from orion.storage.base import LockAcquisitionTimeout, LockedAlgorithmState  # isort: skip

_RANDOM = random.SystemRandom()  # environments may use the global generator

log = logging.getLogger(__name__)


class LeasedRows:
    """Rows of Orion's database that this process holds by tokens.

    A thread renews the heartbeat of each row as long as the row has the token. A forked child starts without rows; its
    parent keeps all of them.
    """

    def __init__(self, database: RekindleSQL):
        self._database = database
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._rows: dict[str, tuple[str, Document]] = {}
        self._heartbeat: Heartbeat | None = None

    def rows(self) -> dict[str, tuple[str, Document]]:
        """Return the collection and query of each held row, by token."""
        if self._pid != os.getpid():
            self._start()
        return self._rows

    def hold(self, token: str, collection: str, row: Document, seconds: float) -> None:
        """Renew a row's heartbeat from now on.

        The first call sets the interval between heartbeats for all rows.
        """
        self.rows()[token] = (collection, row)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._beat, seconds)

    def drop(self, token: str | None) -> None:
        """Stop renewing a row."""
        self.rows().pop(token or "", None)

    def drop_all(self, collection: str) -> None:
        """Stop renewing the rows of a collection."""
        for token in [token for token, lease in self.rows().items() if lease[0] == collection]:
            self.drop(token)

    def touch(self, collection: str, row: Document) -> int:
        """Set the heartbeat of the rows that match; return their number."""
        return self._database.transact(lambda rows: rows.update(collection, row, {"heartbeat": rows.now()}))

    def _beat(self) -> None:
        for token, (collection, row) in list(self._rows.items()):
            try:
                if not self.touch(collection, row):
                    self._rows.pop(token, None)
            except DatabaseError as error:  # the database may return before others take this process for dead
                log.warning("no sign of life could be given for %s: %s", token, error)


def new_token() -> str:
    """Return a new token, which names this process."""
    return f"{Owner.current()}#{uuid.uuid4().hex[:16]}"


def is_ours(token: Any) -> bool:
    """Return whether this process made the token."""
    return str(token).partition("#")[0] == str(Owner.current())


def is_dead(token: Any) -> bool:
    """Return whether the process that made the token has certainly ended.

    The result is False for a process on another machine.
    """
    return Owner.parse(str(token).partition("#")[0]).is_dead()


def is_silent(heartbeat: Any, token: Any, before: datetime) -> bool:
    """Return whether a row's holder has ended, or been silent since ``before``."""
    return not isinstance(heartbeat, datetime) or heartbeat <= before or is_dead(token)


class AlgorithmLockLost(LockAcquisitionTimeout):  # type: ignore[misc]  # orion has no types
    """Loss of a held lock to another worker.

    The algorithm's changes under the lock were not written.
    """


class AlgorithmLock:
    """Locks on the algorithms of a database's experiments.

    Args:
        database: Orion's database.
        leased_rows: rows that this process holds.
        seconds: seconds for which a lock outlives its holder's last heartbeat.
        trusted: classes that a state may contain besides those of Orion's own algorithms.
    """

    def __init__(self, database: RekindleSQL, leased_rows: LeasedRows, seconds: float, trusted: Sequence[str]):
        self._database, self.leased_rows = database, leased_rows
        self.seconds, self.trusted = seconds, trusted
        self.registered = 0  # trials that this process added; unchanged if a holder of the lock suggested none

    @contextmanager
    def hold(self, experiment: Any, uid: Any, timeout: float, retry_interval: float) -> Iterator[LockedAlgorithmState]:
        """Hold the lock of an experiment's algorithm.

        A state that is set within the context is written at its end, unless the context ends with an exception.
        """
        token, algorithm = new_token(), getattr(experiment, "algorithm", None)
        row = {"experiment": uid, "locked": 1, "owner": token}
        try:
            document = self._wait(uid, token, timeout, retry_interval)
            self.leased_rows.hold(token, "algo", row, self.seconds / 3)
            started, registered, state = time.monotonic(), self.registered, None
            try:
                read = self._state(document["state"])
                locked = LockedAlgorithmState(read, document["configuration"])
                if algorithm is not None and algorithm.configuration == document["configuration"]:
                    self._observe_missed(algorithm, uid, locked)
                yield locked
                state = locked.state if locked.state is not read else None
            finally:
                self.leased_rows.drop(token)
                vain = time.monotonic() - started if self.registered == registered else 0.0
                freed = self._write(row, state, algorithm, vain)
            if not freed and state is not None:  # without a new state nothing is lost, e.g. after `orion db release`
                raise AlgorithmLockLost(
                    f"the algorithm of experiment {uid} was given to another worker, because this one was silent "
                    f"for {self.seconds:g} s; the changes of its algorithm were not written"
                )
        except BaseException:
            self.leased_rows.drop_all("untold")  # lets others make the algorithm observe these trials
            raise

    def release(self, uid: Any) -> int:
        """Free the lock; return 1 if it was held, else 0."""
        return self._database.transact(
            lambda rows: rows.update("algo", {"experiment": uid, "locked": 1}, {"locked": 0})
        )

    def info(self, uid: Any) -> LockedAlgorithmState | None:
        """Return the last written state of the algorithm, without locking.

        The result is None if the lock does not exist.
        """
        for lock in self._database.read("algo", {"experiment": uid}):
            return LockedAlgorithmState(self._state(lock["state"]), lock["configuration"], lock["locked"])
        return None

    def mark_unobserved(self, rows: Collections, trial: Trial) -> None:
        """Mark a finished trial as one that the algorithm has not observed.

        The mark must be written in the transaction that ends the trial.
        """
        rows.insert("untold", [_mark(trial) | {"heartbeat": rows.now()}])

    def renew_unobserved(self, trial: Trial) -> None:
        """Renew that mark until the algorithm has observed the trial."""
        self.leased_rows.hold(trial.worker, "untold", _mark(trial), self.seconds / 3)

    def is_dry(self, rows: Collections, uid: Any, now: datetime) -> bool:
        """Return whether the algorithm must wait for results to suggest anything.

        This is so if it recently had nothing to suggest, and other workers still train trials or have results for it.
        """
        if not rows.count("algo", {"experiment": uid, "dry": {"$gt": now}}):
            return False
        untold = rows.find("untold", {"experiment": uid})
        if any(is_ours(mark["worker"]) for mark in untold):
            return False
        return bool(untold or rows.count("trials", {"experiment": uid, "status": "reserved"}))

    def _wait(self, uid: Any, token: str, timeout: float, retry_interval: float) -> Document:
        start, pause = time.monotonic(), 0.01
        while (document := self._database.transact(lambda rows: self._take(rows, uid, token))) is None:
            if time.monotonic() - start > timeout:
                raise LockAcquisitionTimeout(f"others held the algorithm of experiment {uid} for {timeout:g} s")
            time.sleep(pause * _RANDOM.uniform(0.5, 1.5))
            pause = min(2 * pause, 0.05, retry_interval)  # kept short, or newcomers would overtake long waiters
        return document

    def _take(self, rows: Collections, uid: Any, token: str) -> Document | None:
        now = rows.now()
        if self.is_dry(rows, uid, now):  # workers with results go first
            return None
        fields = {"locked": 1, "owner": token, "lease": self.seconds, "heartbeat": now}
        if free := rows.update_first("algo", {"experiment": uid, "locked": 0}, fields):
            return free
        for document in rows.find("algo", {"experiment": uid, "locked": 1}, {"state": 0, "configuration": 0, "dry": 0}):
            lease = timedelta(seconds=document.get("lease", self.seconds))
            if is_silent(document.get("heartbeat"), document.get("owner"), now - lease):
                log.warning("took over the algorithm of experiment %s from %s", uid, document.get("owner"))
                return rows.update_first("algo", document, fields)
        return None

    def _observe_missed(self, algorithm: Any, uid: Any, locked: LockedAlgorithmState) -> None:
        """Make the algorithm observe trials whose workers ended before doing so.

        Workers that fell silent count as ended.
        """

        def work(rows: Collections) -> list[Trial]:
            before = rows.now() - timedelta(seconds=self.seconds)
            marks = rows.find("untold", {"experiment": uid})
            return _trials(rows, [mark for mark in marks if is_silent(mark["heartbeat"], mark["worker"], before)])

        late = self._database.transact(work)
        if not late:
            return
        if locked.state:
            algorithm.set_state(locked.state)
        missed = [trial for trial in late if algorithm.has_suggested(trial) and not algorithm.has_observed(trial)]
        if missed:
            log.warning(
                "told the algorithm of experiment %s of %d trials that ended with their workers", uid, len(missed)
            )
            algorithm.observe(missed)
            locked.set_state(algorithm.state_dict)

    def _write(self, row: Document, state: Any, algorithm: Any, vain: float) -> int:
        """Free the lock, and write the new state unless it is None.

        The result is 0 if another worker has the lock by now.
        """
        if state is None:
            return self._database.transact(lambda rows: rows.update("algo", row, {"locked": 0}))
        data = {"locked": 0, "state": dump_state(state)}

        def work(rows: Collections) -> int:
            untold = _trials(rows, rows.find("untold", {"experiment": row["experiment"]}))
            observed = [trial.id for trial in untold if algorithm and algorithm.has_observed(trial)]
            # Fruitless requests take at most a fifth of the lock's time, so workers with results get their turn.
            dry = None if observed else rows.now() + timedelta(seconds=min(4 * vain, self.seconds))
            freed = rows.update("algo", row, {**data, "dry": dry})
            if freed and observed:
                rows.remove("untold", {"experiment": row["experiment"], "id": {"$in": observed}})
            return freed

        return self._database.transact(work)

    def _state(self, data: Any) -> Any:
        try:
            return load_state(data, self.trusted)
        except UnreadableState as error:
            raise DatabaseError(str(error)) from error


def _mark(trial: Trial) -> Document:
    return {"experiment": trial.experiment, "id": trial.id, "worker": trial.worker}


def _trials(rows: Collections, marks: Sequence[Document]) -> list[Trial]:
    """Return the trials that marks refer to."""
    documents = [rows.find("trials", {"experiment": mark["experiment"], "id": mark["id"]}) for mark in marks]
    return [Trial(**trial) for trials in documents for trial in trials]
