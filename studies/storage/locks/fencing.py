"""SQL of leases: take, verify and release within a caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...errors import IdentityMismatch, LeaseLost, TaskBusy
from ..sql.schema import Now, checkpoint, event, task
from ..sql.writes import add_events, add_task, rows_with
from .leases import StoreLease, held_here
from .owner import Owner

TAKEOVER = "takeover"  # the event of a lease that its last owner did not release
TAKEN = ("start", "resume", TAKEOVER)  # events of a lease that begins
BEAT = 0.25  # of a lease, after which it is renewed
_left = (task.c.lease_expires - Now()).label("seconds")
HOLDER = (task.c.uid, task.c.lease_owner, task.c.lease_epoch, _left)  # what why_free is asked about


def take(
    connection: Connection, uid: str, identity: Mapping[str, Any] | None, seconds: float, note: Mapping[str, Any]
) -> tuple[int, Any]:
    """Take the lease of a task; return its token and stored identity.

    The task is created if it is new. The token is the fencing token.

    An event records it: start, resume (the task has finished an epoch), or takeover (the last owner did not release it;
    "alive" if that process still runs; "lost" are about the seconds of its work after "saved", the last that counts).

    Raises:
        TaskBusy: a living process holds the lease.
        IdentityMismatch: the uid belongs to another identity.
    """
    add_task(connection, uid, identity)
    row = connection.execute(sa.select(task, _left).where(task.c.uid == uid).with_for_update()).one()
    check_identity(uid, row.identity, identity)
    why = why_free(uid, row.lease_owner, row.lease_epoch, row.seconds)
    if why is None:
        holder = Owner.parse(row.lease_owner)
        raise TaskBusy(uid, row.lease_owner, holder.host, holder.pid, row.seconds)
    me, token = str(Owner.current()), row.lease_epoch + 1
    lease = {"lease_owner": me, "lease_epoch": token, "lease_expires": Now() + seconds}
    connection.execute(task.update().where(task.c.uid == uid).values(**lease, identity=row.identity or identity))
    data = {"owner": me, "token": token, "epochs": row.epochs, "trained": row.trained, **note}
    category = "resume" if row.epochs else "start"
    if why != "free":
        alive = {"alive": True} if Owner.parse(row.lease_owner).is_alive() else {}
        lost = _lost(connection, uid, row.lease_epoch, seconds)
        category, data = TAKEOVER, {**data, "previous": row.lease_owner, "why": why, **alive, **lost}
    add_events(connection, [(uid, category, data)])
    return int(token), row.identity or identity


def _lost(connection: Connection, uid: str, token: int, seconds: float) -> dict[str, float]:
    """Return when a lease's owner last saved, and its later work.

    It died within a heartbeat after it last renewed its lease, after half of one in the mean; that lease is taken to
    have been as long as the new one.
    """
    c, began = checkpoint.c, sa.func.max(event.c.created)
    saved = sa.select(sa.func.max(c.created)).where(c.uid == uid, c.lease_epoch == token).scalar_subquery()
    start = sa.select(began).where(event.c.uid == uid, event.c.kind.in_(TAKEN)).scalar_subquery()
    expires, now, saved_at, started = connection.execute(
        sa.select(task.c.lease_expires, Now(), saved, start).where(task.c.uid == uid)
    ).one()
    begun = max(saved_at or 0.0, started or 0.0) or now
    return {"saved": begun, "lost": max(0.0, min(now, expires - (1 - BEAT / 2) * seconds) - begun)}


def why_free(uid: str, owner: str | None, token: int, seconds: float) -> str | None:
    """Return "free", "dead" (the owner) or "expired"; None for a held lease."""
    if owner is None:
        return "free"
    if owner == str(Owner.current()):
        return None if any(lease.token == token for lease in held_here(uid)) else "free"
    if Owner.parse(owner).is_dead():
        return "dead"
    return "expired" if seconds <= 0 else None


def free_among(connection: Connection, uids: Collection[str]) -> set[str]:
    """Return the tasks whose lease may be taken now.

    A task that does not exist yet is free.
    """
    return set(uids) - {row.uid for row in _held(connection, uids) if why_free(*row) is None}


def renewed(connection: Connection, lease: StoreLease, seconds: float, **values: Any) -> bool:
    """Renew a lease, and set ``values`` of its task.

    Its share of the time since it was last renewed is added to the task's. Of a longer pause half a lease counts.

    Return False if the lease is no longer held.
    """
    if lease.share:
        passed = Now() - (task.c.lease_expires - seconds)
        counted = sa.case((passed < 0.0, 0.0), (passed > seconds / 2, seconds / 2), else_=passed)
        values = {"trained": task.c.trained + lease.share * counted, **values}
    leased = sa.and_(
        task.c.uid == lease.uid, task.c.lease_epoch == lease.token, task.c.lease_owner == str(Owner.current())
    )
    return bool(
        connection.execute(task.update().where(leased).values(lease_expires=Now() + seconds, **values)).rowcount
    )


def fence(connection: Connection, leases: Iterable[StoreLease], seconds: float) -> None:
    """Renew leases until this transaction ends; LeaseLost names all that are lost.

    Rows are locked in the order of uids, everywhere, so that two transactions never wait for each other.
    """
    lost = [lease for lease in sorted(leases, key=lambda lease: lease.uid) if not renewed(connection, lease, seconds)]
    if lost:
        raise LeaseLost([lease.uid for lease in lost])


def release(connection: Connection, tokens: Mapping[str, int]) -> None:
    """Release leases, given as uid and token.

    A lost lease is left to its new owner.
    """
    for uid, token in sorted(tokens.items()):
        leased = sa.and_(task.c.uid == uid, task.c.lease_epoch == token)
        connection.execute(task.update().where(leased).values(lease_owner=None, lease_expires=Now()))


def left_by_dead(connection: Connection, uids: Collection[str]) -> dict[str, int]:
    """Return the tokens of leases whose owners died before they released them."""
    return {uid: token for uid, owner, token, _ in _held(connection, uids) if Owner.parse(owner).is_dead()}


def _held(connection: Connection, uids: Collection[str]) -> Sequence[Any]:
    """Return `HOLDER` of the tasks that have an owner, dead or alive."""
    query = sa.select(*HOLDER).where(task.c.lease_owner.is_not(None))
    return rows_with(connection, query, task.c.uid, uids)


def owners(connection: Connection) -> list[str]:
    """Return the processes that hold tasks, dead or alive."""
    query = sa.select(task.c.lease_owner).where(task.c.lease_owner.is_not(None)).distinct()
    return sorted(map(str, connection.scalars(query)))


def evict(connection: Connection, owner: str) -> list[tuple[str, int]]:
    """Free the tasks of a process, even a living one, for others.

    Its writes are refused from now on.

    Returns:
        Each task's uid, and its stored epochs.
    """
    query = sa.select(task.c.uid, task.c.epochs).where(task.c.lease_owner == owner).order_by(task.c.uid)
    evicted = [(str(uid), int(epochs)) for uid, epochs in connection.execute(query.with_for_update())]
    free = {"lease_owner": None, "lease_epoch": task.c.lease_epoch + 1, "lease_expires": Now()}
    connection.execute(task.update().where(task.c.lease_owner == owner).values(**free))
    return evicted


def identify(connection: Connection, uid: str, identity: Mapping[str, Any]) -> None:
    """Store or check the identity of a task claimed without one."""
    stored = connection.execute(sa.select(task.c.identity).where(task.c.uid == uid)).scalar_one()
    check_identity(uid, stored, identity)
    if stored is None:
        connection.execute(task.update().where(task.c.uid == uid).values(identity=identity))


def check_identity(uid: str, stored: Any, identity: Mapping[str, Any] | None) -> None:
    """Raise IdentityMismatch if both are known and differ."""
    if stored is None or identity is None or stored == json.loads(json.dumps(identity)):
        return
    keys = sorted(key for key in {*stored, *identity} if stored.get(key) != json.loads(json.dumps(identity.get(key))))
    raise IdentityMismatch(
        f"a uid belongs to one task, but the {', '.join(keys)} of task {uid} differ from what is stored: "
        "leave the uid out so that it is made from the task, or choose another"
    )
