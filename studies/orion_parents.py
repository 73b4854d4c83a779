"""What a trial of Orion's starts from, if Orion branched it from another one.

Orion's PBT ends a trial and goes on from its state, with other hyperparameters, in a new trial that names the old one
as its parent. Where Orion would copy a directory, its task is a branch of the parent's: `rekindle show` knows its
lineage, and `rekindle replay` trains it again. A promoted trial has its parent's hyperparameters, and is the same task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks.identity import uid_of
from .branches import Start
from .database import Database
from .errors import StoreError
from .orion_documents import Document
from .orion_tables import Collections, schema_version
from .store import Store

PATIENCE = 60.0  # seconds


class NoParent(StoreError):
    """Orion branched a trial from one whose state nobody can find."""


def parent_of(url: str, experiment: Any, trial: str) -> Start | None:
    """Where the parent of a trial in Orion's database at this URL ended; None if the trial has no parent.

    NoParent if the trial, its parent, or what became of that, is not in this database.
    """
    database = Database(url, PATIENCE)
    try:
        known = database.read(schema_version) is not None
        rows = database.read(lambda connection: _family(Collections(connection), experiment, trial)) if known else []
    finally:
        database.close()
    if rows and rows[0].get("parent") is None:
        return None
    told = {result["name"]: result["value"] for row in rows[1:] for result in row["results"]}
    try:
        return Start(told["rk_uid"], told["rk_epochs"], told["rk_digest"])
    except KeyError:
        raise NoParent(
            f"a trial that Orion branched from another one starts from the state that the other one ended with, but "
            f"{database.name} has no such result for trial {trial} of experiment {experiment}; keep Orion's "
            "experiments and the tasks in one database, and let one program train all trials of an experiment"
        ) from None


def _family(collections: Collections, experiment: Any, trial: str) -> list[Document]:
    """The rows of a trial and of its parent, as far as they are there."""
    found = collections.find("trials", {"experiment": experiment, "id": trial})
    if found and found[0].get("parent") is not None:
        found += collections.find("trials", {"experiment": experiment, "id": found[0]["parent"]})
    return found


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
