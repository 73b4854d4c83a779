"""Column types that check their values whenever they are read.

The writer of a row may have been any program.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ....tasks.checkpoint.strict_json import parse
from ...errors import DamagedRow

_SURROGATES = "\ud800-\udfff"  # halves of pairs, which stand for bytes that are no text; UTF-8 has none
_NO_TEXT, _NO_JSON = re.compile(f"[\0{_SURROGATES}]"), re.compile(f"[{_SURROGATES}]")  # PostgreSQL's text has no NUL


def _escaped(pattern: re.Pattern[str], text: str) -> str:
    """Return a text whose characters that a database cannot hold are escaped.

    Tracebacks quote texts of environments, and words of a command line may be of any bytes.
    """
    return text if text.isascii() and "\0" not in text else pattern.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


class _Checked(sa.TypeDecorator[Any]):
    """A column whose values are checked for their type.

    SQLite lets a file hold any type anywhere.
    """

    python_types: tuple[type, ...]

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        if dialect.name == "sqlite":
            return self._check
        return self.impl_instance.result_processor(dialect, coltype)

    def _check(self, value: Any) -> Any:
        if value is None or isinstance(value, self.python_types):
            return value
        names = " or ".join(python_type.__name__ for python_type in self.python_types)
        raise DamagedRow(
            f"a column of type {names} must hold that, but one holds {str(value)[:40]!r}, which is a "
            f"{type(value).__name__}; restore the database from a copy"
        )


class Integer(_Checked):
    """A whole number."""

    impl, cache_ok, python_types = sa.Integer, True, (int,)


class Double(_Checked):
    """A number."""

    impl, cache_ok, python_types = sa.Double, True, (float, int)


class Text(_Checked):
    """A text."""

    impl, cache_ok, python_types = sa.Text, True, (str,)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return _escaped(_NO_TEXT, value) if isinstance(value, str) else value


class LargeBinary(_Checked):
    """Bytes; never a number, as bytes(2**40) would be a terabyte of zeros."""

    impl, cache_ok, python_types = sa.LargeBinary, True, (bytes,)


class Json(sa.TypeDecorator[Any]):
    """A JSON object in a text column.

    NaN and infinities are stored as {"float": name}.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(finite(value), separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        try:
            return self.parse(value)
        except ValueError as error:
            raise DamagedRow(
                f"a JSON column must hold JSON, but one holds {str(value)[:40]!r}...: {error}; "
                "`rekindle fsck` says which, restore the database from a copy"
            ) from None

    def parse(self, text: Any) -> dict[str, Any]:
        """Return the object of a column's text; ValueError if it is none."""
        value = parse_json(text)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
        return value


class Numbers(Json):
    """A JSON object whose values are numbers."""

    cache_ok = True

    def parse(self, text: Any) -> dict[str, Any]:
        """Return the object of a column's text; ValueError if it is none."""
        value = super().parse(text)
        for name, number in value.items():
            if not isinstance(number, int | float):
                raise ValueError(f"its {name[:40]} is not a number")
        return value


class Attributes(Json):
    """JSON object with a scheduler's notes on a trial.

    They are its position in the scheduler's plan, and the start of a branch.
    """

    cache_ok = True

    def parse(self, text: Any) -> dict[str, Any]:
        """Return the object of a column's text; ValueError if it is none."""
        value = super().parse(text)
        start = value.get("start", {"uid": "", "epochs": 0, "digest": ""})
        if not isinstance(start, dict) or not {"uid", "epochs", "digest"} <= start.keys():
            raise ValueError("its start lacks a uid, epochs or digest")
        if "start" in value and "parent" not in value:
            raise ValueError("it has a start, but no parent")
        numbers = {name: value[name] for name in _COUNTS if name in value} | {"epochs": start["epochs"]}
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
                raise ValueError(f"its {name} is not an integer of at least 0")
        if not (isinstance(start["uid"], str) and isinstance(start["digest"], str)):
            raise ValueError("the uid or digest of its start is not text")
        return value


_COUNTS = ("bracket", "seed", "member", "generation", "parent", "commands", "enqueued", "excluded")


def parse_json(text: Any) -> Any:
    """Return the value of JSON text with NaN and infinities.

    Raise ValueError for any other text.
    """
    if not isinstance(text, str):
        raise ValueError(f"it is a {type(text).__name__}, not text")
    return parse(text, object_hook=_special if _SPECIAL_NAME in text else None)  # few texts hold one, and it takes time


def finite(value: Any) -> Any:
    """Return the value as JSON that can be stored, without NaN."""
    if isinstance(value, str):
        return _escaped(_NO_JSON, value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


_SPECIAL_NAME = '"float"'
_SPECIAL = [{"float": name} for name in ("nan", "inf", "-inf")]


def _special(value: dict[str, Any]) -> Any:
    return float(value["float"]) if value in _SPECIAL else value


NOW_SQLITE = "rekindle_now"  # a function of our own, see clock.py


class Now(FunctionElement[float]):
    """The database's clock at this moment, in seconds since 1970.

    The time of the transaction's start would be another.
    """

    type = sa.Double()
    inherit_cache = True


@compiles(Now, "sqlite")
def _now_sqlite(element: Now, compiler: Any, **options: Any) -> str:
    return f"{NOW_SQLITE}()"


@compiles(Now, "postgresql")
def _now_postgresql(element: Now, compiler: Any, **options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
