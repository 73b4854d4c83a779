"""CSV and Parquet tables of curves, with one row for each epoch."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .names import renamed
from .runs import Point, Run

FIXED = ["study", "trial", "seed", "uid", "epoch"]  # the first columns
Key = tuple[str, Any, str]  # study, trial and uid
SHARE = 20.0  # pause between two writes of a growing table, in multiples of the time that a write takes


class _Table:
    """A table that is always written whole.

    A new table replaces the old one atomically, so each epoch is in it once and in order even if a process is killed.
    """

    def __init__(self, path: Path, names: str):
        self.path, self.names = path, names
        self._rows: dict[str, list[dict[str, Any]]] = {}  # by run
        self._order: dict[str, tuple[int, str]] = {}
        keys = self._keys(path) if path.exists() and path.stat().st_size else []
        if keys is None:
            raise ValueError(
                f"curves are written to a file of their own, but {path} holds something else; name another"
            )
        self._owners = {_owner(*key) for key in keys}
        self._changed, self._due = not keys, 0.0

    def last(self, run: Run) -> int:
        """Return 0: each process writes the table from the beginning.

        Raises:
            ValueError: the file has the curves of another study or task.
        """
        owner = _owner(run.group, run.number, run.uid)
        if others := ", ".join(sorted(self._owners - {owner})):
            raise ValueError(
                f"a table has the curves of one, here {owner}, but {self.path} has those of {others}; name another"
            )
        return 0

    def write(self, run: Run, points: Sequence[Point]) -> None:
        """Add rows."""
        self._order[run.name] = (-1 if run.number is None else run.number, run.name)
        fixed = {"study": run.group, "trial": run.number, "seed": run.seed, "uid": run.uid}
        rows = self._rows.setdefault(run.name, [])
        rows += [fixed | {"epoch": point.epoch} | renamed(point.metrics, self.names) for point in points]
        self._changed = True

    def end(self, run: Run) -> None:
        """Do nothing: rows have no state."""

    def flush(self) -> None:
        """Write the table if it has changed and a write is due."""
        if self._changed and time.monotonic() >= self._due:
            self.close()

    def close(self) -> None:
        """Write the table if it has changed."""
        if not self._changed:
            return
        began = time.monotonic()
        rows = [row for name in sorted(self._rows, key=self._order.__getitem__) for row in self._rows[name]]
        columns = list(dict.fromkeys([*FIXED, *(name for row in rows for name in row)]))
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._put(part, columns, rows)
        os.replace(part, self.path)
        now = time.monotonic()
        self._changed, self._due = False, now + SHARE * (now - began)

    _put: Callable[[Path, list[str], list[dict[str, Any]]], None]
    _keys: Callable[[Path], list[Key] | None]  # keys of a file's rows; None if it is not a table of curves


def _owner(study: str, trial: Any, uid: str) -> str:
    """Return a row's study, or the uid of a single task."""
    return uid if trial in (None, "") else study


class CSV(_Table):
    """A CSV file; a metric that an epoch lacks is empty."""

    @staticmethod
    def _put(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    @staticmethod
    def _keys(path: Path) -> list[Key] | None:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = csv.reader(file)
            if next(rows, [])[: len(FIXED)] != FIXED:
                return None
            return [(row[0], row[1], row[3]) for row in rows if len(row) >= len(FIXED)]


class Parquet(_Table):
    """A Parquet file; a metric that an epoch lacks is null."""

    @staticmethod
    def _put(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
        from pyarrow import float64, int64, schema, string
        from pyarrow import table as make_table
        from pyarrow.parquet import write_table

        types = {"study": string(), "uid": string(), "trial": int64(), "seed": int64(), "epoch": int64()}
        content = {name: [row.get(name) for row in rows] for name in columns}
        fields = schema([(name, types.get(name, float64())) for name in columns])
        write_table(make_table(content, schema=fields), path)

    @staticmethod
    def _keys(path: Path) -> list[Key] | None:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        try:
            file = ParquetFile(path)
            if file.schema_arrow.names[: len(FIXED)] != FIXED:
                return None
            return [(row["study"], row["trial"], row["uid"]) for row in file.read(FIXED).to_pylist()]
        except ArrowException:
            return None
