"""Sinks: the tools to which curves are exported, by name."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, NamedTuple, Protocol

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


class Kind(NamedTuple):
    """A kind of sink.

    Attributes:
        place: form of the output: a "folder" of many files; a "table", one file that is always written whole; or a
            "database", a file or a URL.
        sink: module and class.
        names: names of metrics that its users expect, a key of `TABLES`.
        library: library that it needs; None for none.
    """

    place: Literal["folder", "table", "database"]
    sink: str
    names: str
    library: str | None = None


KINDS = {
    "tensorboard": Kind("folder", "tensorboard:TensorBoard", "sb3", "tensorboard"),
    "csv": Kind("table", "tables:CSV", "rekindle"),
    "parquet": Kind("table", "tables:Parquet", "rekindle", "pyarrow"),
    "wandb": Kind("folder", "wandb:WandB", "sb3", "wandb"),
    "mlflow": Kind("database", "mlflow:MLflow", "sb3", "mlflow"),
}


def parse(text: str, names: str | None = None) -> tuple[str, Path | str, str]:
    """Parse ``KIND:PLACE``; return the kind, place and names of metrics.

    Raises:
        ValueError: the kind or the names are unknown, a library is missing, or the place cannot be written.
    """
    kind, colon, place = text.partition(":")
    if kind not in KINDS or not colon or not place:
        raise ValueError(f"curves go to KIND:PLACE with one of the kinds {', '.join(KINDS)}, but got {text!r}")
    form, _, usual, library = KINDS[kind]
    if library is not None and find_spec(library) is None:
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
    module, _, name = KINDS[kind].sink.partition(":")
    sink: Callable[[Path | str, str], Sink] = getattr(import_module(f".{module}", __package__), name)
    return sink


@contextmanager
def opened(kind: str, place: Path | str, names: str, wait: Callable[[str], None]) -> Iterator[Sink]:
    """Open a sink.

    Only one process on this machine writes to a place at a time; `wait` gets a line if this one has to wait. Tables
    need no lock, since each is written whole.
    """
    form = KINDS[kind].place
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
