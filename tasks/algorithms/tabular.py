"""Recorded trainings as a task, for studies on real curves in seconds.

The environment is the path of an `.npz` file with these arrays, for N trainings with S seeds and T points each:

    param.NAME (N,)     a hyperparameter of each training: numbers, strings, or booleans
    steps (T,)          whole environment steps of the points, rising; a first point of 0 is before any training
    curves (N, S, T)    the return at each point; NaN where a training diverged
    meta                JSON text, an object; if its "maximize" is false, less is better, and returns are the negatives

An epoch leads from one point to the next. The hyperparameters select the row, or the nearest one if the table does not
have exactly these; seed s selects the column s modulo S. A hyperparameter with one value is fixed; one with more than
64 numbers is a range, of integers if all of them are integers. The table's sha256 is part of the identity.

The columns count as all seeds that there are: different seeds may share one, and the interval of a confirmation, whose
seeds choose columns at random, is about the mean over all columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...spaces import Dimension, Space, categorical, fixed, integer, log_real, ordinal, real
from ...spaces.choices import Choice, Ordinal
from ...spaces.ranges import Integer, Real
from ..base_learner import BaseLearner
from ..checkpoint.array_files import open_npz
from ..checkpoint.retention import RETURN
from ..checkpoint.storage import Metrics
from ..envs import EnvSpec, EnvSpecError
from ..identity import EnvLike
from ..task import Task

ORDINAL = 64  # a column with at most this many different numbers becomes an ordinal, others become ranges
WHOLE = 2**53  # floats from here on are no integers that a hyperparameter may have
PREFIX = "param."
RESERVED = ("epochs", "start", "uid")  # arguments of a task beside its hyperparameters


@dataclass(frozen=True)
class Table:
    """A table of recorded trainings.

    Attributes:
        path: path of the file.
        digest: sha256 of the file.
        columns: hyperparameters by name, each (N,).
        steps: environment steps at the end of each epoch, (T,).
        first: returns before the first epoch, (N, S).
        returns: returns at the end of each epoch, (N, S, T); higher is better.
    """

    path: str
    digest: str
    columns: Mapping[str, np.ndarray]
    steps: np.ndarray
    first: np.ndarray
    returns: np.ndarray

    @property
    def epochs(self) -> int:
        """Number of recorded epochs."""
        return len(self.steps)

    @cached_property
    def space(self) -> Space:
        """The columns as hyperparameters, plus `epoch_steps`, the mean length of an epoch."""
        dimensions = {name: _dimension(column) for name, column in self.columns.items()}
        return Space(**dimensions, epoch_steps=fixed(max(1, round(self.steps[-1] / self.epochs)), structural=True))

    @cached_property
    def _points(self) -> np.ndarray:
        """The rows as points (N, D), each hyperparameter scaled to [0, 1]."""
        dimensions = self.space.flat()
        places = [[_position(dimensions[name], x) for x in column.tolist()] for name, column in self.columns.items()]
        return np.array(places).T

    def nearest(self, values: Mapping[str, Any]) -> int:
        """Return the row nearest to these hyperparameters, the first if several are."""
        dimensions = self.space.flat()
        point = np.array([_position(dimensions[name], values[name]) for name in self.columns])
        apart = self._points - point
        for axis, name in enumerate(self.columns):
            if isinstance(values[name], str | bool):
                apart[:, axis] = apart[:, axis] != 0
        return int(np.square(apart).sum(1).argmin())


def _dimension(column: np.ndarray) -> Dimension:
    """Return the dimension that a column's values suggest."""
    different = np.unique(column).tolist()
    if isinstance(different[0], str | bool):  # only numbers can be dynamic
        if len(different) == 1:
            return fixed(different[0], structural=True)
        return categorical(*different, default=different[0], structural=True)
    if len(different) <= ORDINAL:
        values = [int(x) if _is_whole(x) else x for x in different]
        if len(values) == 1:
            return fixed(values[0])
        return ordinal(*values, default=values[len(values) // 2], accept=(values[0], values[-1]))
    low, high = different[0], different[-1]
    middle, median = (low + high) / 2, float(np.median(column))
    log = low > 0 and abs(math.sqrt(low * high) - median) < abs(middle - median)
    default = math.sqrt(low * high) if log else middle
    if all(map(_is_whole, different)):
        return integer(int(low), int(high), log=log, default=round(default))
    return log_real(low, high, default=default) if log else real(low, high, default=default)


def _is_whole(x: float) -> bool:
    """Return whether a number is an integer that a hyperparameter may have."""
    return float(x).is_integer() and abs(x) < WHOLE


def _position(dimension: Dimension, value: Any) -> float:
    """Return a value's position in its dimension, from 0 to 1."""
    if isinstance(dimension, Ordinal):
        return float(np.interp(value, np.array(dimension.values), np.linspace(0, 1, len(dimension.values))))
    if isinstance(dimension, Choice):
        return float(dimension.values.index(value))
    assert isinstance(dimension, Real | Integer)
    low, high = float(dimension.low), float(dimension.high)
    if dimension.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))


def read_table(path: str) -> Table:
    """Return the table in a file; a changed file is read again.

    Raises:
        EnvSpecError: there is no such file, or it holds no table.
    """
    try:
        file = os.stat(path)
    except OSError as error:
        raise EnvSpecError(
            f"tabular trains on a table, an .npz file, but got {path!r}: {error.strerror}; give its path"
        ) from None
    return _read(path, file.st_mtime_ns, file.st_size)


