"""Arguments of Python's interface, checked against their annotations before anything happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .values import plain, whole_number

Function = TypeVar("Function", bound=Callable[..., Any])
NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "None",
    Sequence: "a list",
    Mapping: "a dict by name",
    Callable: "a function",
}


def checked(error: type[Exception] = TypeError) -> Callable[[Function], Function]:
    """Decorate a function so that an argument of another type is refused.

    Values of NumPy, whole floats and paths count as what they stand for. An annotation that cannot be evaluated, such
    as one that is imported for type checkers alone, allows everything.

    Args:
        error: exception to raise.
    """

    def decorate(function: Function) -> Function:
        place = function.__qualname__

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            given = signature(function).bind(*args, **keywords).arguments
            for name, hint in _hints(function).items():
                values = given.get(name, {})
                if isinstance(hint, dict):  # of keywords
                    check(place, {key: hint[key] for key in values if key in hint}, values, error)
                elif name in given:
                    check(place, {name: hint}, given, error)
            return function(*args, **keywords)

        return call  # type: ignore[return-value]  # it has the same parameters

    return decorate


def check(place: str, hints: Mapping[str, Any], values: Mapping[str, Any], error: type[Exception] = TypeError) -> None:
    """Raise an error for a value of another type than its hint."""
    for name, hint in hints.items():
        if not fits(hint, values[name]):
            raise error(f"{place}: {name} is {described(hint)}, but got {values[name]!r}")


def at_least(place: str, name: str, value: object, least: int) -> int:
    """Return an integer of at least `least`, or raise ValueError."""
    number = whole_number(value)
    if number is None or number < least:
        raise ValueError(f"{place}: {name} must be an integer of at least {least}, but got {value!r}")
    return number


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the hints of a function's parameters, of keywords by their names."""
    hints = dict[str, Any]()
    for name, parameter in signature(function).parameters.items():
        try:
            hint = eval(parameter.annotation, function.__globals__)
        except (NameError, TypeError):
            continue
        if parameter.kind is Parameter.VAR_KEYWORD:
            hints[name] = {key: each for key, each in _keywords(hint).items() if each not in (int, int | None)}
        else:
            hints[name] = hint
    return hints


def _keywords(hint: Any) -> dict[str, Any]:
    tables = [part for part in get_args(hint) if isinstance(part, type)]  # of Unpack[Table]
    return get_type_hints(tables[0]) if tables else {}


def fits(hint: Any, value: Any) -> bool:
    """Return whether a value is of an annotated type."""
    kind = get_origin(hint) or hint
    if kind is Any:
        return True
    if kind in (Union, UnionType):
        return any(fits(part, value) for part in get_args(hint))
    if kind is Annotated:
        return fits(get_args(hint)[0], value)
    if kind in (None, NoneType):
        return value is None
    if kind is int:
        return whole_number(value) is not None
    if kind in (float, bool):
        own = plain(value) if hasattr(value, "tolist") else value
        return isinstance(own, bool) if kind is bool else isinstance(own, Real) and not isinstance(own, bool)
    if kind is str or (isinstance(kind, type) and issubclass(kind, os.PathLike)):
        return isinstance(value, str | os.PathLike)
    if kind is Callable:
        return callable(value)
    if kind is Sequence:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    if kind is Mapping:
        return hasattr(value, "keys") and all(isinstance(name, str) for name in value.keys())  # noqa: SIM118 - a table
    return isinstance(value, kind) if isinstance(kind, type) else True


def described(hint: Any) -> str:
    """Return an annotated type in words."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        *parts, last = dict.fromkeys(described(part) for part in get_args(hint))
        return f"{', '.join(parts)} or {last}" if parts else last
    return NAMES.get(NoneType if kind is None else kind) or f"a {getattr(kind, '__name__', kind)}"
