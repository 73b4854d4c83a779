"""Declaration of an option, and what follows from it.

An option is an annotated key of a TypedDict, so that type checkers see the keywords of functions that take
`**options: Unpack[StudyOptions]`:

    class StudyOptions(TypedDict, total=False):
        plateau: Annotated[int | None, Option("N", "stop after this many trials ...", Group.SIZE)]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar, get_type_hints

Function = TypeVar("Function", bound=Callable[..., Any])


class Group(Enum):
    """Options under one heading, in one table of run files.

    Attributes:
        title: heading.
        section: name of the table; "" for the top level.
    """

    COMMON = "options", ""
    TRAINED = "what is trained", ""
    SEARCHED = "what is searched", "study"
    SIZE = "the study: its size, and when it ends", "study"
    SEARCH = "how it is searched", "study"
    SEEDS = "seeds and environments", "study"
    POPULATION = "with --scheduler pbt", "population"
    OUTPUTS = "checkpoints and curves", ""
    PROCESSES = "processes and devices", ""
    RAY = "with --engine ray", "ray"

    def __init__(self, title: str, section: str):
        self.title, self.section = title, section


class StoredEntry(NamedTuple):
    """Entry of an option in the stored configuration of a study.

    Attributes:
        parse: returns the entry of what the user gives, a text or in Python a number; may raise BadConfig.
        is_valid: returns whether an entry that a database holds is one that `parse` could return.
    """

    parse: Callable[[Any], Any]
    is_valid: Callable[[Any], bool]


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    Attributes:
        placeholder: placeholder of the value in the help; "" for a flag.
        help: text for the help. The default is appended, unless the text names it.
        group: heading and table of run files.
        default: value of an option that is not given.
        many: whether the option may be repeated.
        parse: conversion of a word of the command line; None for that of the placeholder, see `conversions`.
        entry: entry in the stored configuration, if the option is stored as it is given.
        extend: help of the option of `rekindle extend` that changes an existing study; "" if there is none.
        bound: whether the study stops there; `extend` can then switch it off.
        mutable: whether a rerun of the study may change the entry, which changes no trial's result.
    """

    placeholder: str
    help: str
    group: Group
    default: Any = None
    many: bool = False
    parse: Callable[[str], Any] | None = None
    entry: StoredEntry | None = None
    extend: str = ""
    bound: bool = False
    mutable: bool = False


def declared(table: type) -> dict[str, Option]:
    """Return the options of a TypedDict by name."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(table, include_extras=True).items()}


def words(options: Mapping[str, Option], values: Mapping[str, Any]) -> list[str]:
    """Return words of a command line with these values."""
    line = []
    for name, option in options.items():
        value, word = values[name], f"--{name.replace('_', '-')}"
        if option.placeholder:
            line.append(f"{word}={'off' if value is None else value}")
        elif value:
            line.append(word)
    return line


def with_keywords(table: type) -> Callable[[Function], Function]:
    """Decorate a function so that `help` shows a TypedDict's keywords.

    Args:
        table: TypedDict of the function's `**options: Unpack[table]`.
    """
    types, options = get_type_hints(table), declared(table)

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        explicit = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=types[name])
            for name, option in options.items()
        ]
        setattr(function, "__signature__", signature.replace(parameters=[*explicit, *keywords]))  # noqa: B010 - untyped
        return function

    return decorate
