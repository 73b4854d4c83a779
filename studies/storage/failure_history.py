"""Failures of tasks since their last new epoch, and reactions.

Failures are recorded as events of the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.errors import Hung
from ..failures import FAILED, HUNG, KILLED, RETRY_RULES, Decision, Killed, decide
from .locks.fencing import TAKEOVER, free_among
from .locks.owner import Owner
from .sql.schema import CHUNK, Now, event, task
from .sql.writes import chunks

EXCUSED = 16  # maximum number of deaths that are blamed on machines, not on the trial


@dataclass
class FailureHistory:
    """Failures of one task since its last new epoch.

    Attributes:
        epochs: epochs of the last checkpoint.
        failed: number of retries by kind of failure.
        killed: number of processes that died while they trained the task, or let their lease expire and were not found
            alive (a paused or slow process is not the trial's fault).
        alone: whether the task must be trained alone.
        retry_in: seconds until the task may be retried.
        last: the last process that was killed while it held the task.
        other_deaths: number of processes that died meanwhile but did not train this task; counted only when the task
            is about to fail.
        first_death_event: id of the event of the first death.
        dead_owners: processes that died.
    """

    epochs: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    alone: bool = False
    retry_in: float = 0.0
    last: str = ""
    other_deaths: int = 0
    first_death_event: int | None = None
    dead_owners: set[str] = field(default_factory=set)

    def final(self) -> tuple[Exception, Decision] | None:
        """Return the failure that ends the trial, None if it may train."""
        hung = self.failed[HUNG]
        if hung > (RETRY_RULES[HUNG].times or 0):
            error = Hung(
                f"{hung} times in a row it made no step for too long (--stuck) before it finished epoch "
                f"{self.epochs + 1}, and its process was killed; the events of `rekindle show` say where it hung"
            )
            return error, decide(error, hung - 1)
        verdict = self.after_kills()
        return verdict if verdict is not None and not verdict[1].retry else None

    def after_kills(self) -> tuple[Killed, Decision] | None:
        """Return the decision about a task whose processes were killed.

        The result is None if no process was killed. If other processes die as well, machines are probably preempted:
        each such death excuses one of this task's, and the trial is trained alone.
        """
        if not self.killed:
            return None
        last_time = (RETRY_RULES[KILLED].times or 0) - 1
        blamed = self.killed - 1
        if blamed > last_time:
            blamed = max(last_time, blamed - min(self.other_deaths, EXCUSED))
        last = Owner.parse(self.last)
        error = Killed(
            f"{self.killed} processes in a row that trained it were killed, or fell silent, before they finished epoch "
            f"{self.epochs + 1}, the last one process {last.pid} on {last.host}; does it need more memory than exists? "
            "Fix what ends them, or leave its hyperparameters out of the space"
        )
        return error, decide(error, blamed)


def claimable(
    connection: Connection, uids: Sequence[str], limit: int | None
) -> tuple[list[str], dict[str, FailureHistory]]:
    """Return the free tasks that can train together, and histories of failures.

    Only twice the wanted number of tasks is read, as thousands may be waiting.
    """
    enough = len(uids) if limit is None else 2 * limit
    first: list[str] = []
    for some in chunks(uids):
        if len(first) < enough:
            free = free_among(connection, some)
            first += [uid for uid in some if uid in free]
    first = first[:enough]
    known = histories(connection, first)
    due = [uid for uid in first if uid not in known or not known[uid].retry_in]
    if due and due[0] in known and known[due[0]].alone:
        return due[:1], known
    return [uid for uid in due if uid not in known or not known[uid].alone], known


def histories(connection: Connection, uids: Collection[str]) -> dict[str, FailureHistory]:
    """Return the failures of tasks since their last new epoch, by uid.

    Tasks without failures are left out.
    """
    by_uid: dict[str, FailureHistory] = {}
    for some in chunks(sorted(uids)):
        _read(connection, some, by_uid)
    for uid, history in by_uid.items():
        if (RETRY_RULES[KILLED].times or 0) < history.killed:
            history.other_deaths = _count_other_deaths(connection, uid, history)
        if (after := history.after_kills()) is not None:
            history.alone |= after[1].alone
    return by_uid


def _read(connection: Connection, uids: Collection[str], by_uid: dict[str, FailureHistory]) -> None:
    columns = (event.c.id, event.c.uid, event.c.kind, event.c.data, (Now() - event.c.created).label("age"))
    query = sa.select(*columns, task.c.epochs, task.c.lease_owner).join(task, task.c.uid == event.c.uid)
    query = query.where(event.c.uid.in_(uids), event.c.kind.in_([TAKEOVER, FAILED])).order_by(event.c.id)
    for row in connection.execute(query):
        history = by_uid.get(row.uid)
        if history is None:
            history = by_uid[row.uid] = FailureHistory(row.epochs, killed=int(_not_known_alive(row.lease_owner)))
            history.last = row.lease_owner or ""
        if row.data.get("epochs") == row.epochs:
            _count(history, row)


def _count_other_deaths(connection: Connection, uid: str, history: FailureHistory) -> int:
    """Count the processes that died since this task's first death, elsewhere."""
    if history.first_death_event is None:
        return 0
    query = sa.select(event.c.data).where(
        event.c.id > history.first_death_event, event.c.kind == TAKEOVER, event.c.uid != uid
    )
    died = {str(data.get("previous")) for data in connection.scalars(query.limit(CHUNK)) if not data.get("alive")}
    return len(died - history.dead_owners - {history.last})


def _count(history: FailureHistory, row: sa.Row[Any]) -> None:
    kind = str(row.data.get("kind"))
    if row.kind == TAKEOVER:
        if not row.data.get("alive"):
            history.killed += 1
            history.first_death_event = row.id if history.first_death_event is None else history.first_death_event
            history.dead_owners.add(str(row.data.get("previous")))
        history.last = row.lease_owner or str(row.data.get("previous"))
    elif not row.data.get("retry"):  # failed for good; if the trial is requested again, counting restarts
        history.failed.clear()
        history.killed = int(_not_known_alive(row.lease_owner))
        history.alone, history.retry_in = False, 0.0
    elif kind in RETRY_RULES and kind != KILLED:
        history.failed[kind] += 1
        history.alone = bool(row.data.get("alone"))
        pause = row.data.get("pause")
        longest = min(pause, RETRY_RULES[kind].longest) if isinstance(pause, int | float) else 0.0
        history.retry_in = max(0.0, longest - row.age)  # max() in this order ignores NaN


def _not_known_alive(owner: str | None) -> bool:
    """Return whether a lease has an owner not known to be alive.

    Such a lease may be taken from its owner.
    """
    return owner is not None and not Owner.parse(owner).is_alive()
