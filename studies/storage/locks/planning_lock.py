"""Lock of the process that makes a study's new trials.

Any worker may make them, and all would make the same ones. If sixteen workers do so at once, the work is done sixteen
times; so one of them takes the lock, and renews it while it gets on. The others wait until it is done, is dead, or has
not renewed it: one that is killed on another machine, where nobody sees that it is dead, holds them up for `SECONDS` at
most. The lock saves time and protects nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from ..sql.schema import Now, study
from .owner import Owner

SECONDS = 10.0  # at most, for which the lock outlives its renewal; a lease, if that is shorter
_LEFT = (study.c.planner_until - Now()).label("left")


def is_free(connection: Connection, name: str, revision: int) -> bool:
    """Return whether a process that read this revision may take the lock."""
    query = sa.select(study.c.revision, study.c.planner, _LEFT).where(study.c.name == name)
    row = connection.execute(query).one_or_none()
    if row is None or row.revision != revision:
        return False
    in_time = row.planner is not None and 0 < row.left < 2 * SECONDS  # more only if the clock was set back
    is_held = in_time and row.planner != str(Owner.current())
    return not is_held or Owner.parse(row.planner).is_dead()


def acquire(connection: Connection, name: str, revision: int, seconds: float) -> bool:
    """Take the lock for some seconds, if it is still free.

    Before that, wait until no other process writes the study's row.
    """
    connection.execute(sa.select(study.c.name).where(study.c.name == name).with_for_update())
    if not is_free(connection, name, revision):
        return False
    lock = {"planner": str(Owner.current()), "planner_until": Now() + seconds}
    connection.execute(study.update().where(study.c.name == name).values(**lock))
    return True


def renew(connection: Connection, name: str, seconds: float) -> None:
    """Keep the lock for some more seconds, if this process has it."""
    connection.execute(study.update().where(_of_this_process(name)).values(planner_until=Now() + seconds))


def release(connection: Connection, name: str) -> None:
    """Release the lock, if this process has it."""
    connection.execute(study.update().where(_of_this_process(name)).values(planner=None, planner_until=None))


def _of_this_process(name: str) -> sa.ColumnElement[bool]:
    return sa.and_(study.c.name == name, study.c.planner == str(Owner.current()))
