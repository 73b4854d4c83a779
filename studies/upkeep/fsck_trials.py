"""Checks of studies: unreadable configurations, contradictory trials and segments.

Rows are checked here and not by constraints of the tables, which older databases lack and SQLite cannot add to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError
from ..storage.rows import Segment
from ..storage.sql.columns import parse_json
from ..storage.sql.schema import checkpoint, segment, study, task, trial
from ..study.config import Config
from ..study.objectives import DEFAULT, objectives_of
from .findings import Finding

ENDED = ("complete", "pruned", "failed")


def _configurations(connection: Connection) -> Iterator[Finding]:
    for name, text in connection.execute(sa.select(study.c.name, sa.type_coerce(study.c.config, sa.Text))):
        try:
            Config.from_json(parse_json(text), name)
        except (StoreError, ValueError) as error:
            yield Finding("study", f"study {name!r}", f"{error}", (name,))


def _trials(connection: Connection) -> Iterator[Finding]:
    """Check study by study.

    The rows of one study at a time are in memory.
    """
    for name in connection.scalars(sa.select(trial.c.study).distinct().order_by(trial.c.study)).all():
        yield from _study(connection, name)


def _objectives_of_study(connection: Connection, name: str) -> frozenset[str]:
    """Return the objectives of each result of a study.

    They are empty if its results have a score only, or if its configuration cannot be read.
    """
    text = connection.scalar(sa.select(sa.type_coerce(study.c.config, sa.Text)).where(study.c.name == name))
    try:
        config = Config.from_json(parse_json(text), name)
    except (StoreError, ValueError):
        return frozenset()
    return frozenset() if objectives_of(config) == DEFAULT else frozenset(objectives_of(config))


def _study(connection: Connection, name: str) -> Iterator[Finding]:
    objectives = _objectives_of_study(connection, name)
    columns = [column for column in segment.c if column.name not in ("study", "revision")]
    query = sa.select(*columns).where(segment.c.study == name).order_by(segment.c.number, segment.c.rung)
    rows: dict[int, list[Segment]] = {}
    for row in connection.execute(query):
        rows.setdefault(row.number, []).append(Segment(**row._mapping))
    has_task = sa.exists().where(task.c.uid == trial.c.uid)
    trials = sa.select(trial.c.number, trial.c.uid, trial.c.state, has_task).where(trial.c.study == name)
    for number, uid, state, known in connection.execute(trials.order_by(trial.c.number)):
        own, label = rows.get(number, []), f"trial {number} of study {name!r}"
        yield from _trial((name, number), label, state, own)
        for each in own:
            if each.state == "done" and (lacks := sorted(objectives.difference(each.objectives or ()))):
                where = f"segment {each.rung} of {label}"
                yield Finding("segment-result", where, f"it has no {', '.join(lacks)}", (name, number, each.rung))
        if not known and any(row.state == "done" for row in own):
            yield Finding("trial-task", label, f"there is no task {uid}", (name, number))


def _trial(key: tuple[str, int], label: str, state: str, rows: list[Segment]) -> Iterator[Finding]:
    failed = [row.rung for row in rows if row.state == "failed"]
    if state not in (*ENDED, "running") or (state in ("complete", "pruned") and failed):
        yield Finding("trial-state", label, f"it is {state!r}, and {len(failed)} of its segments failed", key)
    elif state == "complete" and not any(row.state == "done" for row in rows):
        yield Finding("trial-state", label, "it is complete, and no segment is done", key)
    elif state == "running" and failed:
        yield Finding("trial-failed", label, f"it is running, and segment {failed[0]} failed", key)
    for before, after in pairwise(rows):
        if after.rung != before.rung + 1 or after.epochs <= before.epochs or before.state != "done":
            wrong = (
                f"segment {after.rung} ({after.epochs} epochs) follows segment {before.rung} "
                f"({before.epochs} epochs, {before.state})"
            )
            yield Finding("segment-order", label, wrong, key)
    for row in rows:
        where, place_of = f"segment {row.rung} of {label}", (*key, row.rung)
        if row.state not in ("ready", "done", "failed") or (row.state == "done") != (row.score is not None):
            yield Finding("segment-result", where, f"it is {row.state!r} with score {row.score}", place_of)
        elif row.state == "ready" and state in ENDED:
            yield Finding("segment-open", where, f"its trial is {state}", place_of)


def _digests(connection: Connection) -> Iterator[Finding]:
    """Find segments whose task has another state at the same epochs."""
    c, s, t = checkpoint.c, segment.c, trial.c
    same = (s.study == t.study) & (s.number == t.number) & (s.state == "done") & s.digest.is_not(None)
    query = sa.select(s.study, s.number, s.rung, s.epochs, s.digest, c.digest).join_from(trial, segment, same)
    query = query.join(checkpoint, (c.uid == t.uid) & (c.epochs == s.epochs)).where(c.digest != s.digest)
    for name, number, rung, epochs, own, stored in connection.execute(query.order_by(s.study, s.number, s.rung)):
        where = f"segment {rung} of trial {number} of study {name!r}"
        wrong = f"after {epochs} epochs its digest is {own[:12]}, and the task's {stored[:12]}"
        yield Finding("segment-digest", where, wrong, (name, number, rung))


CHECKS = (_configurations, _trials, _digests)
