"""Text for people, and JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from ....tasks.runtime.observers import EpochEvent
from ...engine.views import View, to_json
from ...redact import printable
from .results import results

FORMAT = 1  # increased when a name in the JSON changes its meaning or is removed, but not for new names


def new_console(stderr: bool = False) -> Console:
    """Return a console on stdout or stderr."""
    console = Console(stderr=stderr, highlight=False, emoji=False)  # "fit:train:" is no tram
    if not console.is_terminal:
        console.width = 200  # tables in files and pipes need not fit a terminal
    return console


def note(console: Console, text: str) -> None:
    """Print text, without interpreting markup or terminal control sequences."""
    console.print(printable(text), markup=False, soft_wrap=True)


@contextmanager
def patience(console: Console, text: str, seconds: float = 5.0) -> Iterator[None]:
    """Print text if what follows takes more than these seconds."""
    timer = threading.Timer(seconds, note, (console, text))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # processes are forked afterwards, by one thread


def log_json(study: str, text: str) -> None:
    """Print a message with time, study and process as JSON on stderr."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": now, "study": study, "worker": os.getpid(), "message": text}
    print(json.dumps(line), file=sys.stderr, flush=True)


def print_json(result: View | Mapping[str, Any], status: int = 0) -> int:
    """Print a result as JSON; return the exit status."""
    print(json.dumps({"format": FORMAT, **to_json(result)}, indent=2), file=results(), flush=True)
    return status


def epoch_line(event: EpochEvent, epochs: int, *names: str) -> str:
    """Return a line with those named metrics that were reported."""
    values = (f"{name} {event.metrics[name]:.5g}" for name in names if name in event.metrics)
    return f"epoch {event.epoch}/{epochs}  " + "  ".join(values)
