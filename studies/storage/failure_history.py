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
from .sql.writes import chunks, rows_with

Row = sa.Row[Any]  # an event, with its age in seconds and its task's epochs and owner
EXCUSED = 16  # maximum number of deaths that are blamed on machines, not on the trial


@dataclass(frozen=True)
class FailureHistory:
    """Failures of one task since its last new epoch.

    Attributes:
        epochs: epochs of the last checkpoint.
        failed: number of retries by kind of failure.
        killed: number of processes that died while they trained the task, or let their lease expire and were not found
            alive (a paused or slow process is not the trial's fault).
        retried_alone: whether the last retry was to be alone.
        retry_in: seconds until the task may be retried.
        last: the last process that was killed while it held the task.
        other_deaths: number of processes that died meanwhile but did not train this task; counted only when the task
            is about to fail.
    """

    epochs: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    retried_alone: bool = False
    retry_in: float = 0.0
    last: str = ""
    other_deaths: int = 0

    @property
    def alone(self) -> bool:
        """True if the task must be trained alone."""
        after = self.after_kills()
        return self.retried_alone or (after is not None and after[1].alone)

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
        tried, last_retry = self.killed - 1, (RETRY_RULES[KILLED].times or 0) - 1
        if tried > last_retry:
            tried = max(last_retry, tried - min(self.other_deaths, EXCUSED))
        last = Owner.parse(self.last)
        error = Killed(
            f"{self.killed} processes in a row that trained it were killed, or fell silent, before they finished epoch "
            f"{self.epochs + 1}, the last one process {last.pid} on {last.host}; does it need more memory than exists? "
            "Fix what ends them, or leave its hyperparameters out of the space"
        )
        return error, decide(error, tried)


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
    before = histories(connection, first)
    due = [uid for uid in first if uid not in before or not before[uid].retry_in]
    if due and due[0] in before and before[due[0]].alone:
        return due[:1], before
    return [uid for uid in due if uid not in before or not before[uid].alone], before


def histories(connection: Connection, uids: Collection[str]) -> dict[str, FailureHistory]:
    """Return the failures of tasks since their last new epoch, by uid.

    Tasks without failures are left out.
    """
    columns = (event.c.id, event.c.uid, event.c.kind, event.c.data, (Now() - event.c.created).label("age"))
    query = sa.select(*columns, task.c.epochs, task.c.lease_owner).join(task, task.c.uid == event.c.uid)
    query = query.where(event.c.kind.in_([TAKEOVER, FAILED])).order_by(event.c.id)
    events: dict[str, list[Row]] = {}
    for row in rows_with(connection, query, event.c.uid, uids):
        events.setdefault(row.uid, []).append(row)
    return {uid: _history(connection, events_of) for uid, events_of in events.items()}


def _history(connection: Connection, events: Sequence[Row]) -> FailureHistory:
    """Return a task's history from all its takeovers and failures, oldest first."""
    epochs, holder = events[0].epochs, events[0].lease_owner
    recent = [row for row in events if row.data.get("epochs") == epochs]
    takeovers = [row for row in recent if row.kind == TAKEOVER]
    deaths = [row for row in takeovers if not row.data.get("alive")]
    failures = [row for row in recent if row.kind == FAILED]
    # If a trial that failed for good is requested again, counting restarts.
    restart = max((row.id for row in failures if not row.data.get("retry")), default=-1)
    retries = [row for row in failures if row.id > restart and _kind(row) in RETRY_RULES and _kind(row) != KILLED]
    killed = sum(row.id > restart for row in deaths) + _not_known_alive(holder)
    last = holder or (_previous(takeovers[-1]) if takeovers else "")
    about_to_fail = killed > (RETRY_RULES[KILLED].times or 0)
    return FailureHistory(
        epochs,
        Counter(map(_kind, retries)),
        killed,
        retried_alone=bool(retries) and bool(retries[-1].data.get("alone")),
        retry_in=_pause_left(retries[-1]) if retries else 0.0,
        last=last,
        other_deaths=_count_other_deaths(connection, deaths, last) if about_to_fail and deaths else 0,
    )


def _count_other_deaths(connection: Connection, deaths: Sequence[Row], last: str) -> int:
    """Count the processes that died since a task's first death, elsewhere."""
    first = deaths[0]
    query = sa.select(event.c.data).where(event.c.id > first.id, event.c.kind == TAKEOVER, event.c.uid != first.uid)
    died = {str(data.get("previous")) for data in connection.scalars(query.limit(CHUNK)) if not data.get("alive")}
    return len(died - set(map(_previous, deaths)) - {last})


def _kind(failure: Row) -> str:
    return str(failure.data.get("kind"))


def _previous(takeover: Row) -> str:
    """Return the owner from whom a task was taken."""
    return str(takeover.data.get("previous"))


def _pause_left(retry: Row) -> float:
    """Return the seconds until a task may be retried.

    If the failure lies in the future, the clock was set back since: a pause would last until it has caught up.
    """
    pause = retry.data.get("pause")
    longest = min(pause, RETRY_RULES[_kind(retry)].longest) if isinstance(pause, int | float) else 0.0
    return max(0.0, longest - retry.age) if retry.age >= 0 else 0.0  # max() in this order ignores NaN


def _not_known_alive(owner: str | None) -> bool:
    """Return whether a lease has an owner not known to be alive.

    Such a lease may be taken from its owner.
    """
    return owner is not None and not Owner.parse(owner).is_alive()
