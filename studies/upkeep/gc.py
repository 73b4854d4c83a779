"""Garbage collection of checkpoints that no trial needs any more.

    garbage = gc(store)                  # a dry run: the checkpoints that would be dropped, and their bytes
    garbage = gc(store, dry_run=False)

By default, a finished trial keeps its last checkpoint and that of its best result, in the order of its study; a running
trial keeps its latest two, and a failed trial none. Trials that did not fail also keep the `snapshots` that they were
trained with. If several trials share a task, each keeps what it needs, and the start of a branch is always kept. Tasks
of no study and tasks that a living process holds are left alone. Metrics and events are kept, and a dropped state can
be trained again. A policy that was stored for a warm start is dropped after an hour, unless a study names it or a
task starts from it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.retention import RETURN
from ...tasks.checkpoint.storage import POLICY_PREFIX
from ..storage import branches
from ..storage.retention import Keep, Place, asked_for, drop, kept_by
from ..storage.sql.schema import Now, blob, checkpoint, checkpoint_blob, event, study, task, trial
from ..storage.sql.writes import add_events, chunks
from ..storage.store import Store
from ..storage.studies import get_study, seeds_of, segments
from ..study.config import Config
from ..study.objectives import worth
from .fsck_rows import COLLECTED
from .locking import last_epochs, lock_if_free


@dataclass(frozen=True)
class GcRules:
    """Retention rules for trials, by state; None keeps nothing.

    The best checkpoints by `Keep.metric`, if that is the return, are those of the best results in the study's order.
    """

    finished: Keep | None = field(default_factory=lambda: Keep(latest=1, best=1))
    failed: Keep | None = None
    running: Keep | None = field(default_factory=Keep)

    def of(self, state: str) -> Keep | None:
        """Return the retention rule for a trial in this state."""
        return {"failed": self.failed, "running": self.running}.get(state, self.finished)


RULES = GcRules()
YOUNG = 3600.0  # age in seconds below which a stored policy is kept


@dataclass(frozen=True)
class Garbage:
    """Checkpoints of one task that no trial needs.

    Attributes:
        uid: uid of the task.
        trials: (study, number, state) of each trial that trains the task.
        epochs: epochs of the dropped checkpoints.
        kept: epochs of the kept checkpoints.
        size: bytes of the blobs that only the dropped checkpoints use, counted task by task.
        ids: ids of the dropped checkpoints.
    """

    uid: str
    trials: Sequence[tuple[str, int, str]]
    epochs: Sequence[int]
    kept: Sequence[int]
    size: int
    ids: Sequence[int]


def gc(
    store: Store, rules: GcRules = RULES, *, studies: Collection[str] | None = None, dry_run: bool = True
) -> list[Garbage]:
    """Drop checkpoints that no trial needs, and return them.

    Args:
        store: database.
        rules: retention rules.
        studies: names of the studies to collect; None for all, and for stored policies.
        dry_run: whether to change nothing.

    Raises:
        UnknownStudy: a study does not exist.
    """
    uids = store.database.read(lambda connection: _uids(connection, studies))
    run = store.database.read if dry_run else store.database.write
    garbage: list[Garbage] = []
    collectors = [partial(_collect_task, uid=uid, rules=rules) for uid in uids]
    if studies is None:
        collectors += [partial(_collect_stored_policy, uid=uid) for uid in store.database.read(_old_policies)]
    # In a dry run, a blob counts as freed by the last task that would drop it; ``gone`` has the earlier checkpoints.
    gone: list[int] = []
    for collect in collectors:
        rows = run(partial(collect, gone=gone, dry_run=dry_run))
        garbage += rows
        gone += [id for row in rows for id in row.ids] if dry_run else []
    return garbage


def _uids(connection: Connection, studies: Collection[str] | None) -> list[str]:
    query = sa.select(trial.c.uid).distinct().order_by(trial.c.uid)
    for name in studies or ():
        get_study(connection, name)
    if studies is not None:
        query = query.where(trial.c.study.in_(studies))
    return list(connection.scalars(query.where(sa.exists().where(checkpoint.c.uid == trial.c.uid))))


def _collect_task(
    connection: Connection, uid: str, rules: GcRules, gone: Sequence[int], dry_run: bool
) -> list[Garbage]:
    """Drop the checkpoints that one task need not keep, and return them."""
    if not lock_if_free(connection, uid, dry_run=dry_run):
        return []
    c = checkpoint.c
    query = sa.select(c.id, c.epochs, c.within_epoch).where(c.uid == uid).order_by(c.id)
    places = [Place(*row) for row in connection.execute(query)]
    epochs = {checkpoint.id: checkpoint.epochs for checkpoint in places}
    t = trial.c
    query = sa.select(t.study, t.number, t.state).where(t.uid == uid).order_by(t.study, t.number)
    rows = connection.execute(query).all()
    trials = [(row.study, row.number // seeds_of(connection, row.study), row.state) for row in rows]
    needed = branches.kept_checkpoints(connection, [uid])
    for row in rows if places else ():
        rule, wanted = rules.of(row.state), asked_for(connection, uid) if row.state != "failed" else None
        if rule is not None and rule.best and rule.metric == RETURN:
            best = _best_epochs(connection, row.study, row.number)[: rule.best]
            needed |= {
                checkpoint.id for checkpoint in places if checkpoint.epochs in best and not checkpoint.within_epoch
            }
            rule = replace(rule, best=0)
        for keep in filter(None, (rule, wanted)):
            needed |= kept_by(connection, uid, places, keep)
    ids = sorted(epochs.keys() - needed)
    if not ids:
        return []
    size = _freed_bytes(connection, ids, gone)
    if not dry_run:
        drop(connection, ids)
        last_epochs(connection, uid)
        note = {"epochs": [epochs[id] for id in ids], "until": max(epochs.values()), "bytes": size}
        add_events(connection, [(uid, COLLECTED, note)])
    kept = [epochs[id] for id in sorted(needed)]
    return [Garbage(uid, trials, [epochs[id] for id in ids], kept, size, ids)]


def _best_epochs(connection: Connection, name: str, number: int) -> list[int]:
    """Return the epochs of a trial's results, the best first."""
    config = Config.from_json(get_study(connection, name).config, name)
    results = [row for row in segments(connection, name, of=[number]) if row.state == "done"]
    return [row.epochs for row in sorted(results, key=partial(worth, config), reverse=True)]


