"""Rows about Orion's trials: parents, and killed attempts.

Orion's PBT ends a trial and branches a new one from its state, with other hyperparameters; the new trial names the old
one as its parent. Orion would copy a directory. Here the new trial's task is a branch of the parent's task, so
`rekindle show` prints its lineage and `rekindle replay` trains it again. A promoted trial has the same hyperparameters
as its parent, and is the same task.

Orion treats a killed program as any failed one: the trial is broken for good, and Hyperband waits for it forever. Yet
the reason may be the machine, which ran out of memory, and the trial's state is in the database. Therefore a program
that fails writes a note into Orion's database. One that ends without a note was killed, and its trial is retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ..errors import StoreError
from ..failures import KILLED, RETRY_RULES
from ..storage.branches import Start
from ..storage.sql.database import Database
from ..storage.store import Store
from .document_tables import Collections, schema_version

SECONDS = 60.0  # time for which a busy database is retried
ATTEMPTS = "attempts"  # name of the collection
PROMOTING = {"asha", "hyperband", "bohb", "dehb"}  # in these, trials have their parents' hyperparameters


class NoParent(StoreError):
    """The state from which Orion branched a trial cannot be found."""


def parent_of(url: str, experiment: Any, trial: str) -> Start | None:
    """Return the final state of a trial's parent, if it needs one.

    Raises:
        NoParent: the trial, its parent, or the parent's result is not in this database.
    """
    with closing(Database(url, SECONDS)) as database:
        if database.read(schema_version):
            document, start = database.read(lambda connection: _look(Collections(connection), experiment, trial))
            if document:
                return start
    raise NoParent(
        f"a trial that Orion branched from another one starts from the state that the other one ended with, but "
        f"{database.name} has no such result for trial {trial} of experiment {experiment}; keep Orion's experiments "
        "and the tasks in one database, and let one program train all trials of an experiment"
    )


def _look(collections: Collections, experiment: Any, trial: str) -> tuple[bool, Start | None]:
    """Return whether a trial's start is known, and the start."""
    for row in collections.find("trials", {"experiment": experiment, "id": trial}):
        if row.get("parent") is None:
            return True, None
        for parent in collections.find("trials", {"experiment": experiment, "id": row["parent"]}):
            results = {result["name"]: result["value"] for result in parent["results"]}
            if {"rk_uid", "rk_epochs", "rk_digest"} <= results.keys():
                return True, Start(results["rk_uid"], results["rk_epochs"], results["rk_digest"])
    # The parent may belong to an earlier version of this experiment. A promoted trial does not need it.
    document = collections.find("experiments", {"_id": experiment})
    return any(PROMOTING.intersection(map(str.lower, row["algorithm"])) for row in document), None


def start_of(store: Store, identity: Mapping[str, Any], parent: Start | None) -> str | None:
    """Store a trial's branch, and return the digest of its start.

    Args:
        store: store of the tasks.
        identity: identity of the task without a start.
        parent: final state of the trial's parent, if any.

    Returns:
        Digest for `Task.init(start=...)`; None for a task that starts from nothing.

    Raises:
        NoParent: the store does not have the parent's task.
    """
    if parent is None:
        return None
    rows = store.tasks([parent.uid])
    if not rows or rows[0].identity is None:
        raise NoParent(f"a branched trial starts from task {parent.uid}, but {store.url} has no such task")
    of_parent = dict(rows[0].identity)
    start: str | None = of_parent.pop("start", None)
    if of_parent == identity:  # promoted: the same task, with more epochs
        return start
    from ...tasks.identity import uid_of

    branch = {**identity, "start": parent.digest}
    store.branch(uid_of(branch), branch, parent)
    return parent.digest


def note_failure(url: str, experiment: Any, trial: str) -> None:
    """Record in Orion's database that the trial failed by itself."""
    with closing(Database(url, SECONDS)) as database:
        if database.read(schema_version):
            database.write(lambda connection: _set(Collections(connection), experiment, trial, {"failed": True}))


def is_to_be_tried_again(rows: Collections, experiment: Any, trial: str) -> bool:
    """Count a killed training of a trial; return whether to retry it.

    A training that failed by itself is not retried, nor is one that was killed more often than allowed.
    """
    attempts = next(iter(rows.find(ATTEMPTS, {"experiment": experiment, "id": trial})), {})
    if attempts.get("failed"):
        return False
    before = attempts.get("killed")
    killed = (before if isinstance(before, int) else 0) + 1
    _set(rows, experiment, trial, {"killed": killed})
    return killed <= (RETRY_RULES[KILLED].times or 0)


def _set(rows: Collections, experiment: Any, trial: str, data: dict[str, Any]) -> None:
    query = {"experiment": experiment, "id": trial}
    if not rows.update(ATTEMPTS, query, data):
        rows.insert(ATTEMPTS, [{**query, **data}])
