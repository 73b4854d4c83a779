"""Dimensions of listed values: ordinal, categorical, entry and fixed; also arguments."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..plugins import offers
from .dimension import Dimension
from .errors import VALUES, OutOfRange, SpaceError, WrongType, near
from .ranges import Bounds, Integer, Real, bound
from .values import Default, Value, canonical, display, identity

CALL = re.compile(r"(?P<name>\w[\w.-]*(:[A-Za-z_][\w.]*)?)(?P<arguments>\(.*\))?", re.DOTALL)

MOST_LISTED, SOME = 24, 3  # values that a message lists, and how many of more
CLASS = "package.module:Class"  # how a user names a class of their own


@dataclass(frozen=True, kw_only=True)
class Choice(Dimension):
    """One of a list of values.

    Matching is by type: 1, True and '1' are different values. But 3.0 is accepted as 3 if only 3 is a choice.
    """

    values: Sequence[Value]

    def __post_init__(self) -> None:
        self._set_frozen(values=tuple(canonical(value, "a choice") for value in self.values))
        if not self.values:
            raise SpaceError("a choice needs at least one value")
        if len(self._indices) < len(self.values):
            raise SpaceError(f"the values of a choice must differ: {', '.join(map(repr, self.values))}")
        super().__post_init__()

    @property
    def expects(self) -> str:
        values = [*map(repr, self.values)]
        if len(values) > MOST_LISTED:
            return f"one of {len(values)} values, {', '.join(values[:SOME])}, ... {values[-1]}"
        return ("one of " if len(values) > 1 else "") + ", ".join(values)

    def check(self, value: object, name: str) -> Value:
        return self.after(self.index(value, name))

    def index(self, value: object, name: str) -> int:
        """Return the index of `value` among the values.

        Raises:
            OutOfRange: it is not one of them.
        """
        plain = canonical(value, name)
        for candidate in (plain, _other_kind_of_number(plain)):
            index = self._indices.get(identity(candidate))
            if index is not None:
                return index
        hint = VALUES.get(name.rpartition(".")[2], {}).get(str(value), "")
        raise OutOfRange(f"{self._refusal(OutOfRange, value, name)}{hint and f'; {hint}'}")

    def after(self, steps: int) -> Value:
        """Return the value with this index; a list is copied."""
        return canonical(self.values[steps], "value")

    def at(self, u: float) -> Value:
        return self.after(int(u * len(self.values)))

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {identity(value): index for index, value in enumerate(self.values)}


@dataclass(frozen=True, kw_only=True)
class Ordinal(Choice):
    """One of a list of values whose order matters.

    `accept` is a wider range of numbers that a user may choose from.
    """

    accept: Bounds | None = None

    def __post_init__(self) -> None:
        if self.accept is not None:
            self._set_frozen(accept=(self._accepted.low, self._accepted.high))
            for value in self.values:
                self._accepted.check(value, "every value of an ordinal with accept")
        super().__post_init__()

    @property
    def expects(self) -> str:
        return super().expects + (f", or {self._accepted.expects}" if self.accept else "")

    def index(self, value: object, name: str) -> int:
        """Return the index of `value` among the values.

        Raises:
            OutOfRange: it is not one of them, though perhaps accepted.
        """
        try:
            return super().index(value, name)
        except OutOfRange:
            if self.accept is None or isinstance(value, bool) or not isinstance(value, int | float):
                raise
            nearest = min(self.values, key=lambda choice: abs(choice - value))  # type: ignore[operator]  # numbers: accept
            law = f"{name} must be {super().expects}, not {value!r}; the nearest is {nearest!r}"
            raise OutOfRange(law) from None

    def check(self, value: object, name: str) -> Value:
        if self.accept is None:
            return super().check(value, name)
        try:
            return self._accepted.check(value, name)
        except (WrongType, OutOfRange) as error:
            raise self._refusal(type(error), value, name) from None

    @cached_property
    def _accepted(self) -> Integer | Real:
        assert self.accept is not None
        low, high = self.accept
        if all(isinstance(value, int) for value in self.values):
            return Integer(low=low, high=high)  # type: ignore[arg-type]  # refuses fractions as bounds, too
        return Real(low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Categorical(Choice):
    """One of a list of unordered values, equally likely unless weighted."""

    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is None:
            return
        self._set_frozen(weights=tuple(bound(weight) for weight in self.weights))
        if len(self.weights) != len(self.values) or min(self.weights) <= 0:
            raise SpaceError(f"{len(self.values)} choices need as many weights above 0, not {list(self.weights)}")

    def at(self, u: float) -> Value:
        if self.weights is None:
            return super().at(u)
        mark, index = u * sum(self.weights), 0
        while index < len(self.values) - 1 and mark >= self.weights[index]:
            mark -= self.weights[index]
            index += 1
        return self.after(index)

    def quantile(self, value: Value) -> float:
        """Return the middle of the quantiles at which `at` gives a value."""
        weights = self.weights or [1.0] * len(self.values)
        index = self.index(value, "value")
        return (sum(weights[:index]) + weights[index] / 2) / sum(weights)


@dataclass(frozen=True, kw_only=True)
class Entry(Categorical):
    """One of some names, or a class from elsewhere.

    Such a class is "package.module:Class", or the name of an entry point in `group`. Arguments are given by name as
    JSON values: "package.module:Class(heads=2)". Calls that differ only in spelling are one value.
    """

    group: str

    @property
    def expects(self) -> str:
        return f"{super().expects}, or {CLASS}(argument=1), or an entry point of {self.group}"

    def check(self, value: object, name: str) -> Value:
        try:
            return super().check(value, name)
        except OutOfRange as error:
            call = read_call(value) if isinstance(value, str) else None
            if call is None or not (":" in call.name or offers(self.group).select(name=call.name)):
                names = [*map(str, self.values), *offers(self.group).names]
                raise OutOfRange(f"{error}{near(str(value), names)}") from None
            return str(call)


@dataclass(frozen=True, kw_only=True)
class Argument(Dimension):
    """An argument for another library: None for its default, or data.

    A dict becomes its JSON text, and a class in it "package.module:Class". An argument is structural, and a study
    searches it only with a prior, such as choices(['{"net_arch": [64]}', '{"net_arch": [256]}']).
    """

    default: Default = None
    structural: bool = True
    search: bool = False

    @property
    def expects(self) -> str:
        return f"None, a number, a text, a list, {CLASS}, or a dict as text, such as '{{\"width\": [64, 64]}}'"

    def check(self, value: object, name: str) -> Value:
        try:
            plain = _data(value, name)
            content = _dict(plain, name) if isinstance(plain, str) else plain
        except ValueError as error:
            raise WrongType(f"{name} must be {self.expects}, but {error}") from None
        return json.dumps(content, sort_keys=True) if isinstance(content, dict) else canonical(plain, name)

    def at(self, u: float) -> Value:
        return canonical(self.default, "the default")

    def value(self, checked: Value) -> Any:
        """Return what a checked value stands for: a dict for its text."""
        return (_dict(checked, "value") or checked) if isinstance(checked, str) else checked


def _data(value: Any, place: str) -> Any:
    """Return a value with classes by name and tuples as lists.

    Raises:
        ValueError: a part of it is not data.
    """
    if isinstance(value, type) and "<locals>" not in value.__qualname__:
        return name_of(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _data(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_data(item, f"{place}[{index}]") for index, item in enumerate(value)]
    try:
        return canonical(value, place)
    except SpaceError:
        cure = "; move the class to the top level of a module" if isinstance(value, type) else ""
        raise ValueError(f"{place} is {display(value)}{cure}") from None


def _dict(text: str, place: str) -> dict[str, Any] | None:
    """Return the dict that a text in braces describes, else None."""
    if not text.lstrip().startswith("{"):
        return None
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            if isinstance(content := read(text.strip()), dict):
                return dict(_data(content, place))
    raise ValueError(f"{place} is {display(text)}, which is no dict")


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which other processes find a function or class.

    A script that runs is named as if it were imported.
    """
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}:{function.__qualname__}"


class Call(NamedTuple):
    """A class name with arguments."""

    name: str
    arguments: dict[str, Value]

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in sorted(self.arguments.items()))
        return f"{self.name}({arguments})" if arguments else self.name


def read_call(text: str) -> Call | None:
    """Parse "name(argument=1)"; return None if the text is not of this form."""
    match = CALL.fullmatch(text.strip())
    if match is None:
        return None
    try:
        call = ast.parse(f"f{match['arguments'] or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {str(k.arg): canonical(ast.literal_eval(k.value), str(k.arg)) for k in call.keywords if k.arg}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return Call(match["name"], arguments) if len(arguments) == len(call.keywords) else None


@dataclass(frozen=True, kw_only=True)
class Fixed(Choice):
    """A single value, which is not searched."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_frozen(default=self.value)

    @property
    def expects(self) -> str:
        return f"{self.value!r}, to which it is fixed"

    @property
    def value(self) -> Value:
        return self.after(0)


def _other_kind_of_number(value: Value) -> Value:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53:
        return float(value)
    return value
