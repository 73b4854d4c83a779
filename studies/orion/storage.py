"""Orion's storage with owners: ``storage={"type": "rekindlestorage", "database": {"host": URL}}``.

Orion's own storage (``legacy``) trusts every worker. A worker whose trial was given to another can still report its
result, one that is killed while it holds the algorithm's lock stops all others for good, and workers that finish
together overshoot ``max_trials``. Here every reservation has an owner, recorded in the trial and its row. The lock is a
lease. Counting and reserving are one transaction, and all times come from the database's clock.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from ..redact import masked
from .db import RekindleSQL
from .document_tables import Collections
from .documents import Document
from .lock import AlgorithmLock, LeasedRows, is_ours, is_silent, new_token
from .trial_rows import is_to_be_tried_again

# After `db`, which silences the warnings of orion's imports.
import orion.core  # isort: skip
from orion.core.io.database import DatabaseError  # isort: skip
from orion.core.utils.exceptions import WaitingForTrials  # isort: skip
from orion.core.worker.trial import Trial, validate_status  # isort: skip
from orion.storage.base import FailedUpdate, LockedAlgorithmState, get_uid  # isort: skip
from orion.storage.legacy import Legacy  # isort: skip

_RANDOM = random.SystemRandom()  # environments may use the global generator
_PENDING = {"$in": ["new", "interrupted", "suspended"]}
_LOST_BEATS = 5  # missed heartbeats after which a trial is lost, as in Orion's own storage


class RekindleStorage(Legacy):  # type: ignore[misc]  # orion has no types
    """Orion's storage protocol over RekindleSQL, with owners.

    Only its owner can use a reservation or a lock.

    Args:
        database: configuration of the database; its type is ``rekindlesql``.
        setup: as in Orion's own storage.
        lock_seconds: seconds for which the algorithm's lock outlives its holder's last heartbeat. If the holder's
            process has ended on this machine, the lock is free at once.
        exact: whether completed and reserved trials together never exceed ``max_trials``. A worker that finds no trial
            then waits for the others, at most for Orion's ``idle_timeout``. Experiments that branch are exempt.
        trusted: classes, as ``module:Class``, that an algorithm's state may contain besides those of Orion's own.
    """

    def __init__(
        self,
        database: Mapping[str, Any] | None = None,
        setup: bool = True,
        lock_seconds: float = 20.0,
        exact: bool = True,
        trusted: Sequence[str] = (),
    ):
        if database is not None:
            database = {"type": "rekindlesql", **database}
        super().__init__(database=database, setup=setup)
        if not isinstance(self._db, RekindleSQL):
            got = type(self._db).__name__.lower()
            raise DatabaseError(
                f"the storage rekindlestorage needs a database of type rekindlesql, but got {got}; "
                "set storage.database.type, or ORION_DB_TYPE"
            )
        self.lock_seconds, self.exact, self.trusted = float(lock_seconds), bool(exact), tuple(trusted)
        self._start()

    def _start(self) -> None:
        self.leased_rows = LeasedRows(self._db)
        self._lock = AlgorithmLock(self._db, self.leased_rows, self.lock_seconds, self.trusted)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for another process, which holds no rows."""
        return {key: vars(self)[key] for key in ("_db", "lock_seconds", "exact", "trusted")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _hold(self, trial: Trial) -> None:
        seconds = min(orion.core.config.worker.heartbeat, self.lock_seconds / 3)
        self.leased_rows.hold(trial.worker, "trials", _owned(trial), seconds)

    def create_experiment(self, config: Document) -> int:
        """Create the experiment and its algorithm's lock in one transaction.

        Raises:
            DatabaseError: the command line contains a password; every reader of the database would see it.
        """
        if any(masked(str(word)) != str(word) for word in config.get("metadata", {}).get("user_args") or ()):
            raise DatabaseError(
                "Orion stores the command line of a hunt, and `orion info` shows it, but this one contains a "
                "password; use PGPASSWORD or ~/.pgpass, or leave --storage out to use Orion's database"
            )

        def work(rows: Collections) -> Any:
            [uid] = rows.insert("experiments", [config])
            lock = {"experiment": uid, "configuration": config.get("algorithm", {}), "locked": 0, "state": None}
            rows.insert("algo", [{**lock, "heartbeat": rows.now()}])
            return uid

        config["_id"] = self._db.transact(work)
        return 1

    def register_trial(self, trial: Trial) -> Trial:
        """Add a trial; if it is already reserved, this process owns it."""
        if trial.status == "reserved":
            trial.worker, trial.heartbeat = new_token(), self._db.now()
        super().register_trial(trial)
        if trial.status == "reserved":
            self._hold(trial)
        self._lock.registered += 1
        return trial

    def reserve_trial(self, experiment: Any) -> Trial | None:
        """Reserve a pending trial for this process, or return None.

        Raises:
            WaitingForTrials: other workers train the last of ``max_trials``, or the algorithm needs their results
                before it can suggest anything.
        """
        token, limit, uid = new_token(), self._limit(experiment), experiment.id

        def work(rows: Collections) -> tuple[Document | None, bool]:
            now = rows.now()
            if limit is not None and self._is_full(rows, uid, limit, now):
                return None, rows.count("trials", {"experiment": uid, "status": "completed"}) < limit
            data = {"status": "reserved", "start_time": now, "heartbeat": now, "worker": token}
            row = rows.update_first("trials", {"experiment": uid, "status": _PENDING}, data)
            return row, row is None and self._lock.is_dry(rows, uid, now)

        document, wait = self._db.transact(work)
        if wait:
            time.sleep(_RANDOM.uniform(0.1, 0.3))  # every idle worker of Orion's asks again at once
            raise WaitingForTrials("all trials that are possible now are being trained")
        if document is None:
            return None
        trial = Trial(**document)
        self._hold(trial)
        if experiment.working_dir and _runs_rekindle(experiment.metadata):
            # Orion would copy the directory of the trial's parent, and mark the trial broken if that directory is on
            # another machine or was temporary. The database has everything that the trial needs from its parent.
            trial.exp_working_dir = experiment.working_dir
            os.makedirs(trial.working_dir, exist_ok=True)
        return trial

    def _limit(self, experiment: Any) -> float | None:
        node = getattr(experiment, "node", None)
        branches = node is not None and (node.parent is not None or node.children)
        return getattr(experiment, "max_trials", None) if self.exact and not branches else None

    def _is_full(self, rows: Collections, uid: Any, limit: float, now: datetime) -> bool:
        """Return whether enough trials are completed or reserved.

        Locks the experiment's row, so that no other process reserves a trial before this transaction ends.
        """
        rows.lock("experiments", {"_id": uid})
        count = rows.count("trials", {"experiment": uid, "status": {"$in": ["completed", "reserved"]}})
        if count < limit:
            return False
        # Trials of silent workers will soon be lost, so others may take their places. Count the living first: a worker
        # that ends its trial between the two counts is then counted twice rather than not at all.
        reserved = {"experiment": uid, "status": "reserved"}
        living = rows.count("trials", {**reserved, "heartbeat": {"$gte": now - timedelta(seconds=self.lock_seconds)}})
        return count - (rows.count("trials", reserved) - living) >= limit

    def push_trial_results(self, trial: Trial) -> int:
        """Write a trial's results.

        Raises:
            FailedUpdate: the worker no longer owns the trial.
        """
        row = _owned(trial)
        data = {key: value for key, value in trial.to_dict().items() if key != "heartbeat"}

        def work(rows: Collections) -> int:
            done = rows.update("trials", row, {**data, "heartbeat": rows.now()})
            if done:
                self._lock.mark_unobserved(rows, trial)
            return done

        done = self._db.transact(work)
        self.leased_rows.drop(trial.worker)
        if done:
            self._lock.renew_unobserved(trial)
        else:
            raise FailedUpdate(
                "the result of a trial is taken from the worker that has it reserved, but "
                f"{trial.id} was released, given to another worker, or deleted"
            )
        return done

    def set_trial_status(
        self, trial: Trial, status: str, heartbeat: datetime | None = None, was: str | None = None
    ) -> None:
        """Change a trial's status, unless it changed after it was read.

        A reserved trial can be changed by its owner. Others can take it if its owner has sent no heartbeat since it was
        read. A trial whose program was killed becomes interrupted instead of broken, and is retried.

        Raises:
            FailedUpdate: the trial has changed.
        """
        was = was or trial.status
        validate_status(status)
        validate_status(was)
        row = {"experiment": trial.experiment, "id": trial.id, "status": was}
        if was == "reserved":
            row = _owned(trial) | ({} if is_ours(trial.worker) else {"heartbeat": trial.heartbeat})
        token = new_token() if status == "reserved" else trial.worker
        beat = heartbeat if isinstance(heartbeat, datetime) else None  # Orion's client passes a number of seconds

        def work(rows: Collections) -> tuple[int, str]:
            final = status
            if status == "broken" and was == "reserved" and _has_program(rows, trial.experiment):
                final = "interrupted" if is_to_be_tried_again(rows, trial.experiment, trial.id) else status
            data = {"status": final, "heartbeat": beat or rows.now(), "worker": token}
            done = rows.update("trials", row, data)
            if done and final == "broken":
                self._lock.mark_unobserved(rows, trial)
            return done, final

        done, status = self._db.transact(work)
        self.leased_rows.drop(trial.worker)
        if not done:
            raise FailedUpdate(
                f"trial {trial.id} was to go from {was} to {status}, but it is no longer {was}, or "
                "another worker has it"
            )
        trial.status, trial.worker = status, token
        if status == "reserved":
            self._hold(trial)
        elif status == "broken":
            self._lock.renew_unobserved(trial)

    def update_heartbeat(self, trial: Trial) -> int:
        """Renew the heartbeat of a trial that this process holds.

        The result is 0 if this process does not hold the trial, or its main thread has ended.
        """
        if not threading.main_thread().is_alive():  # a thread of Orion's keeps the process alive until it gets 0
            return 0
        if trial.worker is not None and not is_ours(trial.worker):
            return 0
        return self.leased_rows.touch("trials", _owned(trial))

    def fetch_lost_trials(self, experiment: Any) -> list[Trial]:
        """Return the reserved trials of dead or silent owners.

        An owner is dead if its process has ended on this machine, and silent after five missed heartbeats.
        """
        reserved = self._fetch_trials({"experiment": experiment.id, "status": "reserved"})
        reserved = [trial for trial in reserved if trial.worker not in self.leased_rows.rows()]
        if not reserved:
            return reserved
        before = self._db.now() - timedelta(seconds=orion.core.config.worker.heartbeat * _LOST_BEATS)
        return [trial for trial in reserved if is_silent(_last_sign(trial), trial.worker, before)]

    def acquire_algorithm_lock(
        self, experiment: Any = None, uid: Any = None, timeout: float = 60, retry_interval: float = 1
    ) -> AbstractContextManager[LockedAlgorithmState]:
        """Hold the algorithm's lock.

        A state that is set within the context is written at its end, unless the context ends with an exception.

        Raises:
            LockAcquisitionTimeout: others held the lock for ``timeout`` seconds.
            AlgorithmLockLost: at the end; another worker took the lock because this process was silent too long.
        """
        return self._lock.hold(experiment, get_uid(experiment, uid), timeout, retry_interval)

    def release_algorithm_lock(self, experiment: Any = None, uid: Any = None, new_state: Any = None) -> int:
        """Free the lock (``orion db release``); return 1 if it was held."""
        return self._lock.release(get_uid(experiment, uid))

    def get_algorithm_lock_info(self, experiment: Any = None, uid: Any = None) -> LockedAlgorithmState | None:
        """Return the last written state of the algorithm, without locking."""
        return self._lock.info(get_uid(experiment, uid))


def _has_program(rows: Collections, experiment: Any) -> bool:
    """Return whether this experiment's ``orion hunt`` runs ``rekindle train``."""
    return any(
        _runs_rekindle(document.get("metadata") or {}) for document in rows.find("experiments", {"_id": experiment})
    )


def _runs_rekindle(metadata: Mapping[str, Any]) -> bool:
    """Return whether ``orion hunt`` runs ``rekindle train``."""
    program = [os.path.basename(str(word)) for word in metadata.get("user_args") or ()][:3]
    return program[:1] == ["rekindle"] or program[1:] == ["-m", "rekindle.studies.cli"]


def _owned(trial: Trial) -> Document:
    """Return the query for a trial that its worker still owns."""
    return {"experiment": trial.experiment, "id": trial.id, "status": "reserved", "worker": trial.worker}


def _last_sign(trial: Trial) -> datetime | None:
    """Return the time of the last heartbeat of a trial's worker."""
    times = (trial.heartbeat, trial.start_time, trial.submit_time)  # Orion's own storage writes 120 as the heartbeat
    return next((time for time in times if isinstance(time, datetime)), None)
