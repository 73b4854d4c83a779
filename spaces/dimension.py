"""Base class of dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import OutOfRange, SpaceError, WrongType
from .values import REQUIRED, Default, Value, canonical, display, identity


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """The allowed values of one hyperparameter, with a prior and a default.

    Subclasses define `expects`, `check` and `at`. The attributes are described in `dimensions`.

    Attributes:
        default: value that `Space.validate` fills in; REQUIRED for none.
        structural: whether the value determines shapes or loop counts.
        search: whether studies search it.
        silent: whether identities leave the default out.
        when: conditions: values of other dimensions, by name.
        help: explanation for people, no part of the value's meaning: texts and comparisons leave it out.
    """

    default: Default = REQUIRED
    structural: bool = False
    search: bool = True
    silent: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)
    help: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("structural", "search", "silent"):
            if not isinstance(flag := getattr(self, name), bool):
                raise SpaceError(f"{name} must be True or False, not {display(flag)}")
        if not isinstance(self.when, Mapping) or not all(isinstance(name, str) for name in self.when):
            raise SpaceError(f"when must be values by name, such as {{'name': 'sgd'}}, not {display(self.when)}")
        self._set_frozen(when={name: _alternatives(name, values) for name, values in self.when.items()})
        if self.default is not REQUIRED:
            self._set_frozen(default=self.check(self.default, "the default"))
        elif not self.search:
            raise SpaceError("a dimension that is not searched (search=False) needs a default")
        if self.silent and self.search:
            raise SpaceError("a dimension that is left out at its default (silent=True) is not searched")

    @property
    def expects(self) -> str:
        """Description of the allowed values, for error messages."""
        raise NotImplementedError

    def leaves_out(self, value: Value) -> bool:
        """Return whether identities omit this value."""
        return self.silent and self.default is not REQUIRED and identity(value) == identity(self.default)

    def check(self, value: object, name: str) -> Value:
        """Return the canonical form of `value`.

        Args:
            value: value to check.
            name: name of the hyperparameter in error messages.

        Raises:
            WrongType: the value has another type.
            OutOfRange: the value is not allowed.
        """
        raise NotImplementedError

    def at(self, u: float) -> Value:
        """Return the prior's value at the quantile `u` in [0, 1)."""
        raise NotImplementedError

    def _set_frozen(self, **fields: object) -> None:
        """Set fields of this frozen object during construction."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _refusal(self, error: type[SpaceError], value: object, name: str) -> SpaceError:
        return error(f"{name} must be {self.expects}, not {display(value)}")


@dataclass(frozen=True, kw_only=True)
class Maybe(Dimension):
    """None, or a value of `dimension`; the prior gives each one half.

    Whether it is None is structural. It is searched if `dimension` is.
    """

    dimension: Dimension

    def __post_init__(self) -> None:
        inner = self.dimension
        if not isinstance(inner, Dimension) or type(inner).__name__ in ("Maybe", "Fidelity", "Fixed", "Curve", "Sizes"):
            raise SpaceError(f"maybe() takes a dimension that is searched, not {type(inner).__name__}")
        if inner.when:
            raise SpaceError("write when= for maybe() itself, not for the dimension inside it")
        self._set_frozen(structural=self.structural or inner.structural, search=self.search and inner.search)
        if self.default is REQUIRED:
            self._set_frozen(default=inner.default)
        super().__post_init__()

    @property
    def expects(self) -> str:
        return f"None or {self.dimension.expects}"

    def check(self, value: object, name: str) -> Value:
        if value is None:
            return None
        try:
            return self.dimension.check(value, name)
        except (WrongType, OutOfRange) as error:
            raise self._refusal(type(error), value, name) from None

    def at(self, u: float) -> Value:
        return None if u < 0.5 else self.dimension.at(2 * u - 1)


def _alternatives(name: str, values: object) -> tuple[Value, ...]:
    alternatives = values if isinstance(values, tuple) else (values,)
    if not alternatives:
        raise SpaceError(f"when {name}: no value is named")
    return tuple(canonical(value, f"when {name}") for value in alternatives)
