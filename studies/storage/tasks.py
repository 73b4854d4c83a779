"""Read-only queries on tasks, which need no lease."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.storage import Metrics
from ...tasks.errors import ADVICE, INEXACT, PLAYED, other_episodes
from ..failures import FAILED
from . import studies as study_rows
from .locks.fencing import TAKEN
from .locks.owner import Owner
from .rows import CheckpointRow, Claim, Event, TaskRow, Trial, Work
from .sql.schema import Now, blob, checkpoint, checkpoint_blob, event, metric, segment, task, trial
from .sql.writes import chunks, rows_with

MIRROR = "mirror/"  # prefix of a study's name: uid of the lease for its copy in Optuna's tables


def tasks(connection: Connection, uids: Collection[str] | None = None) -> list[TaskRow]:
    """Return the given tasks, or all, oldest first."""
    c = task.c
    columns = (c.uid, c.identity, c.lease_owner, c.lease_epoch, c.lease_expires - Now(), c.epochs, c.created)
    query = sa.select(*columns).order_by(c.created, c.uid)
    if uids is None:
        return [TaskRow(*row) for row in connection.execute(query)]
    rows = [TaskRow(*row) for row in rows_with(connection, query, c.uid, uids)]
    return sorted(rows, key=lambda row: (row.created, row.uid))


def count_tasks(connection: Connection, without: Sequence[str]) -> int:
    """Count the tasks whose uids begin with none of the given prefixes."""
    others = [~task.c.uid.startswith(text, autoescape=True) for text in without]
    return connection.scalar(sa.select(sa.func.count()).select_from(task).where(*others)) or 0


def reached(connection: Connection, uids: Collection[str]) -> dict[str, int]:
    """Return the epochs of the tasks' last checkpoints, by uid."""
    columns = sa.select(task.c.uid, task.c.epochs)
    return {row.uid: row.epochs for row in rows_with(connection, columns, task.c.uid, uids)}


def trained_for(connection: Connection, uids: Collection[str]) -> dict[str, float]:
    """Return how many seconds workers trained tasks, by uid."""
    columns = sa.select(task.c.uid, task.c.trained)
    return {row.uid: row.trained for row in rows_with(connection, columns, task.c.uid, uids)}


def trials_of(connection: Connection, uid: str) -> list[tuple[str, Trial]]:
    """Return the trials that train a task, each with its study's name."""
    t = trial.c
    query = sa.select(t.study, t.number).where(t.uid == uid).order_by(t.study, t.number)
    places = [(row.study, row.number) for row in connection.execute(query)]
    return [(name, row) for name, number in places for row in study_rows.trials(connection, name, of=[number])]


def holders(connection: Connection) -> dict[str, str]:
    """Return the owners that are not known to be dead, by uid.

    Processes that copy studies for Optuna are left out. An owner has the form ``host:boot:pid:started``.
    """
    # SQLite would scan all tasks for "is not null".
    owned = sa.select(task.c.uid, task.c.lease_owner).where(task.c.lease_owner >= "", task.c.lease_expires > Now())
    owners = {uid: str(owner) for uid, owner in connection.execute(owned) if not uid.startswith(MIRROR)}
    dead = {owner for owner in set(owners.values()) if Owner.parse(owner).is_dead()}
    return {uid: owner for uid, owner in owners.items() if owner not in dead}


def in_training(connection: Connection, study: str) -> set[int]:
    """Return the numbers of a study's trials that a process trains now."""
    t, s = trial.c, segment.c
    numbers = sa.select(t.number).join(segment, (s.study == t.study) & (s.number == t.number))
    numbers = numbers.where(t.study == study, t.state == "running", s.state == "ready")
    some = chunks(list(holders(connection)))
    return {number for uids in some for number in connection.scalars(numbers.where(t.uid.in_(uids)))}


def claims(connection: Connection) -> list[Claim]:
    """Return the leases held by processes, oldest first."""
    age, left = Now() - sa.func.max(event.c.created), task.c.lease_expires - Now()
    query = sa.select(task.c.uid, task.c.lease_owner, task.c.epochs, age.label("age"), left).join_from(task, event)
    query = query.where(task.c.lease_owner > "", event.c.kind.in_(TAKEN)).group_by(task.c.uid)
    return [Claim(*row) for row in connection.execute(query.order_by(sa.desc("age")))]


