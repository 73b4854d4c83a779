"""What a process holds in Orion's database, by tokens that name the process, and the thread that keeps it alive."""

from __future__ import annotations

import logging
import os
import uuid
from datetime import datetime
from typing import Any

from ..storage.locks.leases import Heartbeat
from ..storage.locks.owner import Owner
from .db import RekindleSQL
from .documents import Document

from orion.core.io.database import DatabaseError  # isort: skip  # after orion_db, which silences its warnings

log = logging.getLogger(__name__)


class HeldRows:
    """The rows that this process holds; a thread sets their heartbeats for as long as they name its tokens.

    A forked child holds nothing: its parent lives on and holds it all.
    """

    def __init__(self, database: RekindleSQL):
        self._database = database
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._rows: dict[str, tuple[str, Document]] = {}
        self._heartbeat: Heartbeat | None = None

    def rows(self) -> dict[str, tuple[str, Document]]:
        """By token: the collection and the query that finds the row."""
        if self._pid != os.getpid():
            self._start()
        return self._rows

    def hold(self, token: str, collection: str, row: Document, seconds: float) -> None:
        """Keeps a row alive from now on; the first one decides how many seconds are between two heartbeats."""
        self.rows()[token] = (collection, row)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._beat, seconds)

    def drop(self, token: str | None) -> None:
        """Keeps a row alive no longer."""
        self.rows().pop(token or "", None)

    def drop_all(self, collection: str) -> None:
        """Keeps no row of a collection alive any longer."""
        for token in [token for token, held in self.rows().items() if held[0] == collection]:
            self.drop(token)

    def touch(self, collection: str, row: Document) -> int:
        """Sets the heartbeat of the rows that are as the query says; returns how many are."""
        return self._database.transact(lambda rows: rows.update(collection, row, {"heartbeat": rows.now()}))

    def _beat(self) -> None:
        for token, (collection, row) in list(self._rows.items()):
            try:
                if not self.touch(collection, row):
                    self._rows.pop(token, None)
            except DatabaseError as error:  # it may come back before others call this process dead
                log.warning("no sign of life could be given for %s: %s", token, error)


def new_token() -> str:
    """A name for one thing that this process holds: the process, and which of its many."""
    return f"{Owner.current()}#{uuid.uuid4().hex[:16]}"


def is_ours(token: Any) -> bool:
    """Whether this process made the token."""
    return str(token).partition("#")[0] == str(Owner.current())


def is_dead(token: Any) -> bool:
    """Whether the process that made the token certainly ended; False for one on another machine."""
    try:
        return Owner.parse(str(token).partition("#")[0]).is_dead()
    except ValueError:  # not one of ours
        return False


def is_silent(heartbeat: Any, token: Any, before: datetime) -> bool:
    """Whether the holder of a row ended, or gave no sign of life since ``before``."""
    return not isinstance(heartbeat, datetime) or heartbeat <= before or is_dead(token)
