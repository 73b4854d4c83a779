"""Deletion of a study with its tasks, or of one task.

    deletion = delete(store, "cartpole")                  # a dry run: lists what would be deleted or kept
    deletion = delete(store, "cartpole", dry_run=False)

The confirmations of a study are deleted, too. Otherwise, they would count as those of a later study of the same name.
If only a confirmation is deleted, its study records which seeds are used.
Tasks that another study also trains are kept, and so are tasks that a remaining task branches from, since its lineage
needs them. Blobs that other checkpoints use are kept. `gc` deletes policies that were stored for warm starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError, UnknownStudy
from ..storage import studies as study_rows
from ..storage.branches import BRANCH, BRANCHED
from ..storage.retention import drop
from ..storage.sql.schema import checkpoint, command, event, metric, segment, study, task, trial
from ..storage.sql.writes import chunks, rows_with
from ..storage.store import MIRROR, Store
from .confirmed_seeds import confirmed_study, used_seeds, with_used
from .locking import lock_if_free


class StillNeeded(StoreError, ValueError):
    """A study or task cannot be deleted, since something needs it."""


@dataclass(frozen=True)
class Deletion:
    """The extent of a deletion.

    Attributes:
        study: name of the deleted study, or None.
        confirmations: names of its confirmations, which are also deleted.
        trials: number of deleted trials.
        tasks: uids of the deleted tasks.
        checkpoints: number of deleted checkpoints.
        kept: reason by uid, for each task of the study that is kept.
    """

    study: str | None
    confirmations: list[str]
    trials: int
    tasks: list[str]
    checkpoints: int
    kept: dict[str, str]


def delete(store: Store, name: str, *, dry_run: bool = True) -> Deletion:
    """Delete a study, or the task with this uid or unique prefix.

    Raises:
        StillNeeded: a process trains one of the tasks; or a study needs the task, or another task branches from it.
        ValueError: no study or task matches.
    """
    studies = store.studies()
    names = [name] if name in {row.name for row in studies} else []
    names += [row.name for row in studies if names and confirmed_study(row.config) == name]
    try:
        uid = None if names else store.uid(name)
    except ValueError as error:
        raise ValueError(f"there is no study {name!r}, and {error}") from None
    run = store.database.read if dry_run else store.database.write
    return run(lambda connection: _delete(connection, names, uid, dry_run))


def _delete(connection: Connection, names: Sequence[str], uid: str | None, dry_run: bool) -> Deletion:
    if uid is not None:
        uids, kept = {uid}, _needed(connection, {uid}, ())
        if kept:
            raise StillNeeded(f"a task can be deleted only if nothing needs it, but {uid} {kept[uid]}")
    else:
        uids = set(connection.scalars(sa.select(trial.c.uid).where(trial.c.study.in_(names))))
        kept = _needed(connection, uids, names)
    going = sorted(uids - kept.keys())
    rows = [MIRROR + name for name in names]
    stored = set(connection.scalars(sa.select(task.c.uid)))
    for locked in [*going, *rows]:
        if locked in stored and not lock_if_free(connection, locked, dry_run=dry_run):
            raise _in_training(locked)
    c = checkpoint.c
    ids = [row.id for row in rows_with(connection, sa.select(c.id), c.uid, going)]
    numbers = sa.select(sa.func.count()).select_from(trial).where(trial.c.study.in_(names))
    deletion = Deletion(next(iter(names), None), [*names[1:]], connection.scalar(numbers) or 0, going, len(ids), kept)
    if not dry_run:
        if names:
            _remember_seeds(connection, names[0])
        for table in (segment, trial, command):
            connection.execute(table.delete().where(table.c.study.in_(names)))
        connection.execute(study.delete().where(study.c.name.in_(names)))
        drop(connection, ids)
        # The deletion of the study's row has waited for workers that were about to claim its tasks.
        if claimed := set(connection.scalars(sa.select(task.c.uid))) & set(going) - stored:
            raise _in_training(min(claimed))
        for part in chunks([*going, *rows]):
            _forget(connection, part)
    return deletion


def _remember_seeds(connection: Connection, name: str) -> None:
    """Keep the seeds of a deleted confirmation from later ones."""
    row = study_rows.get_study(connection, name)
    if (of := confirmed_study(row.config)) is not None:
        with suppress(UnknownStudy):
            study_rows.change_config(connection, of, partial(with_used, used=used_seeds([row])))


def _in_training(uid: str) -> StillNeeded:
    return StillNeeded(
        f"a task that a process trains cannot be deleted, but task {uid} is held by one; end its workers "
        "(`rekindle status` names them), then try again"
    )


def _needed(connection: Connection, uids: Collection[str], names: Sequence[str]) -> dict[str, str]:
    """Return the tasks that anything outside these studies needs, with reasons."""
    kept: dict[str, str] = {}
    columns = trial.c.uid, trial.c.study, trial.c.number
    others = sa.select(*columns).where(trial.c.study.not_in(names)).order_by(trial.c.study, trial.c.number)
    for row in rows_with(connection, others, trial.c.uid, uids):
        if row.uid not in kept:
            number = row.number // study_rows.seeds_of(connection, row.study)  # as `rekindle trials` has it
            kept[row.uid] = f"is trial {number} of study {row.study!r}"
    children = _children(connection, uids)
    grown = True
    while grown:  # the parent of a kept task is kept, too
        grown = False
        for uid in sorted(children.keys() - kept.keys()):
            if staying := sorted(child for child in children[uid] if child in kept or child not in uids):
                kept[uid], grown = f"is where task {staying[0]} starts", True
    return kept


def _children(connection: Connection, uids: Collection[str]) -> dict[str, set[str]]:
    """Return the tasks that branch from each of these that has any."""
    named: dict[str, set[str]] = {}
    branchings = sa.select(event.c.uid, event.c.data).where(event.c.kind == BRANCHED)
    for uid, data in rows_with(connection, branchings, event.c.uid, uids):
        named.setdefault(uid, set()).add(str(data.get("to")))
    children = set[str]().union(*named.values())
    stored = {row.uid for row in rows_with(connection, sa.select(task.c.uid), task.c.uid, children)}
    return {uid: names & stored for uid, names in named.items()}


def _forget(connection: Connection, uids: Collection[str]) -> None:
    """Delete the rows of tasks, and their parents' events about them."""
    starts = connection.scalars(sa.select(event.c.data).where(event.c.uid.in_(uids), event.c.kind == BRANCH)).all()
    parents = {str(data.get("parent")) for data in starts}
    branchings = sa.select(event.c.id, event.c.data).where(event.c.kind == BRANCHED)
    of_parents = rows_with(connection, branchings, event.c.uid, parents)
    for ids in chunks([row.id for row in of_parents if row.data.get("to") in uids]):
        connection.execute(event.delete().where(event.c.id.in_(ids)))
    for table in (metric, event, task):
        connection.execute(table.delete().where(table.c.uid.in_(uids)))
