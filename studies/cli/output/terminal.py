"""What the commands share: the terminal that they write on, the store that they open, and how a task is named."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ...engine.optuna_mirror import UID as MIRROR
from ...redact import printable
from ...storage.sql.retry import Patience
from ...storage.store import Store

FAILED = 1  # the exit status of what was asked for rightly, and did not succeed


def new_console(stderr: bool = False) -> Console:
    """Where people read."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # tables in files and pipes are not folded to the width of no terminal
    return console


def note(console: Console, text: str) -> None:
    """Prints a text as it is, without what a terminal would take for commands."""
    console.print(printable(text), markup=False, soft_wrap=True)


def print_json(result: Mapping[str, Any]) -> int:
    """What a program reads; the exit status of success."""
    print(json.dumps(result, indent=2))
    return 0


def existing_store(arguments: argparse.Namespace) -> Store:
    """The store at the URL; looking does not make a database of a misspelled name."""
    kind, _, path = arguments.storage.partition(":///")
    if kind.startswith("sqlite") and path and not Path(path.partition("?")[0]).exists():
        raise ValueError(f"there is no database {path} yet; give --storage, or let `rekindle tune` make it")
    return open_store(arguments)


def open_store(arguments: argparse.Namespace) -> Store:
    """The store at the URL, with the patience that was asked for; who waits says so on stderr."""
    console = new_console(stderr=True)
    quiet, worker = getattr(arguments, "quiet", False), arguments.command == "worker"
    say = None if quiet else partial(note, console)
    patience = Patience(arguments.patience, full=True, first=worker, say=say)
    return Store(arguments.storage, patience=patience, lease_seconds=getattr(arguments, "lease", 60.0))


def whole_uid(store: Store, start: str) -> str:
    """The one uid that begins so."""
    uids = [task.uid for task in store.tasks() if not task.uid.startswith(MIRROR)]
    found = [uid for uid in uids if uid.startswith(start)]
    if start in found or len(found) == 1:
        return start if start in found else found[0]
    if found:
        raise ValueError(f"a uid may be cut short as long as one task begins so, but {start!r} begins {len(found)}")
    raise ValueError(f"no task of {store.url} has a uid that begins with {start!r}; `rekindle trials STUDY` shows them")
