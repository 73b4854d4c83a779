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
    name, colon, target = text.partition(":")
    if name not in (kinds := OF_SINKS.names()) or not colon or not target:
        raise ValueError(f"curves go to KIND:PLACE with one of the kinds {', '.join(kinds)}, but got {text!r}")
    facts = _exporting(name)
    form, usual, library = facts.place, facts.names, facts.library
    if library and find_spec(library) is None:
        raise ValueError(f"{name} needs the library {library}: pip install 'rekindle-rl[{name}]'")
    if names is not None and names not in TABLES:
        raise ValueError(f"names of metrics are one of {', '.join(TABLES)}, but got {names!r}")
    if form == "database" and "://" in target:
        if masked(target) != target:
            raise ValueError(
                "MLflow takes a password from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, not from a "
                f"command line, which `ps` shows, but {masked(text)} contains one; leave it out"
            )
        return name, target, names or usual
    path = Path(target).expanduser().absolute()
    try:
        _try(path, form == "folder")
    except OSError as error:
        noun = "folder" if form == "folder" else "file"
        raise ValueError(f"{name} writes to a {noun}, but {path} cannot be written: {error.strerror}") from None
    if form == "table":
        _sink(name)(path, names or usual)  # refuses a file that is not a table of curves
    return name, path, names or usual


def located(text: str) -> str:
    """Return ``KIND:PLACE`` with the whole path of a file or folder.

    An environment may change the working directory before another process opens it.

    Raises:
        ValueError: see `parse`.
    """
    name, target, _ = parse(text)
    return f"{name}:{target}"


def _try(path: Path, is_folder: bool) -> None:
    """Raise OSError unless files can be created at a place."""
    folder = path if is_folder else path.parent
    folder.mkdir(parents=True, exist_ok=True)
    if not is_folder and path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with TemporaryFile(dir=folder):
        pass


def _sink(name: str) -> Callable[[Path | str, str], Sink]:
    sink: Callable[[Path | str, str], Sink] = OF_SINKS.load(name)
    return sink


def _exporting(name: str) -> Exporting:
    """Return a sink's facts.

    Raises:
        PluginError: its package's offer is faulty.
    """
    facts: Exporting = SINKS[name] if name in SINKS else getattr(OF_SINKS.load(name), "facts", Exporting())
    return facts


@contextmanager
def opened(name: str, target: Path | str, names: str, wait: Callable[[str], None]) -> Iterator[Sink]:
    """Open a sink.

    Only one process on this machine writes to a place at a time; `wait` gets a line if this one has to wait. Tables
    need no lock, since each is written whole.
    """
    form = _exporting(name).place
    with ExitStack() as ending:
        if isinstance(target, Path) and form != "table":
            file = target / ".rekindle.lock" if form == "folder" else target.with_name(f".{target.name}.rekindle.lock")
            lock = ending.enter_context(file.open("w", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait(f"another process writes to {target}; this one waits for its end")
                fcntl.flock(lock, fcntl.LOCK_EX)
        sink = _sink(name)(target, names)
        ending.callback(sink.close)
        yield sink
