"""Rows of Orion's database that a process holds by tokens.

A thread renews their heartbeats.
"""

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
    """The rows that this process holds.

    A thread sets their heartbeats as long as they name its tokens.

    A forked child starts without rows: its parent lives and keeps all of them.
    """

    def __init__(self, database: RekindleSQL):
        self._database = database
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._rows: dict[str, tuple[str, Document]] = {}
        self._heartbeat: Heartbeat | None = None

    def rows(self) -> dict[str, tuple[str, Document]]:
        """Return the collection and the query of each row, by token."""
        if self._pid != os.getpid():
            self._start()
        return self._rows

    def hold(self, token: str, collection: str, row: Document, seconds: float) -> None:
        """Renew a row's heartbeat from now on.

        The first call decides the seconds between two heartbeats.
        """
        self.rows()[token] = (collection, row)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._beat, seconds)

    def drop(self, token: str | None) -> None:
        """Stop renewing a row."""
        self.rows().pop(token or "", None)

    def drop_all(self, collection: str) -> None:
        """Stop renewing the rows of a collection."""
        for token in [token for token, held in self.rows().items() if held[0] == collection]:
            self.drop(token)

    def touch(self, collection: str, row: Document) -> int:
        """Set the heartbeat of the rows that match; return their number."""
        return self._database.transact(lambda rows: rows.update(collection, row, {"heartbeat": rows.now()}))

    def _beat(self) -> None:
        for token, (collection, row) in list(self._rows.items()):
            try:
                if not self.touch(collection, row):
                    self._rows.pop(token, None)
            except DatabaseError as error:  # it may come back before others call this process dead
                log.warning("no sign of life could be given for %s: %s", token, error)


def new_token() -> str:
    """Return a token: a name of this process and of one holding."""
    return f"{Owner.current()}#{uuid.uuid4().hex[:16]}"


def is_ours(token: Any) -> bool:
    """Return whether this process made the token."""
    return str(token).partition("#")[0] == str(Owner.current())


def is_dead(token: Any) -> bool:
    """Return whether the process that made the token has certainly ended.

    A process on another machine gives False.
    """
    try:
        return Owner.parse(str(token).partition("#")[0]).is_dead()
    except ValueError:  # not one of ours
        return False


def is_silent(heartbeat: Any, token: Any, before: datetime) -> bool:
    """Return whether a row's holder ended, or is silent since ``before``."""
    return not isinstance(heartbeat, datetime) or heartbeat <= before or is_dead(token)
