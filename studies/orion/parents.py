"""What a trial of Orion's starts from, if Orion branched it from another one.

Orion's PBT ends a trial and goes on from its state, with other hyperparameters, in a new trial that names the old one
as its parent. Where Orion would copy a directory, its task is a branch of the parent's: `rekindle show` knows its
lineage, and `rekindle replay` trains it again. A promoted trial has its parent's hyperparameters, and is the same task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...tasks.identity import uid_of
from ..errors import StoreError
from ..storage.branches import Start
from ..storage.sql.database import Database
from ..storage.store import Store
from .tables import Collections, schema_version

PATIENCE = 60.0  # seconds
PROMOTING = {"asha", "hyperband", "bohb", "dehb"}  # whose trials have the hyperparameters of their parents


class NoParent(StoreError):
    """Orion branched a trial from one whose state nobody can find."""


def parent_of(url: str, experiment: Any, trial: str) -> Start | None:
    """Where the parent of a trial in Orion's database at this URL ended; None if the trial needs no parent.

    NoParent if the trial, its parent, or what became of that, is not in this database.
    """
    database = Database(url, PATIENCE)
    try:
        if database.read(schema_version) is not None:
            found, start = database.read(lambda connection: _look(Collections(connection), experiment, trial))
            if found:
                return start
    finally:
        database.close()
    raise NoParent(
        f"a trial that Orion branched from another one starts from the state that the other one ended with, but "
        f"{database.name} has no such result for trial {trial} of experiment {experiment}; keep Orion's experiments "
        "and the tasks in one database, and let one program train all trials of an experiment"
    )


def _look(collections: Collections, experiment: Any, trial: str) -> tuple[bool, Start | None]:
    """Whether the database says what a trial starts from, and what that is."""
    for row in collections.find("trials", {"experiment": experiment, "id": trial}):
        if row.get("parent") is None:
            return True, None
        for parent in collections.find("trials", {"experiment": experiment, "id": row["parent"]}):
            told = {result["name"]: result["value"] for result in parent["results"]}
            if {"rk_uid", "rk_epochs", "rk_digest"} <= told.keys():
                return True, Start(told["rk_uid"], told["rk_epochs"], told["rk_digest"])
    # The parents may be trials of the experiment that this one is a later version of: a promoted trial needs none.
    known = collections.find("experiments", {"_id": experiment})
    return any(PROMOTING.intersection(map(str.lower, row["algorithm"])) for row in known), None


def start_of(store: Store, identity: Mapping[str, Any], parent: Start | None) -> str | None:
    """What `Task.init(start=...)` is to be given for a trial with this parent; its branch is in the store then.

    None for a task that starts from nothing. `identity` is that of the task without a start.
    """
    if parent is None:
        return None
    rows = store.tasks([parent.uid])
    if not rows or rows[0].identity is None:
        raise NoParent(f"a branched trial starts from task {parent.uid}, but {store.url} has no such task")
    theirs = dict(rows[0].identity)
    start: str | None = theirs.pop("start", None)
    if theirs == identity:  # promoted: the same task, for longer
        return start
    branch = {**identity, "start": parent.digest}
    store.branch(uid_of(branch), branch, parent)
    return parent.digest