def last_work(connection: Connection, studies: Collection[str], most: int) -> list[Work]:
    """Return the latest pieces of work on studies, oldest first.

    Each piece is a lease of a task. The event that begins it notes for how long the task had been trained before, so
    its own seconds are the difference to the task's next lease, or to the task's row. At most `most` pieces are
    returned, from the last 10 * `most` events of the storage.
    """
    e, t = event.c, task.c
    newest = connection.scalar(sa.select(sa.func.max(e.id))) or 0
    leased = sa.and_(t.lease_owner.is_not(None), t.lease_expires > Now())
    query = sa.select(e.uid, e.data, t.trained, leased.label("held"), t.lease_epoch.label("token"))
    query = query.join_from(event, task).where(e.id > newest - 10 * most, e.kind.in_(TAKEN)).order_by(e.id.desc())
    next_began: dict[str, float] = {}  # by uid: seconds of training when its next lease began
    work: list[Work] = []
    for row in connection.execute(query):  # newest first
        ended = next_began.get(row.uid, row.trained)
        began = next_began[row.uid] = row.data.get("trained", ended)  # absent in events of earlier versions
        if row.data.get("study") in studies and len(work) < most:
            runs = bool(row.held) and row.data.get("token") == row.token
            work.append(Work(row.data["study"], max(0.0, ended - began), runs))
    return work[::-1]


def failures(connection: Connection, study: str, after: int, most: int) -> tuple[int, list[Event]]:
    """Return the latest failures in a study, oldest first.

    Those in other studies that share a task are left out.

    Args:
        connection: database connection.
        study: name of the study.
        after: id of the last known event; only later ones are returned.
        most: maximum number of failures.

    Returns:
        The id of the storage's last event, and the failures after `since`.
    """
    c = event.c
    last = connection.scalar(sa.select(sa.func.max(c.id))) or 0
    lease = event.alias().c
    starts = sa.select(lease.data).where(lease.uid == c.uid, lease.kind.in_(TAKEN), lease.id < c.id)
    last_start = starts.order_by(lease.id.desc()).limit(1).scalar_subquery()
    query = sa.select(c.uid, c.created, c.kind, c.data, last_start).where(c.uid.in_(_uids_of(study)), c.kind == FAILED)
    query = query.where(c.id > after).order_by(c.id.desc())
    rows = connection.execute(query) if last > after else ()
    events = (Event(*row) for *row, study_name in rows if _study_of(study_name, study) == study)
    return last, [*islice(events, most)][::-1]


def checkpoints(connection: Connection, uid: str) -> list[CheckpointRow]:
    """Return the checkpoints of a task, oldest first."""
    c = checkpoint.c
    columns = (c.id, c.uid, c.epochs, c.digest, c.lease_epoch, c.created, c.within_epoch)
    query = sa.select(*columns).where(c.uid == uid).order_by(c.id)
    names = sa.select(c.id, blob.c.digest, blob.c.size).join_from(checkpoint, checkpoint_blob).join(blob)
    blobs: dict[int, dict[str, int]] = {}
    for id, digest, size in connection.execute(names.where(c.uid == uid)):
        blobs.setdefault(id, {})[digest] = size
    rows = connection.execute(query)
    return [CheckpointRow(*row[:-1], bool(row.within_epoch), blobs.get(row.id, {})) for row in rows]


def events_of_study(connection: Connection, study: str) -> list[Event]:
    """Return the events of all tasks of a study, oldest first.

    Leases and failures of other studies that share a task are left out.
    """
    c = event.c
    query = sa.select(c.uid, c.created, c.kind, c.data).where(c.uid.in_(_uids_of(study))).order_by(c.created, c.id)
    study_of: dict[str, str] = {}  # study of each task's last lease
    events = []
    for row in connection.execute(query):
        occurred = Event(*row)
        if occurred.kind in TAKEN:
            study_of[occurred.uid] = _study_of(occurred.data, study)
        if occurred.kind not in (*TAKEN, FAILED) or study_of.get(occurred.uid, study) == study:
            events.append(occurred)
    return events


