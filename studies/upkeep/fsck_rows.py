"""Checks of tasks, unreachable rows, and contradictory trials and segments.

These checks are not constraints of the tables, since older databases lack them and SQLite cannot add constraints to an
existing table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError
from ..storage.locks.fencing import HOLDER, why_free
from ..storage.locks.owner import Owner
from ..storage.retention import INIT
from ..storage.rows import Segment
from ..storage.sql.columns import Json, parse_json
from ..storage.sql.schema import BLOB_IN_USE, checkpoint, event, metadata, metric, segment, study, task, trial
from ..storage.studies import read_rows, seeds_of
from ..study.config import Config
from ..study.objectives import measured_names
from .findings import Fault

ENDED = ("complete", "pruned", "failed", "cancelled")
COLLECTED = "collected"  # event of a task whose checkpoints gc dropped


def _json(connection: Connection) -> Iterator[Fault]:
    """Find columns with invalid JSON.

    They are read as text, since one invalid value in a JSON column would abort the query.
    """
    for table in metadata.sorted_tables:
        keys = list(table.primary_key.columns)
        for column in table.columns:
            sql_type = column.type
            if not isinstance(sql_type, Json):
                continue
            query = sa.select(*keys, sa.type_coerce(column, sa.Text)).where(column.is_not(None))
            for *key, text in connection.execute(query.execution_options(yield_per=500)):
                try:
                    sql_type.parse(text)
                except ValueError as error:
                    row = f"{table.name} {' '.join(map(str, key))}"
                    yield Fault("json", row, f"{column.name} is {str(text)[:40]!r}: {error}", tuple(key))


def _leases(connection: Connection) -> Iterator[Fault]:
    query = sa.select(*HOLDER).where(task.c.lease_owner.is_not(None)).order_by(task.c.uid)
    for uid, text, token, seconds in connection.execute(query):
        owner = Owner.parse(text)
        why = "is dead" if owner.is_dead() else f"fell silent {-seconds:.0f} s ago" if seconds <= 0 else ""
        if why:
            wrong = f"process {owner.pid} on {owner.host} {why}"
            yield Fault("lease", f"task {uid}", wrong, (uid, token))


def _tasks(connection: Connection) -> Iterator[Fault]:
    c = task.c
    has = sa.exists().where(checkpoint.c.uid == c.uid)
    waited = sa.exists().where(trial.c.uid == c.uid, trial.c.state.in_(("running", "cancelled")))
    query = sa.select(c.uid, has).where(c.identity.is_(None), ~waited, c.lease_owner.is_(None))
    for uid, stored in connection.execute(query.order_by(c.uid)):
        defect, wrong = ("task-lost", "it has none") if stored else ("task-identity", "it has neither")
        yield Fault(defect, f"task {uid}", wrong, (uid,))


def _last() -> Any:
    """Return SQL for the epochs of a task's last checkpoint."""
    newest = sa.select(checkpoint.c.epochs).where(checkpoint.c.uid == task.c.uid)
    return newest.order_by(checkpoint.c.id.desc()).limit(1).scalar_subquery()


def _epochs(connection: Connection) -> Iterator[Fault]:
    last = sa.func.coalesce(_last(), 0)
    query = sa.select(task.c.uid, task.c.epochs, last).where(task.c.epochs != last).order_by(task.c.uid)
    for uid, epochs, stored in connection.execute(query):
        yield Fault("task-epochs", f"task {uid}", f"it has {epochs}, and the checkpoint {stored}", (uid,))


def _metrics(connection: Connection) -> Iterator[Fault]:
    """Find metrics after the last checkpoint of free tasks.

    A process that is killed between two checkpoints leaves such rows; the next process writes the same rows again.
    Metrics whose states were dropped on purpose are not a finding.
    """
    c = task.c
    over = (metric.c.uid == c.uid) & (metric.c.epoch > sa.func.coalesce(_last(), 0))
    query = sa.select(*HOLDER, sa.func.count(), sa.func.max(metric.c.epoch)).join_from(task, metric, over)
    query = query.group_by(c.uid, c.lease_owner, c.lease_epoch, c.lease_expires).order_by(c.uid)
    for *columns, count, epoch in connection.execute(query).all():
        uid = columns[0]
        if why_free(*columns) is not None and epoch > _collected(connection, uid) and not _keeps_none(connection, uid):
            yield Fault("metrics", f"task {uid}", f"{count} go on after it, until epoch {epoch}", (uid,))


def _collected(connection: Connection, uid: str) -> int:
    """Return a task's largest epochs when gc dropped its states, or 0."""
    epochs = [data.get("until") for data in _notes(connection, uid, COLLECTED)]
    return max((epoch for epoch in epochs if isinstance(epoch, int)), default=0)


def _keeps_none(connection: Connection, uid: str) -> bool:
    """Return whether a task was last trained with `snapshots` "no"."""
    notes = _notes(connection, uid, INIT)
    return bool(notes) and notes[-1].get("snapshots") == "no"


def _notes(connection: Connection, uid: str, category: str) -> list[dict[str, Any]]:
    """Return the data of a task's events, {} for unreadable data."""
    query = sa.select(sa.type_coerce(event.c.data, sa.Text)).where(event.c.uid == uid, event.c.kind == category)
    notes = []
    for text in connection.scalars(query.order_by(event.c.id)):
        try:
            notes.append(Json().parse(text))
        except ValueError:
            notes.append({})
    return notes


