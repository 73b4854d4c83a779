"""Whose turn it is to make a study's new trials.

Any worker may make them, and all of them would make the same ones. Sixteen workers that do so at once only do it
sixteen times, so one of them takes the turn, and the others wait until it is done, is dead, or takes too long.
Nothing but time depends on this: a turn protects nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from ..sql.schema import Now, study
from .owner import Owner

_LEFT = (study.c.planner_until - Now()).label("left")


def due(connection: Connection, name: str, revision: int) -> bool:
    """Whether a process that has seen a study at this revision may take the turn."""
    query = sa.select(study.c.revision, study.c.planner, _LEFT).where(study.c.name == name)
    row = connection.execute(query).one_or_none()
    if row is None or row.revision != revision:
        return False
    taken = row.planner is not None and row.planner != str(Owner.current()) and row.left > 0
    return not taken or Owner.parse(row.planner).is_dead()


def take(connection: Connection, name: str, revision: int, seconds: float) -> bool:
    """Takes the turn for so long, if it is still due once nobody else writes the study's rows."""
    connection.execute(sa.select(study.c.name).where(study.c.name == name).with_for_update())
    if not due(connection, name, revision):
        return False
    turn = {"planner": str(Owner.current()), "planner_until": Now() + seconds}
    connection.execute(study.update().where(study.c.name == name).values(**turn))
    return True


def end(connection: Connection, name: str) -> None:
    """Ends this process's turn, if it has it."""
    mine = sa.and_(study.c.name == name, study.c.planner == str(Owner.current()))
    connection.execute(study.update().where(mine).values(planner=None, planner_until=None))
