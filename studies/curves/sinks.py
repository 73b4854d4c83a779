"""Sinks: the tools to which curves are exported, by name."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from ..methods import OF_SINKS, SINKS, Exporting
from ..redact import masked
from .names import TABLES
from .runs import Point, Run


class Sink(Protocol):
    """A tool that holds curves."""

    def last(self, run: Run) -> int:
        """Return the tool's last epoch of a run, or 0."""

    def write(self, run: Run, points: Sequence[Point]) -> None:
        """Add the points that follow the last one."""

    def end(self, run: Run) -> None:
        """Record that a run has ended; repeated calls have no effect."""

    def flush(self) -> None:
        """Make the written points visible."""

    def close(self) -> None:
        """Complete the tool's files; another process may add runs later."""


def parse(text: str, names: str | None = None) -> tuple[str, Path | str, str]:
    """Parse ``KIND:PLACE``; return the kind, place and names of metrics.

    Raises:
        ValueError: the kind or the names are unknown, a library is missing, or the place cannot be written.
    """
    kind, colon, place = text.partition(":")
    if kind not in (kinds := OF_SINKS.names()) or not colon or not place:
        raise ValueError(f"curves go to KIND:PLACE with one of the kinds {', '.join(kinds)}, but got {text!r}")
    facts = _exporting(kind)
    form, usual, library = facts.place, facts.names, facts.library
    if library and find_spec(library) is None:
        raise ValueError(f"{kind} needs the library {library}: pip install 'rekindle-rl[{kind}]'")
    if names is not None and names not in TABLES:
        raise ValueError(f"names of metrics are one of {', '.join(TABLES)}, but got {names!r}")
    if form == "database" and "://" in place:
        if masked(place) != place:
            raise ValueError(
                "MLflow takes a password from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, not from a "
                f"command line, which `ps` shows, but {masked(text)} contains one; leave it out"
            )
        return kind, place, names or usual
    path = Path(place).expanduser().absolute()
    try:
        _try(path, form == "folder")
    except OSError as error:
        what = "folder" if form == "folder" else "file"
        raise ValueError(f"{kind} writes to a {what}, but {path} cannot be written: {error.strerror}") from None
    if form == "table":
        _sink(kind)(path, names or usual)  # refuses a file that is not a table of curves
    return kind, path, names or usual


def located(text: str) -> str:
    """Return ``KIND:PLACE`` with the whole path of a file or folder.

    An environment may change the working directory before another process opens it.

    Raises:
        ValueError: see `parse`.
    """
    kind, place, _ = parse(text)
    return f"{kind}:{place}"


def _try(path: Path, is_folder: bool) -> None:
    """Raise OSError unless files can be created at a place."""
    folder = path if is_folder else path.parent
    folder.mkdir(parents=True, exist_ok=True)
    if not is_folder and path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with TemporaryFile(dir=folder):
        pass


def _sink(kind: str) -> Callable[[Path | str, str], Sink]:
    sink: Callable[[Path | str, str], Sink] = OF_SINKS.load(kind)
    return sink


def _exporting(kind: str) -> Exporting:
    """Return a sink's facts.

    Raises:
        PluginError: its package's offer is faulty.
    """
    facts: Exporting = SINKS[kind] if kind in SINKS else getattr(OF_SINKS.load(kind), "facts", Exporting())
    return facts


@contextmanager
def opened(kind: str, place: Path | str, names: str, wait: Callable[[str], None]) -> Iterator[Sink]:
    """Open a sink.

    Only one process on this machine writes to a place at a time; `wait` gets a line if this one has to wait. Tables
    need no lock, since each is written whole.
    """
    form = _exporting(kind).place
    with ExitStack() as ending:
        if isinstance(place, Path) and form != "table":
            file = place / ".rekindle.lock" if form == "folder" else place.with_name(f".{place.name}.rekindle.lock")
            lock = ending.enter_context(file.open("w", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait(f"another process writes to {place}; this one waits for its end")
                fcntl.flock(lock, fcntl.LOCK_EX)
        sink = _sink(kind)(place, names)
        ending.callback(sink.close)
        yield sink
