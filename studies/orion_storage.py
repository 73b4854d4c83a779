"""Orion's storage without its holes: ``storage={"type": "rekindlestorage", "database": {"host": URL}}``.

Orion's own storage (``legacy``) trusts whoever comes: a worker whose trial was given to another may still report its
result, a worker that is killed while it holds the algorithm's lock stops all others for good, workers that finish
together overshoot ``max_trials``. Here every reservation has an owner, on the trial and in its row; the lock is a
lease; what is counted and what is taken are one transaction; and the clock is the database's.
"""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from .leases import Heartbeat
from .orion_db import RekindleSQL
from .orion_documents import Document
from .orion_state import UnreadableState, dump_state, load_state
from .orion_tables import Collections
from .owner import Owner

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # orion 0.2.7 imports pkg_resources, which warns of its own end
    import orion.core
    from orion.core.io.database import DatabaseError
    from orion.core.utils.exceptions import WaitingForTrials
    from orion.core.worker.trial import Trial, validate_status
    from orion.storage.base import FailedUpdate, LockAcquisitionTimeout, LockedAlgorithmState, get_uid
    from orion.storage.legacy import Legacy

log = logging.getLogger(__name__)

_PENDING = {"$in": ["new", "interrupted", "suspended"]}
_LOST_BEATS = 5  # Orion's own factor: a trial is lost after so many heartbeats that did not come


class AlgorithmLockLost(LockAcquisitionTimeout):  # type: ignore[misc]
    """The lock was given to another worker while this one held it; what its algorithm did since was not written."""


