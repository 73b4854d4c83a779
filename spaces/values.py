"""Hyperparameter values: plain JSON, nested or by dotted name."""

from __future__ import annotations

import ast
import json
import math
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from .errors import OutOfRange, SpaceError, WrongType

Value: TypeAlias = "bool | int | float | str | list[Any] | None"
Nested: TypeAlias = "dict[str, Any]"


class Required(Enum):
    """Type of REQUIRED, the marker for a dimension without a default."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required.REQUIRED
Default: TypeAlias = "Value | Literal[Required.REQUIRED]"


def canonical(value: object, name: str) -> Value:
    """Return the plain JSON value equal to `value`.

    Scalars and arrays of NumPy and torch become Python's, tuples become new lists, -0.0 becomes 0.0.

    Args:
        value: value to convert.
        name: name of the hyperparameter in error messages.

    Raises:
        WrongType: JSON cannot hold the value.
        OutOfRange: it is NaN or infinite.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OutOfRange(f"{name} must be finite, not {value}")
        return value + 0.0  # -0.0 and 0.0 are one value, so they must hash alike
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [canonical(item, name) for item in value]
    raise WrongType(f"{name} must be None, a bool, a number, a string or a list of them, not {display(value)}")


def whole_number(value: object) -> int | None:
    """Return the integer that a number equals, None if there is none.

    NumPy's integers and floats such as 27.0 are numbers; True is not.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # raises TypeError for everything else
    except TypeError:
        return int(float(value)) if isinstance(value, Real) and float(value).is_integer() else None


def plain(value: Any) -> Any:
    """Return a value with Python's own numbers, texts and lists.

    NumPy's scalars and arrays, columns and indices of tables, sets, iterators and paths are converted, also inside
    lists and dicts. All else stays.
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple | Iterator):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def by_name(value: Any) -> Any:
    """Return rows of tables as dicts, and tables as lists of them."""
    if hasattr(value, "iterrows"):
        return value.to_dict("records")
    if isinstance(value, list | tuple | Iterator):
        return [by_name(item) for item in value]
    return dict(value) if hasattr(value, "keys") else value


def argument(value: Any) -> Any:
    """Return an argument in its plain form, with 27 for 27.0."""
    value = plain(value)
    if isinstance(value, list):
        return [argument(item) for item in value]
    return value if isinstance(value, bool) or (number := whole_number(value)) is None else number


def identity(value: Value) -> str:
    """Return a text that only equal values share.

    1, 1.0, True and '1' are four different values.
    """
    return json.dumps(value)


def display(value: object) -> str:
    """Return `value` for error messages.

    The type is added where the text alone could mislead.
    """
    numpy = sys.modules.get("numpy")  # slow to import, for callers that have none of its values
    value = value.tolist() if numpy and isinstance(value, (numpy.generic, numpy.ndarray)) else value
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if value is None or isinstance(value, (bool, int, float)) else f"{text} ({type(value).__name__})"


def read(text: str) -> Value:
    """Return the value of a command line's text.

    The text is read as JSON, then as a Python literal, else as a string.
    """
    for parse in (json.loads, ast.literal_eval):
        try:
            return canonical(parse(text), "value")
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # TypeError: a list as a key
            continue
    return text


def under(prefix: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose dotted names begin with a prefix, without it."""
    start = f"{prefix}."
    return {path.removeprefix(start): value for path, value in flat.items() if path.startswith(start)}


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return {'optimizer.lr': 1} for {'optimizer': {'lr': 1}}.

    Dotted names stay as they are.

    Raises:
        WrongType: the argument is not a mapping.
        SpaceError: a name occurs twice, nested and dotted.
    """
    if not isinstance(nested, Mapping):
        raise WrongType(f"values must be a dict by name, not {display(nested)}")
    flat: dict[str, Any] = {}
    for path, value in _leaves(nested, ""):
        if path in flat:
            raise SpaceError(f"{path} is given twice")
        flat[path] = value
    return flat


def _leaves(nested: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unflatten(flat: Mapping[str, Any], separator: str = ".") -> Nested:
    """Return {'optimizer': {'lr': 1}} for {'optimizer.lr': 1}.

    Raises:
        SpaceError: a name is both a value and a group of values.
    """
    nested: Nested = {}
    for path, value in flat.items():
        *groups, leaf = path.split(separator)
        node = nested
        for group in groups:
            node = node.setdefault(group, {})
            if not isinstance(node, dict):
                raise SpaceError(f"{path}: {group} is a value and cannot be a group of values too")
        if leaf in node:
            raise SpaceError(f"{path} is given twice, or is a value and a group of values")
        node[leaf] = value
    return nested