def _old_policies(connection: Connection) -> list[str]:
    """Return the stored policies that are old enough to drop.

    A study may be about to use a younger one.
    """
    c = checkpoint.c
    old = sa.select(c.uid).where(c.uid.startswith(POLICY_PREFIX, autoescape=True), c.created < Now() - YOUNG)
    return list(connection.scalars(old.distinct().order_by(c.uid)))


def _collect_stored_policy(connection: Connection, uid: str, gone: Sequence[int], dry_run: bool) -> list[Garbage]:
    """Drop a policy that no task starts from or plays with.

    Its events are also dropped; otherwise the policy would not be stored again when needed.
    """
    if not lock_if_free(connection, uid, dry_run=dry_run):
        return []
    # A configuration names the digest of a start, and the uid of a policy that plays, as a task does.
    studies = sa.select(study.c.name).where(_contains(study.c.config, uid.removeprefix(POLICY_PREFIX)))
    tasks = sa.select(task.c.uid).where(_contains(task.c.identity, uid))
    named = any(connection.execute(query.limit(1)).first() for query in (studies, tasks))
    if named or branches.kept_checkpoints(connection, [uid]):
        return []
    ids = list(connection.scalars(sa.select(checkpoint.c.id).where(checkpoint.c.uid == uid)))
    size = _freed_bytes(connection, ids, gone)
    if not dry_run:
        drop(connection, ids)
        connection.execute(event.delete().where(event.c.uid == uid))
    return [Garbage(uid, [], [0] * len(ids), [], size, ids)]


def _contains(column: sa.Column[Any], text: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column's JSON contains a text."""
    return sa.type_coerce(column, sa.Text).contains(text, autoescape=True)


def _freed_bytes(connection: Connection, ids: Sequence[int], gone: Sequence[int]) -> int:
    """Return the bytes of blobs that only these and `gone` checkpoints use."""
    c, size = checkpoint_blob.c, 0
    digests = set(connection.scalars(sa.select(c.digest).where(c.checkpoint.in_(ids))))
    leaving = {*ids, *gone}
    for some in chunks(sorted(digests)):
        others = sa.select(c.digest, c.checkpoint).where(c.digest.in_(some))
        used = {row.digest for row in connection.execute(others) if row.checkpoint not in leaving}
        lengths = sa.select(blob.c.digest, sa.func.length(blob.c.data)).where(blob.c.digest.in_(some))
        size += sum(length for digest, length in connection.execute(lengths) if digest not in used)
    return size
