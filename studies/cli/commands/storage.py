"""The storage that a command names, and the tasks in it."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path

from ...storage.sql.retry import RetryPolicy
from ...storage.store import Store
from ..output.terminal import new_console, note


def existing_store(arguments: argparse.Namespace, first: bool = False) -> Store:
    """Open a storage that exists; ValueError if its file is missing."""
    if not database_exists(arguments):
        path = arguments.storage.partition(":///")[2]
        raise ValueError(f"there is no database {path} yet; give --storage, or let `rekindle tune` make it")
    return open_store(arguments, first)


def database_exists(arguments: argparse.Namespace) -> bool:
    """Return false for a missing SQLite file, true otherwise."""
    kind, _, path = arguments.storage.partition(":///")
    return not (kind.startswith("sqlite") and path) or Path(path.partition("?")[0].removeprefix("file:")).exists()


def repeated(store: Store) -> str:
    """Return the storage's URL, quoted for a shell, without its password."""
    url = store.database.url.set(password=None)
    return shlex.quote(url.difference_update_query(["password"]).render_as_string(hide_password=False))


def hides_password(store: Store) -> bool:
    """Return whether the storage's URL holds a password."""
    url = store.database.url
    return url.password is not None or "password" in url.query


def open_store(arguments: argparse.Namespace, first: bool = False) -> Store:
    """Open the storage, waiting for it as long as --patience allows.

    `first` waits for a database that does not answer from the start, too.
    """
    say = None if getattr(arguments, "quiet", False) else partial(note, new_console(stderr=True))
    retry = RetryPolicy(arguments.patience, full=True, first=first, say=say)
    return Store(arguments.storage, retry=retry, lease_seconds=getattr(arguments, "lease", 60.0))


def whole_uid(store: Store, start: str) -> str:
    """Return the one uid with this prefix; ValueError without exactly one."""
    return store.uid(start)
