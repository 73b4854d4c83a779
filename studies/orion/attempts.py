"""Trials whose program was killed, told from those that failed, so that they are tried again.

To Orion, a program that is killed has failed as any other has: the trial is broken for good, and Hyperband waits for it
for ever. But machines run out of memory for reasons of their own, and the trial's state is in the database. A training
that fails says so in Orion's database; one that ended without a word was killed, at whatever moment.
"""

from __future__ import annotations

from typing import Any

from ..failures import KILLED, POLICIES
from ..storage.sql.database import Database
from .tables import Collections, schema_version

COLLECTION = "attempts"
PATIENCE = 60.0  # seconds


def note_failure(url: str, experiment: Any, trial: str) -> None:
    """Says in Orion's database at this URL that the trial failed by itself."""
    database = Database(url, PATIENCE)
    try:
        if database.read(schema_version) is not None:
            database.write(lambda connection: _set(Collections(connection), experiment, trial, {"failed": True}))
    finally:
        database.close()


def is_to_be_tried_again(rows: Collections, experiment: Any, trial: str) -> bool:
    """Whether the trial's training was killed, and no more often than a trial may be; counts it."""
    found = next(iter(rows.find(COLLECTION, {"experiment": experiment, "id": trial})), {})
    if found.get("failed"):
        return False
    before = found.get("killed")
    killed = (before if isinstance(before, int) else 0) + 1
    _set(rows, experiment, trial, {"killed": killed})
    return killed <= (POLICIES[KILLED].times or 0)


def _set(rows: Collections, experiment: Any, trial: str, data: dict[str, Any]) -> None:
    query = {"experiment": experiment, "id": trial}
    if not rows.update(COLLECTION, query, data):
        rows.insert(COLLECTION, [{**query, **data}])
