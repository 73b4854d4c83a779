"""The tables, their version, and the way from an older version to this one.

Everything is data: identities, parameters, metrics and events are JSON text, states are manifests (JSON) and blobs
(bytes named by their sha256). Times are seconds since 1970 by the database's clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Connection, ForeignKey, Index, MetaData, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ..tasks.strict_json import parse
from .errors import DamagedRow, SchemaMismatch

VERSION = 1
_LOCK = 0x72656B69  # any number: names the advisory lock under which one process at a time changes the tables


class _Checked(sa.TypeDecorator[Any]):
    """A column whose values are of its type when they are read; SQLite lets a file hold anything anywhere."""

    python_types: type | tuple[type, ...]

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        return _check(self.python_types) if dialect.name == "sqlite" else self.impl_instance.result_processor(
            dialect, coltype
        )  # fmt: skip


def _check(types: type | tuple[type, ...]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is None or isinstance(value, types):
            return value
        names = " or ".join(each.__name__ for each in (types if isinstance(types, tuple) else (types,)))
        raise DamagedRow(f"a column of type {names} must hold that, but one holds {str(value)[:40]!r}, which is a "
                         f"{type(value).__name__}; restore the database from a copy")  # fmt: skip

    return check


class Integer(_Checked):
    """A whole number."""

    impl, cache_ok, python_types = sa.Integer, True, int


class Double(_Checked):
    """A number."""

    impl, cache_ok, python_types = sa.Double, True, (float, int)


class Text(_Checked):
    """A text."""

    impl, cache_ok, python_types = sa.Text, True, str


class LargeBinary(_Checked):
    """Above all, no number: bytes(2**40) are a terabyte of zeros."""

    impl, cache_ok, python_types = sa.LargeBinary, True, bytes


class Json(sa.TypeDecorator[Any]):
    """JSON in a text column, the same on every database; NaN and infinities survive as {"float": name}."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(finite(value), separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        try:
            return parse_json(value)
        except ValueError as error:
            raise DamagedRow(f"a JSON column must hold JSON, but one holds {str(value)[:40]!r}...: {error}; "
                             "restore the database from a copy") from None  # fmt: skip


def parse_json(text: Any) -> Any:
    """The value of a JSON column's text; ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError(f"it is a {type(text).__name__}, not text")
    return parse(text, object_hook=_special)


def finite(value: Any) -> Any:
    """The value as JSON has it, without NaN and infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


_SPECIAL = [{"float": name} for name in ("nan", "inf", "-inf")]


def _special(value: dict[str, Any]) -> Any:
    return float(value["float"]) if value in _SPECIAL else value


class Now(FunctionElement[float]):
    """The database's clock at this moment, in seconds since 1970; not that of the transaction's start."""

    type = sa.Double()
    inherit_cache = True


@compiles(Now, "sqlite")
def _now_sqlite(element: Now, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Now, "postgresql")
def _now_postgresql(element: Now, compiler: Any, **options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


metadata = MetaData()
BLOB_IN_USE = "rk_blob_in_use"  # the constraint that a blob may not be dropped while a checkpoint names it

schema = Table("rk_schema", metadata, Column("version", Integer, nullable=False))

task = Table(
    "rk_task", metadata,
    Column("uid", Text, primary_key=True),
    Column("identity", Json),  # null until the task is first opened
    Column("lease_owner", Text),  # null: free
    Column("lease_epoch", Integer, nullable=False),  # the fencing token: one more each time the lease is taken
    Column("lease_expires", Double, nullable=False),
    Column("epochs", Integer, nullable=False),  # of the last checkpoint
    Column("created", Double, nullable=False),
)  # fmt: skip

blob = Table(
    "rk_blob", metadata,
    Column("digest", Text, primary_key=True),  # sha256 of data
    Column("size", Integer, nullable=False),  # -1: known to be damaged, to be replaced by whoever has the right bytes
    Column("data", LargeBinary, nullable=False),
)  # fmt: skip

checkpoint = Table(
    "rk_checkpoint", metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", ForeignKey("rk_task.uid"), nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("digest", Text, nullable=False),  # sha256 of manifest: the digest of the state
    Column("manifest", LargeBinary, nullable=False),
    Column("lease_epoch", Integer, nullable=False),  # under which lease it was written
    Column("created", Double, nullable=False),
    Index("rk_checkpoint_uid", "uid", "epochs"),
)  # fmt: skip

checkpoint_blob = Table(
    "rk_checkpoint_blob", metadata,
    Column("checkpoint", ForeignKey("rk_checkpoint.id"), primary_key=True),
    Column("digest", ForeignKey("rk_blob.digest", name=BLOB_IN_USE), primary_key=True),
    Index("rk_checkpoint_blob_digest", "digest"),
)  # fmt: skip

metric = Table(
    "rk_metric", metadata,
    Column("uid", ForeignKey("rk_task.uid"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("data", Json, nullable=False),
)  # fmt: skip

event = Table(
    "rk_event", metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", ForeignKey("rk_task.uid"), nullable=False),
    Column("created", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Json, nullable=False),
    Index("rk_event_uid", "uid"),
)  # fmt: skip

study = Table(
    "rk_study", metadata,
    Column("name", Text, primary_key=True),
    Column("config", Json, nullable=False),
    Column("created", Double, nullable=False),
)  # fmt: skip

trial = Table(
    "rk_trial", metadata,
    Column("study", ForeignKey("rk_study.name"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("uid", Text, nullable=False),
    Column("params", Json, nullable=False),
    Column("attrs", Json, nullable=False),
    Column("state", Text, nullable=False),
    Column("error", Text),
    Column("created", Double, nullable=False),
    Column("finished", Double),
)  # fmt: skip

segment = Table(
    "rk_segment", metadata,
    Column("study", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("epochs", Integer, nullable=False),  # train until so many in all
    Column("state", Text, nullable=False),
    Column("score", Double),
    Column("digest", Text),  # of the state at its end
    sa.ForeignKeyConstraint(["study", "number"], ["rk_trial.study", "rk_trial.number"]),
    Index("rk_segment_state", "study", "state"),
)  # fmt: skip

Migration = Callable[[Connection], None]
MIGRATIONS: tuple[Migration, ...] = ()  # the n-th turns schema n + 1 into n + 2; append only, never change one


def version_of(connection: Connection) -> int:
    """The version of the tables, 0 if there are none."""
    if not sa.inspect(connection).has_table(schema.name):
        return 0
    return connection.execute(sa.select(sa.func.max(schema.c.version))).scalar() or 0


def check(version: int, where: str) -> None:
    """Refuses tables that a newer Rekindle made."""
    if version > VERSION:
        raise SchemaMismatch(
            f"the tables of {where} have schema {version}, but this Rekindle knows schemas up to {VERSION}: "
            "upgrade it (pip install --upgrade rekindle), or use another database"
        )


def upgrade(connection: Connection, where: str) -> None:
    """Makes the tables, or brings older ones up to date, all within the given write transaction."""
    if connection.dialect.name == "postgresql":  # SQLite's write transaction is exclusive anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    version = version_of(connection)
    check(version, where)
    if version == VERSION:
        return  # another process was quicker
    if version == 0:
        metadata.create_all(connection)
    for migrate in MIGRATIONS[version - 1 :] if version else ():
        migrate(connection)
    connection.execute(schema.delete())
    connection.execute(schema.insert().values(version=VERSION))
