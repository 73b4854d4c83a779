"""Attempts at trials, so that one whose process was killed is tried again, as others are not.

To Orion, a program that is killed has failed as any other has: the trial is broken for good, and Hyperband waits for it
for ever. But machines run out of memory for reasons of their own, and the trial's state is in the database. So
`rekindle train` notes that it begins, and that it ends however it ends; who is dead and has only begun was killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..failures import KILLED, POLICIES
from ..storage.database import Database
from ..storage.owner import Owner
from .tables import Collections, schema_version

COLLECTION = "attempts"
PATIENCE = 60.0  # seconds


@contextmanager
def attempt(url: str, experiment: Any, trial: str) -> Iterator[None]:
    """While entered, the trial of Orion's in the database at this URL is being trained by this process."""
    database, query = Database(url, PATIENCE), {"experiment": experiment, "id": trial}
    try:
        known = database.read(schema_version) is not None
        if known:
            database.write(lambda connection: _begin(Collections(connection), query))
        try:
            yield
        finally:
            if known:
                ended = {"owner": None}
                database.write(lambda connection: Collections(connection).update(COLLECTION, query, ended))
    finally:
        database.close()


def _begin(rows: Collections, query: dict[str, Any]) -> None:
    owner = {"owner": str(Owner.current())}
    if not rows.update(COLLECTION, query, owner):
        rows.insert(COLLECTION, [{**query, **owner, "killed": 0}])


def is_to_be_tried_again(rows: Collections, experiment: Any, trial: str) -> bool:
    """Whether the trial's last attempt was killed, and no more of them were than a trial may have; counts it."""
    query = {"experiment": experiment, "id": trial}
    for found in rows.find(COLLECTION, query):
        if found.get("owner") and Owner.parse(str(found["owner"])).is_dead():
            before = found.get("killed")
            killed = (before if isinstance(before, int) else 0) + 1
            rows.update(COLLECTION, query, {"owner": None, "killed": killed})
            return killed <= (POLICIES[KILLED].times or 0)
    return False