def labels(connection: Connection, study: str) -> dict[str, dict[str, int]]:
    """Return the number of a study's tasks by label and advice."""
    c = event.c
    query = sa.select(c.uid, c.kind, c.data).where(c.uid.in_(_uids_of(study)), c.kind.in_((INEXACT, ADVICE, PLAYED)))
    texts: dict[str, set[tuple[str, str]]] = {INEXACT: set(), ADVICE: set()}
    played: dict[str, str] = {}  # digest of the first training in each environment
    for uid, category, data in connection.execute(query.order_by(c.created, c.id)):
        if category != PLAYED:
            texts[category].update((text, uid) for text in data[category])
        elif played.setdefault(data["env"], data["digest"]) != data["digest"]:
            id = json.loads(data["env"])["id"]
            texts[INEXACT].add((other_episodes(id, "where the study's first trial was trained"), uid))
    return {
        category: dict(sorted(Counter(text for text, _ in texts_of).items())) for category, texts_of in texts.items()
    }


def _study_of(lease: Mapping[str, Any] | None, default: str) -> str:
    """Return the study that a lease names, or the default."""
    return str((lease or {}).get("study", default))


def saved_last(connection: Connection, study: str) -> dict[tuple[str, int], float]:
    """Return when each lease's last checkpoint was saved, by uid and token."""
    c = checkpoint.c
    query = sa.select(c.uid, c.lease_epoch, c.created).where(c.uid.in_(_uids_of(study))).order_by(c.id)
    return {(uid, token): created for uid, token, created in connection.execute(query)}


def curves(connection: Connection, study: str, names: Collection[str]) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """Return named metrics of a study's tasks by uid, as (epoch, metrics).

    Values that are not finite are left out.
    """
    query = sa.select(metric.c.uid, metric.c.epoch, sa.type_coerce(metric.c.data, sa.Text))
    query = query.where(metric.c.uid.in_(_uids_of(study))).order_by(metric.c.uid, metric.c.epoch)
    # A study may have 100,000 rows: a regular expression is faster than parsing the JSON.
    patterns = [(name, re.compile(rf"{re.escape(json.dumps(name))}:\s*(-?\d[\d.eE+-]*)")) for name in names]
    measures: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for uid, epoch, text in connection.execute(query):
        values = {name: float(value[1]) for name, pattern in patterns if (value := pattern.search(text))}
        measures.setdefault(uid, []).append((epoch, values))
    return measures


def _uids_of(study: str) -> sa.Select[tuple[str]]:
    return sa.select(trial.c.uid).where(trial.c.study == study)


def events(connection: Connection, uid: str) -> list[Event]:
    """Return the events of a task, oldest first."""
    c = event.c
    query = sa.select(c.uid, c.created, c.kind, c.data).where(c.uid == uid).order_by(c.id)
    return [Event(*row) for row in connection.execute(query)]


def started(connection: Connection, uids: Collection[str]) -> dict[str, float]:
    """Return when the training of each task began, by uid."""
    began = sa.func.min(event.c.created).label("began")
    first = sa.select(event.c.uid, began).where(event.c.kind.in_(TAKEN)).group_by(event.c.uid)
    return {row.uid: row.began for row in rows_with(connection, first, event.c.uid, uids)}


def metrics_after(connection: Connection, epochs: Mapping[str, int]) -> dict[str, list[tuple[int, Metrics]]]:
    """Return each task's (epoch, metrics) after its given epoch, by uid."""
    m = metric.c
    measures: dict[str, list[tuple[int, Metrics]]] = {}
    for some in chunks(list(epochs)):
        least = min(epochs[uid] for uid in some)
        query = sa.select(m.uid, m.epoch, m.data).where(m.uid.in_(some), m.epoch > least).order_by(m.uid, m.epoch)
        for uid, epoch, data in connection.execute(query):
            if epoch > epochs[uid]:
                measures.setdefault(uid, []).append((epoch, data))
    return measures
