"""The storage of a command, and tasks in it."""

from __future__ import annotations

import argparse
from functools import partial

from ...options.worker_options import WORKER
from ...shell import quoted
from ...storage.sql.database import sqlite_file, without_password
from ...storage.sql.retry import RetryPolicy
from ...storage.store import Store
from ..output.terminal import new_console, note


def existing_store(arguments: argparse.Namespace, first: bool = False) -> Store:
    """Open an existing storage, or raise ValueError."""
    if not database_exists(arguments):
        file = sqlite_file(arguments.url)
        raise ValueError(f"there is no database {file} yet; give --storage, or let `rekindle tune` create it")
    return open_store(arguments, first)


def database_exists(arguments: argparse.Namespace) -> bool:
    """Return False for a SQLite file that does not exist."""
    file = sqlite_file(arguments.url)
    return file is None or file.exists()


def repeated(store: Store) -> str:
    """Return the storage's URL without its password, quoted for a shell."""
    return quoted(without_password(store.database.url.render_as_string(hide_password=False)))


def hides_password(store: Store) -> bool:
    """Return whether the storage's URL contains a password."""
    url = store.database.url
    return url.password is not None or "password" in url.query


def open_store(arguments: argparse.Namespace, first: bool = False) -> Store:
    """Open the storage; operations wait for it as long as --patience allows.

    With `first`, also wait for a database that does not answer at first.
    """
    # a parent shows what its worker waits for
    quiet = getattr(arguments, "quiet", False) and not getattr(arguments, "with_parent", False)
    say = None if quiet else partial(note, new_console(stderr=True))
    retry = RetryPolicy(arguments.patience, full=True, first=first, say=say)
    return Store(arguments.url, retry=retry, lease_seconds=getattr(arguments, "lease", WORKER["lease"].default))


def whole_uid(store: Store, start: str) -> str:
    """Return the only uid with this prefix, or raise ValueError."""
    return store.uid(start)
