"""How far a study is, by aggregates that the database makes: nothing is read trial by trial."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from . import trials as ledger
from .rows import Segment, Trial
from .sql.schema import segment, trial


@dataclass(frozen=True)
class Totals:
    """The trials of a study by state, its segments by (rung, state), and how many brackets have begun."""

    trials: dict[str, int]
    segments: dict[tuple[int, str], int]
    brackets: int


def totals(connection: Connection, name: str) -> Totals:
    """Counts all rows of a study; seeds are counted one by one."""
    count = sa.func.count()
    t, s = trial.c, segment.c
    states = sa.select(t.state, count).where(t.study == name).group_by(t.state)
    rungs = sa.select(s.rung, s.state, count).where(s.study == name).group_by(s.rung, s.state)
    last = sa.select(t.attrs).where(t.study == name).order_by(t.number.desc()).limit(1)
    attrs = connection.scalar(last)
    return Totals(
        {row[0]: row[1] for row in connection.execute(states)},
        {(row[0], row[1]): row[2] for row in connection.execute(rungs)},
        0 if attrs is None else int(attrs.get("bracket", 0)) + 1,
    )


def longest(connection: Connection, name: str, *, best: bool) -> list[tuple[Trial, list[Segment]]]:
    """The trials that trained longest with a result, with all their segments; of these the ``best`` by score only."""
    s = segment.c
    done = (s.study == name) & (s.state == "done")
    top = done & (s.epochs == sa.select(sa.func.max(s.epochs)).where(done).scalar_subquery())
    if best:
        top &= s.score == sa.select(sa.func.max(s.score)).where(top).scalar_subquery()
    numbers = sa.select(s.number).where(top)
    rows: dict[int, list[Segment]] = {}
    for row in ledger.segments(connection, name, of=numbers):
        rows.setdefault(row.number, []).append(row)
    return [(row, rows[row.number]) for row in ledger.trials(connection, name, of=numbers)]