class RekindleStorage(Legacy):  # type: ignore[misc]  # orion has no types
    """Orion's storage protocol over RekindleSQL, with reservations and locks that only their owners can use.

    Args:
        database: the configuration of the database; its type is ``rekindlesql``.
        lock_seconds: how long the algorithm's lock outlives the last sign of life of its holder. A holder that ended
            on this machine is noticed at once.
        exact: never to have more trials completed and at work than ``max_trials``. A worker that finds no trial then
            waits for the others, for Orion's ``idle_timeout`` at most. Experiments that branch are not held to it.
        trusted: classes, as ``module:Class``, that the state of an algorithm may hold besides those of Orion's own.
    """

    def __init__(self, database: Mapping[str, Any] | None = None, setup: bool = True, lock_seconds: float = 20.0,
                 exact: bool = True, trusted: Sequence[str] = ()):  # fmt: skip
        if database is not None:
            database = {"type": "rekindlesql", **database}
        super().__init__(database=database, setup=setup)
        if not isinstance(self._db, RekindleSQL):
            got = type(self._db).__name__.lower()
            raise DatabaseError(f"the storage rekindlestorage needs a database of type rekindlesql, but got {got}; "
                                "set storage.database.type, or ORION_DB_TYPE")  # fmt: skip
        self.lock_seconds, self.exact, self.trusted = float(lock_seconds), bool(exact), tuple(trusted)
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._held: dict[str, tuple[str, Document]] = {}  # by token: the row that says so
        self._heartbeat: Heartbeat | None = None
        self._observed: set[tuple[Any, str]] = set()
        self._look_again = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process holds nothing: what this one holds stays its own."""
        return {key: vars(self)[key] for key in ("_db", "lock_seconds", "exact", "trusted")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # What this process holds, and how others see that it lives

    def _hold(self, token: str, collection: str, row: Document) -> None:
        self._mine()[token] = (collection, row)
        if self._heartbeat is None:
            seconds = min(orion.core.config.worker.heartbeat, self.lock_seconds / 3)
            self._heartbeat = Heartbeat(self._beat, seconds)

    def _mine(self) -> dict[str, tuple[str, Document]]:
        if self._pid != os.getpid():  # a fork: its parent lives and holds all this
            self._start()
        return self._held

    def _beat(self) -> None:
        for token, (collection, row) in list(self._held.items()):
            try:
                if not self._touch(collection, row):
                    self._held.pop(token, None)
            except DatabaseError as error:  # it may come back before the lease ends
                log.warning("no sign of life could be given for %s: %s", token, error)

    def _touch(self, collection: str, row: Document) -> int:
        return self._db.transact(lambda rows: rows.update(collection, row, {"heartbeat": rows.now()}))

    # Trials

    def create_experiment(self, config: Document) -> int:
        """The experiment and its algorithm's lock, in one transaction: no crash leaves one without the other."""

        def work(rows: Collections) -> Any:
            [uid] = rows.insert("experiments", [config])
            lock = {"experiment": uid, "configuration": config.get("algorithm", {}), "locked": 0, "state": None}
            rows.insert("algo", [{**lock, "heartbeat": rows.now()}])
            return uid

        config["_id"] = self._db.transact(work)
        return 1

    def register_trial(self, trial: Trial) -> Trial:
        """Adds a trial; one that is reserved from the start belongs to this process."""
        if trial.status == "reserved":
            trial.worker, trial.heartbeat = _token(), self._db.now()
        super().register_trial(trial)
        if trial.status == "reserved":
            self._hold(trial.worker, "trials", _owned(trial))
        return trial

    def reserve_trial(self, experiment: Any) -> Trial | None:
        """Takes a pending trial for this process, or None if there is none.

        Raises WaitingForTrials if there may be no more than ``max_trials`` and others are at work on the last ones.
        """
        token, limit, uid = _token(), self._limit(experiment), experiment.id

        def work(rows: Collections) -> tuple[Document | None, bool]:
            now = rows.now()
            if limit is not None and self._taken(rows, uid, now) >= limit:
                return None, rows.count("trials", {"experiment": uid, "status": "completed"}) < limit
            data = {"status": "reserved", "start_time": now, "heartbeat": now, "worker": token}
            return rows.update_first("trials", {"experiment": uid, "status": _PENDING}, data), False

        document, wait = self._db.transact(work)
        if wait:
            time.sleep(random.uniform(0.05, 0.15))  # Orion asks again at once, from every idle worker
            raise WaitingForTrials(f"the last of {limit} trials are at work elsewhere")
        if document is None:
            self._observe_missed(experiment)
            return None
        trial = Trial(**document)
        self._hold(token, "trials", _owned(trial))
        return trial

    def _limit(self, experiment: Any) -> float | None:
        node = getattr(experiment, "node", None)
        branches = node is not None and (node.parent is not None or node.children)
        return getattr(experiment, "max_trials", None) if self.exact and not branches else None

    def _taken(self, rows: Collections, uid: Any, now: datetime) -> int:
        """How many trials are completed or at work; until the transaction ends, nobody else takes one."""
        rows.lock("experiments", {"_id": uid})
        taken = rows.count("trials", {"experiment": uid, "status": {"$in": ["completed", "reserved"]}})
        silent = {"$lt": now - timedelta(seconds=self.lock_seconds)}  # lost soon; their place may be filled
        return taken - rows.count("trials", {"experiment": uid, "status": "reserved", "heartbeat": silent})

    def push_trial_results(self, trial: Trial) -> int:
        """Writes a trial's results, or raises FailedUpdate if the trial is no longer its worker's."""
        row = _owned(trial)
        data = {key: value for key, value in trial.to_dict().items() if key != "heartbeat"}
        done = self._db.transact(lambda rows: rows.update("trials", row, {**data, "heartbeat": rows.now()}))
        self._mine().pop(trial.worker, None)
        if not done:
            raise FailedUpdate("the result of a trial is taken from the worker that has it reserved, but "
                               f"{trial.id} was released, given to another worker, or deleted")  # fmt: skip
        return int(done)

    def set_trial_status(self, trial: Trial, status: str, heartbeat: datetime | None = None,
                         was: str | None = None) -> None:  # fmt: skip
        """Changes the status of a trial that is as the caller saw it; raises FailedUpdate if it is not.

        A reserved trial is changed by its owner, or taken from an owner that gave no sign of life since it was read.
        """
        was = was or trial.status
        validate_status(status)
        validate_status(was)
        row = {"experiment": trial.experiment, "id": trial.id, "status": was}
        if was == "reserved":
            row = _owned(trial) if _is_ours(trial.worker) else _seen(trial)
        token = _token() if status == "reserved" else trial.worker
        given = heartbeat if isinstance(heartbeat, datetime) else None  # Orion's client gives a number of seconds

        def work(rows: Collections) -> int:
            return rows.update("trials", row, {"status": status, "heartbeat": given or rows.now(), "worker": token})

        done = self._db.transact(work)
        self._mine().pop(trial.worker, None)
        if not done:
            raise FailedUpdate(f"trial {trial.id} was to go from {was} to {status}, but it is no longer {was}, or "
                               "another worker has it")  # fmt: skip
        trial.status, trial.worker = status, token
        if status == "reserved":
            self._hold(token, "trials", _owned(trial))

    def update_heartbeat(self, trial: Trial) -> int:
        """Gives a sign of life for a trial that this process holds; 0 if it does not hold it."""
        if trial.worker is not None and not _is_ours(trial.worker):
            return 0
        return self._touch("trials", _owned(trial))

    def fetch_lost_trials(self, experiment: Any) -> list[Trial]:
        """The reserved trials whose owners ended on this machine, or gave no sign of life for five heartbeats."""
        reserved = self._fetch_trials({"experiment": experiment.id, "status": "reserved"})
        reserved = [trial for trial in reserved if trial.worker not in self._mine()]
        if not reserved:
            return []
        before = self._db.now() - timedelta(seconds=orion.core.config.worker.heartbeat * _LOST_BEATS)
        return [trial for trial in reserved if _last_sign(trial) <= before or _is_dead(trial.worker)]

    def _observe_missed(self, experiment: Any) -> None:
        """Tells the algorithm of trials whose worker was killed between writing the result and telling the algorithm.

        Hyperband, for one, would wait for them for ever. Looked for when nothing else is to do, and not often.
        """
        if getattr(experiment, "mode", "r") != "x" or time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + self.lock_seconds
        ended = self._fetch_trials({"experiment": experiment.id, "status": {"$in": ["completed", "broken"]}})
        before = self._db.now() - timedelta(seconds=2 * self.lock_seconds)
        ended = [trial for trial in ended if (experiment.id, trial.id) not in self._observed]
        ended = [trial for trial in ended if _last_sign(trial) <= before or _is_dead(trial.worker)]
        if not ended:
            return
        with suppress(LockAcquisitionTimeout), experiment.acquire_algorithm_lock() as algorithm:
            missed = [trial for trial in ended if algorithm.has_suggested(trial) and not algorithm.has_observed(trial)]
            algorithm.observe(missed)
            self._observed.update((experiment.id, trial.id) for trial in ended)
            if missed:
                log.warning("told the algorithm of %d trials that ended with their workers", len(missed))

    # The lock on the algorithm

    @contextmanager
    def acquire_algorithm_lock(self, experiment: Any = None, uid: Any = None, timeout: float = 60,
                               retry_interval: float = 1) -> Iterator[LockedAlgorithmState]:  # fmt: skip
        """Holds the algorithm's lock; the state set meanwhile is written at the end, unless an exception ends it.

        Raises LockAcquisitionTimeout if others hold it for ``timeout`` seconds, and AlgorithmLockLost at the end if it
        was given to another worker because this process gave no sign of life.
        """
        uid, token = get_uid(experiment, uid), _token()
        document = self._wait_for_lock(uid, token, timeout, retry_interval)
        row = {"experiment": uid, "locked": 1, "owner": token}
        self._hold(token, "algo", row)
        new_state = None
        try:
            state = self._state(document["state"])
            held = LockedAlgorithmState(state=state, configuration=document["configuration"], locked=True)
            yield held
            new_state = held.state if held.state is not state else None
        finally:
            self._mine().pop(token, None)
            freed = self._unlock(row, new_state)
        if not freed:
            raise AlgorithmLockLost(
                f"the algorithm of experiment {uid} was given to another worker, because this one gave no sign of "
                f"life for {self.lock_seconds:g} s; what its algorithm did meanwhile was not written"
            )

    def _wait_for_lock(self, uid: Any, token: str, timeout: float, retry_interval: float) -> Document:
        start, pause = time.monotonic(), 0.01
        while (document := self._db.transact(lambda rows: self._take_lock(rows, uid, token))) is None:
            if time.monotonic() - start > timeout:
                raise LockAcquisitionTimeout(f"others held the algorithm of experiment {uid} for {timeout:g} s")
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 0.2, retry_interval)
        return document

    def _take_lock(self, rows: Collections, uid: Any, token: str) -> Document | None:
        taken = {"locked": 1, "owner": token, "lease": self.lock_seconds, "heartbeat": rows.now()}
        if free := rows.update_first("algo", {"experiment": uid, "locked": 0}, taken):
            return free
        held = rows.find("algo", {"experiment": uid, "locked": 1}, {"state": 0, "configuration": 0})
        if not held or not self._is_stale(held[0], rows.now()):
            return None
        log.warning("took over the lock on the algorithm of experiment %s from %s", uid, held[0].get("owner"))
        return rows.update_first("algo", held[0], taken)

    def _is_stale(self, lock: Document, now: datetime) -> bool:
        beat = lock.get("heartbeat")
        lease = timedelta(seconds=lock.get("lease", self.lock_seconds))
        return not isinstance(beat, datetime) or beat + lease < now or _is_dead(lock.get("owner"))

    def _unlock(self, row: Document, new_state: Any) -> int:
        data: Document = {"locked": 0} if new_state is None else {"locked": 0, "state": dump_state(new_state)}
        return int(self._db.transact(lambda rows: rows.update("algo", row, {**data, "heartbeat": rows.now()})))

    def release_algorithm_lock(self, experiment: Any = None, uid: Any = None, new_state: Any = None) -> int:
        """Takes the lock from whoever holds it (``orion db release``); returns whether anybody did."""
        return self._unlock({"experiment": get_uid(experiment, uid), "locked": 1}, new_state)

    def get_algorithm_lock_info(self, experiment: Any = None, uid: Any = None) -> LockedAlgorithmState | None:
        """The algorithm's state as it was last written, without holding the lock."""
        for lock in self._db.read("algo", {"experiment": get_uid(experiment, uid)}):
            return LockedAlgorithmState(self._state(lock["state"]), lock["configuration"], lock["locked"])
        return None

    def _state(self, data: Any) -> Any:
        try:
            return load_state(data, self.trusted)
        except UnreadableState as error:
            raise DatabaseError(str(error)) from error


def _token() -> str:
    """A name for one reservation: the process, and which of its many."""
    return f"{Owner.current()}#{uuid.uuid4().hex[:16]}"


def _is_ours(token: Any) -> bool:
    """Whether a token was made by this process."""
    return str(token).partition("#")[0] == str(Owner.current())


def _is_dead(token: Any) -> bool:
    """Whether the process of a token certainly ended."""
    try:
        return Owner.parse(str(token).partition("#")[0]).is_dead()
    except ValueError:  # not one of ours
        return False


def _owned(trial: Trial) -> Document:
    """The row of a trial as long as it is its worker's."""
    return {"experiment": trial.experiment, "id": trial.id, "status": "reserved", "worker": trial.worker}


def _seen(trial: Trial) -> Document:
    """The row of a trial that another worker has, as long as that worker gives no further sign of life."""
    return {**_owned(trial), "heartbeat": trial.heartbeat}


def _last_sign(trial: Trial) -> datetime:
    """When a worker of the trial was last heard of."""
    for time_ in (trial.heartbeat, trial.start_time, trial.submit_time):
        if isinstance(time_, datetime):
            return time_
    return datetime.min