@lru_cache(maxsize=8)
def _read(path: str, *_: int) -> Table:
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        with open_npz(path) as arrays:
            table = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError):
        raise EnvSpecError(
            f"a table is an .npz file of arrays without Python objects, but {path} is not; write it by numpy.savez"
        ) from None
    try:
        meta = json.loads(str(table.get("meta", "{}")))
    except ValueError:
        meta = str(table["meta"])
    columns = {name.removeprefix(PREFIX): table[name] for name in table if name.startswith(PREFIX)}
    _check(path, table, columns, meta)
    steps, curves = table["steps"].astype(np.float64), table["curves"].astype(np.float64)
    returns = curves if meta.get("maximize", True) else -curves
    trained = 1 if steps[0] == 0 else 0
    return Table(path, digest, columns, steps[trained:], returns[:, :, 0], returns[:, :, trained:])


def _check(path: str, table: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray], meta: Any) -> None:
    """Raise EnvSpecError unless the arrays form a table."""

    def refuse(law: str, value: object) -> None:
        raise EnvSpecError(f"table {path}: {law}, but {value}; see `python -m pydoc rekindle.tasks.algorithms.tabular`")

    if missing := sorted({"steps", "curves"} - table.keys()) + ([] if columns else [f"{PREFIX}NAME"]):
        refuse("it needs the arrays param.NAME, steps and curves", f"{', '.join(missing)} is missing")
    steps, curves = table["steps"], table["curves"]
    if curves.ndim != 3 or 0 in curves.shape or curves.dtype.kind not in "fiu":
        refuse("curves are numbers (trainings, seeds, points)", f"they are {curves.dtype} {curves.shape}")
    if steps.shape != curves.shape[2:] or steps.dtype.kind not in "fiu":
        refuse(f"steps are one number for each of {curves.shape[2]} points", f"they are {steps.dtype} {steps.shape}")
    if not (np.isfinite(steps).all() and steps[0] >= 0 and steps[-1] > 0 and (np.diff(steps) > 0).all()):
        refuse("steps rise from 0 or more", f"they are {np.array2string(steps, threshold=6)}")
    if (parts := np.flatnonzero(steps != np.rint(steps))).size:  # would count as fewer steps, or as none
        refuse("steps are whole environment steps", f"point {parts[0]} has {steps[parts[0]]}; round them (np.rint)")
    for name, column in columns.items():
        if not name.isidentifier() or name in RESERVED:
            kept = ", ".join(RESERVED)
            refuse(f"a hyperparameter's name is an identifier, and none of {kept}", f"one is {name!r}; rename it")
        if column.shape != curves.shape[:1] or column.dtype.kind not in "fiuUb":
            refuse(
                f"{name} is a number, a text or a boolean for each of {len(curves)} trainings",
                f"it is {column.dtype} {column.shape}",
            )
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            refuse(f"{name} is a finite number", f"in row {int(np.argmin(np.isfinite(column)))} it is not")
        too_large = (column >= WHOLE) | (column <= -WHOLE) if column.dtype.kind in "iu" else np.zeros(1, bool)
        if too_large.any() and column.min() < column.max():
            row = int(np.argmax(too_large))
            refuse(
                f"{name} has integers below 2**53, which floats tell apart",
                f"in row {row} it is {column[row]}; write it as floats, or as texts",
            )
        if name == "epoch_steps":
            refuse("epoch_steps follows from steps", "it is a hyperparameter; rename it")
    if not isinstance(meta, dict) or not isinstance(meta.get("maximize", True), bool):
        refuse('meta is an object whose "maximize" is true or false', f"it is {str(meta)[:80]}")


def table_of(env: EnvSpec) -> Table:
    """Return the table that an environment names.

    Raises:
        EnvSpecError: it cannot be read, or differs from the one that the task was created with.
    """
    table = read_table(env.id)
    wanted = env.kwargs.get("sha256", table.digest)
    if wanted != table.digest:
        raise EnvSpecError(
            f"a task resumes with the table that it started with, sha256 {str(wanted)[:12]}, but {env.id} has "
            f"{table.digest[:12]}; restore the old file, or start another study"
        )
    return table


class TabularLearner(BaseLearner):
    """P members that walk along recorded curves."""

    hyperparameters = Space()  # those of the table, see `space_in`
    objective, unit, needs_env, compiled = RETURN, "env_steps", True, False
    env_steps: int

    @classmethod
    def space_in(cls, env: EnvSpec) -> Space:
        return table_of(env).space

    @classmethod
    def most_epochs(cls, env: EnvSpec) -> int:
        return table_of(env).epochs

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        table_of(env)

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.table = table_of(self.env)
        self.rows = [self.table.nearest(member) for member in values]
        super().assemble(values)

    def build(self) -> None:
        """Build nothing: the state is only the number of epochs."""

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        if stop():
            return None
        if self.epochs == self.table.epochs:
            raise EnvSpecError(f"{self.env.id} has only {self.epochs} epochs; train at most that many")
        self.env_steps = int(self.table.steps[self.epochs])
        self.epochs += 1
        self.iterations += 1
        return [{"env_steps": float(self.env_steps), "episode_return": value} for value in self.score().tolist()]

    def score(self) -> np.ndarray:
        """Return each member's recorded return, (P,)."""
        at = self.table.first if self.epochs == 0 else self.table.returns[:, :, self.epochs - 1]
        return np.array([at[row, seed % at.shape[1]] for row, seed in zip(self.rows, self.seeds, strict=True)])

    def cure(self, member: int) -> str:
        return "the recorded training diverged"


class Tabular(Task):
    """Recorded trainings, to study samplers and schedulers on real curves."""

    name = "tabular"
    version = 1
    learner = TabularLearner

    def __init__(self, env: EnvLike, **options: Any):
        spec = EnvSpec.of(env)
        table = table_of(spec)
        super().__init__(EnvSpec(spec.id, kwargs={"sha256": table.digest}), **options)
