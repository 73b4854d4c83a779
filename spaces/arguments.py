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
        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            arguments = signature(function).bind(*args, **keywords).arguments
            title = _title(function, args)
            for name, hint in _hints(function).items():
                values = arguments.get(name, {})
                if isinstance(hint, dict):  # of keywords
                    check(title, {key: hint[key] for key in values if key in hint}, values, error)
                elif name in arguments:
                    check(title, {name: hint}, arguments, error)
            return function(*args, **keywords)

        return call  # type: ignore[return-value]  # it has the same parameters

    return decorate


def _title(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """Return a function's name, with the class of its object."""
    owner, _, name = function.__qualname__.rpartition(".")
    for first in args[:1]:
        cls = first if isinstance(first, type) else type(first)
        owner = cls.__qualname__ if owner in {base.__qualname__ for base in cls.__mro__} else owner
    return ".".join(part for part in (owner, name) if part not in ("", "__init__"))


def check(title: str, hints: Mapping[str, Any], values: Mapping[str, Any], error: type[Exception] = TypeError) -> None:
    """Raise an error for a value of another type than its hint."""
    for name, hint in hints.items():
        if not fits(hint, values[name]):
            raise error(f"{title}: {name} is {described(hint)}, but got {values[name]!r}")


def at_least(title: str, name: str, value: object, least: int) -> int:
    """Return an integer of at least `least`, or raise ValueError."""
    number = whole_number(value)
    if number is None or number < least:
        raise ValueError(f"{title}: {name} must be an integer of at least {least}, but got {value!r}")
    return number


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the hints of a function's parameters, of keywords by their names."""
    hints = dict[str, Any]()
    for name, parameter in signature(function).parameters.items():
        try:
            # the function's own annotations, no input; one by one, since get_type_hints fails as a whole on a name that
            # only type checkers import
            hint = eval(parameter.annotation, function.__globals__)
        except (NameError, TypeError):
            continue
        if parameter.kind is Parameter.VAR_KEYWORD:
            hints[name] = {key: value for key, value in _keywords(hint).items() if value not in (int, int | None)}
        else:
            hints[name] = hint
    return hints


def _keywords(hint: Any) -> dict[str, Any]:
    tables = [part for part in get_args(hint) if isinstance(part, type)]  # of Unpack[Table]
    return get_type_hints(tables[0]) if tables else {}


def fits(hint: Any, value: Any) -> bool:
    """Return whether a value is of an annotated type."""
    base = get_origin(hint) or hint
    if base is Any:
        return True
    if base in (Union, UnionType):
        return any(fits(part, value) for part in get_args(hint))
    if base is Annotated:
        return fits(get_args(hint)[0], value)
    if base in (None, NoneType):
        return value is None
    if base is int:
        return whole_number(value) is not None
    if base in (float, bool):
        scalar = plain(value) if hasattr(value, "tolist") else value
        return isinstance(scalar, bool) if base is bool else isinstance(scalar, Real) and not isinstance(scalar, bool)
    if base is str or (isinstance(base, type) and issubclass(base, os.PathLike)):
        return isinstance(value, str | os.PathLike)
    if base is Callable:
        return callable(value)
    if base is Sequence:
        if get_args(hint) == (str,) and isinstance(value, list | tuple) and not all(fits(str, text) for text in value):
            return False
        return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    if base is Mapping:
        return hasattr(value, "keys") and all(isinstance(name, str) for name in value.keys())  # noqa: SIM118 - a table
    return isinstance(value, base) if isinstance(base, type) else True


def described(hint: Any) -> str:
    """Return an annotated type in words."""
    base = get_origin(hint) or hint
    if base in (Union, UnionType):
        *parts, last = dict.fromkeys(described(part) for part in get_args(hint))
        return f"{', '.join(parts)} or {last}" if parts else last
    if base is Sequence and get_args(hint) == (str,):
        return "a list of texts"
    return NAMES.get(NoneType if base is None else base) or f"a {getattr(base, '__name__', base)}"