def _unreachable(connection: Connection) -> Iterator[Fault]:
    """Find rows whose parents do not exist.

    A database that enforces foreign keys has no such rows. A missing blob is reported with its checkpoint.
    """
    for table in metadata.sorted_tables:
        for parent in table.foreign_key_constraints:
            if parent.name == BLOB_IN_USE:
                continue
            condition = sa.and_(*(key.parent == key.column for key in parent.elements))
            query = sa.select(*table.primary_key).where(~sa.exists().where(condition)).order_by(*table.primary_key)
            for row in connection.execute(query):
                label = f"{table.name} {' '.join(map(str, row))[:80]}"
                lost = parent.referred_table.name.removeprefix("rk_")
                yield Fault("unreachable", label, f"its {lost} is not there", (table.name, *row))


def _configurations(connection: Connection) -> Iterator[Fault]:
    for name, text in connection.execute(sa.select(study.c.name, sa.type_coerce(study.c.config, sa.Text))):
        try:
            Config.from_json(parse_json(text), name)
        except (StoreError, ValueError) as error:
            yield Fault("study", f"study {name!r}", f"{error}", (name,))


def _trials(connection: Connection) -> Iterator[Fault]:
    """Check trials and segments, with one study at a time in memory."""
    for name in connection.scalars(sa.select(trial.c.study).distinct().order_by(trial.c.study)).all():
        yield from _study(connection, name)


def _measured_in_study(connection: Connection, name: str) -> frozenset[str]:
    """Return the metrics that each result of a study must have.

    The set is empty if results have only a score, or if the configuration cannot be read.
    """
    text = connection.scalar(sa.select(sa.type_coerce(study.c.config, sa.Text)).where(study.c.name == name))
    try:
        return frozenset(measured_names(Config.from_json(parse_json(text), name)))
    except (StoreError, ValueError):
        return frozenset()


def _label(name: str, number: int, seeds: int) -> str:
    """Return a trial's name, with the number that `rekindle trials` shows."""
    replicate = f", seed {number % seeds + 1} of {seeds}," if seeds > 1 else ""
    return f"trial {number // seeds}{replicate} of study {name!r}"


def _seeds(connection: Connection, name: str) -> int:
    try:
        return seeds_of(connection, name)
    except StoreError:  # the configuration cannot be read, which has a finding of its own
        return 1


def _study(connection: Connection, name: str) -> Iterator[Fault]:
    measured, seeds = _measured_in_study(connection, name), _seeds(connection, name)
    rows: dict[int, list[Segment]] = {}
    for row in read_rows(connection, segment, Segment, name, seeds=1):
        rows.setdefault(row.number, []).append(row)
    has_task = sa.exists().where(task.c.uid == trial.c.uid)
    trials = sa.select(trial.c.number, trial.c.uid, trial.c.state, has_task).where(trial.c.study == name)
    for number, uid, state, digest in connection.execute(trials.order_by(trial.c.number)):
        segments, label = rows.get(number, []), _label(name, number, seeds)
        yield from _trial((name, number), label, state, segments)
        for trained in segments:
            if trained.state == "done" and (lacks := sorted(measured.difference(trained.objectives or ()))):
                subject = f"segment {trained.rung} of {label}"
                yield Fault("segment-result", subject, f"it has no {', '.join(lacks)}", (name, number, trained.rung))
        if not digest and any(row.state == "done" for row in segments):
            yield Fault("trial-task", label, f"there is no task {uid}", (name, number))


def _trial(key: tuple[str, int], label: str, state: str, rows: list[Segment]) -> Iterator[Fault]:
    failed = [row.rung for row in rows if row.state == "failed"]
    if state not in (*ENDED, "running") or (state in ("complete", "pruned") and failed):
        yield Fault("trial-state", label, f"it is {state!r}, and {len(failed)} of its segments failed", key)
    elif state == "complete" and not any(row.state == "done" for row in rows):
        yield Fault("trial-state", label, "it is complete, and no segment is done", key)
    elif state == "running" and failed:
        yield Fault("trial-failed", label, f"it is running, and segment {failed[0]} failed", key)
    for before, after in pairwise(rows):
        if after.rung != before.rung + 1 or after.epochs <= before.epochs or before.state != "done":
            wrong = (
                f"segment {after.rung} ({after.epochs} epochs) follows segment {before.rung} "
                f"({before.epochs} epochs, {before.state})"
            )
            yield Fault("segment-order", label, wrong, key)
    for row in rows:
        subject, place_of = f"segment {row.rung} of {label}", (*key, row.rung)
        if row.state not in ("ready", "done", "failed") or (row.state == "done") != (row.score is not None):
            yield Fault("segment-result", subject, f"it is {row.state!r} with score {row.score}", place_of)
        elif row.state == "ready" and state in ENDED:
            yield Fault("segment-open", subject, f"its trial is {state}", place_of)


def _digests(connection: Connection) -> Iterator[Fault]:
    """Find segments whose task has another state at the same epochs.

    A state within the next epoch has as many epochs and is not compared; it was stored when the process had to stop.
    """
    c, s, t = checkpoint.c, segment.c, trial.c
    condition = (s.study == t.study) & (s.number == t.number) & (s.state == "done") & s.digest.is_not(None)
    columns = (s.study, s.number, s.rung, s.epochs, s.digest, c.digest)
    query = sa.select(*columns).join_from(trial, segment, condition)
    at_end = (c.uid == t.uid) & (c.epochs == s.epochs) & (c.within_epoch == 0)
    query = query.join(checkpoint, at_end).where(c.digest != s.digest)
    for *key, epochs, epochs_of_task, stored in connection.execute(query.order_by(s.study, s.number, s.rung)).all():
        name, number, rung = key
        subject = f"segment {rung} of {_label(name, number, _seeds(connection, name))}"
        wrong = f"after {epochs} epochs its digest is {epochs_of_task[:12]}, and the task's {stored[:12]}"
        yield Fault("segment-digest", subject, wrong, (name, number, rung))


CHECKS = (_json, _leases, _tasks, _epochs, _metrics, _unreachable, _configurations, _trials, _digests)
