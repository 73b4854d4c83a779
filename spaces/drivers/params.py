"""Parameters of a space for drivers: numbers in ranges, or scalars.

    hyperparameter  dimension               parameter             its values
    gamma           near_one                one_minus_gamma       log-uniform numbers
    num_steps       ordinal                 num_steps.index       indices
    target_kl       maybe                   target_kl.enabled     False or True
                                            target_kl.value       its value, if not None
    layers          categorical of lists    layers                JSON texts
    normalize_obs   categorical, weighted   normalize_obs.quantile  numbers from 0 to 1, divided by the weights
    clip_coef       quantized               clip_coef.index       steps above low

The last two conversions are only for drivers without weights or quantized ranges. Everything else keeps its name and
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ..choices import Categorical, Fixed, Ordinal
from ..dimension import Dimension, Maybe
from ..errors import MissingParameter, OutOfRange, SpaceError, UnknownParameter
from ..ranges import Fidelity, Integer, NearOne, Range, Real
from ..space import ENABLED, Space
from ..values import REQUIRED, Nested, Value, display, flatten, identity

ROUNDING = 1e-12  # relative amount by which a driver's own arithmetic may exceed a bound


class Parameter(NamedTuple):
    """A driver's parameter, with conversions from and to its dimension."""

    name: str
    dimension: Dimension
    encode: Callable[[Any], Value]
    decode: Callable[[Any], Value]


Ask: TypeAlias = Callable[[Parameter], object]


class Dialect(NamedTuple):
    """A driver: its name in messages, and its abilities.

    Attributes:
        driver: name of the driver.
        steps: whether it has quantized ranges.
        fidelities: whether it has fidelities.
        weights: whether its choices have weights.
    """

    driver: str
    steps: bool
    fidelities: bool
    weights: bool

    def parameters(self, space: Space) -> dict[str, Parameter]:
        """Return all parameters of the space by name, ignoring conditions.

        Raises:
            SpaceError: two parameters have the same name.
        """
        by_name: dict[str, Parameter] = {}
        for row in space.rows:
            for parameter in self._parameters(row.path, row.dimension):
                if parameter.name in by_name:
                    raise SpaceError(f"{row.path}: {self.driver} would have {parameter.name} twice; rename one")
                by_name[parameter.name] = parameter
        return by_name

    def decode(self, space: Space, ask: Ask, fixed: Mapping[str, Any] | None = None) -> Nested:
        """Return the space's values from a driver's answers.

        Args:
            space: the space.
            ask: function that returns the answer for a parameter; it is called only for parameters that apply and that
                `fixed` does not decide.
            fixed: values, nested or dotted, or `<name>.enabled` for a maybe().
        """
        named, enabled = space.split(fixed or {})
        named = {path: space.flat()[path].check(value, path) for path, value in named.items()}

        def choose(path: str, dimension: Dimension) -> Value:
            parameters = self._parameters(path, dimension)
            if path in named or not parameters:
                return named[path] if path in named else _unasked(dimension)
            *gate, parameter = parameters
            if gate and not (enabled[path] if path in enabled else ask(gate[0])):
                return None
            value = _within(parameter.dimension, ask(parameter))
            return parameter.decode(parameter.dimension.check(value, parameter.name))

        return space.decide(choose)

    def read(self, space: Space, params: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> Nested:
        """Return the space's values from the driver's `params`.

        Parameters that do not apply are ignored.

        Raises:
            UnknownParameter: a name cannot come from this space.
            MissingParameter: a parameter that applies is missing.
        """
        flat = flatten(params)
        parameters = self.parameters(space)
        for name in flat:
            if name not in parameters:
                raise UnknownParameter(f"{self.driver} gave {name}, but the space has only {', '.join(parameters)}")

        def ask(parameter: Parameter) -> object:
            if parameter.name not in flat:
                raise MissingParameter(f"{self.driver} gave no value for {parameter.name}")
            return flat[parameter.name]

        return self.decode(space, ask, fixed)

    def encode(self, space: Space, values: Mapping[str, Any]) -> dict[str, Value]:
        """Return the driver's parameters for `values`.

        The values may be some of the space's values, or of its structure.

        Raises:
            OutOfRange: a user may choose the value, but the driver does not search it.
        """
        named, enabled = space.split(values)
        params: dict[str, Value] = {path + ENABLED: on for path, on in enabled.items()}
        for path, value in named.items():
            dimension = space.flat()[path]
            value = dimension.check(value, path)
            parameters = self._parameters(path, dimension)
            if not parameters:
                if not isinstance(dimension, Fidelity) and identity(value) != identity(_unasked(dimension)):
                    raise OutOfRange(f"{path} = {display(value)} is not searched by {self.driver}: fix() it")
                continue
            *gate, parameter = parameters
            if gate:
                params[gate[0].name] = value is not None
            if not (gate and value is None):
                params[parameter.name] = self._encode(parameter, value, path)
        return params

    def defaults(self, space: Space) -> dict[str, Value]:
        """Return the parameters at their dimensions' defaults.

        Dimensions without a default, or with one that the driver does not search, are left out.
        """
        params: dict[str, Value] = {}
        for path, dimension in space.flat().items():
            if dimension.default is not REQUIRED:
                with suppress(OutOfRange):
                    params |= self.encode(space, {path: dimension.default})
        return params

    def refusal(self, path: str, reason: str) -> SpaceError:
        """Return the error for a dimension that this driver cannot express."""
        return SpaceError(f"{path}: {self.driver} cannot express {reason}")

    def _encode(self, parameter: Parameter, value: Value, path: str) -> Value:
        searched = parameter.dimension
        if isinstance(searched, Range):
            searched = replace(searched, accept=None, default=REQUIRED, search=True)
        try:
            return searched.check(parameter.encode(value), parameter.name)
        except OutOfRange as error:
            raise OutOfRange(f"{path} = {display(value)} is not where {self.driver} searches: {error}") from None

    def _parameters(self, path: str, dimension: Dimension) -> list[Parameter]:
        if not dimension.search or isinstance(dimension, Fixed):
            return []
        if isinstance(dimension, Fidelity) and not self.fidelities:
            return []
        if isinstance(dimension, Maybe):
            gate = Parameter(path + ENABLED, Categorical(values=(False, True)), bool, bool)
            return [gate, *self._parameters(f"{path}.value", dimension.dimension)]
        return [self._parameter(path, dimension)]

    def _parameter(self, path: str, dimension: Dimension) -> Parameter:
        if isinstance(dimension, NearOne):
            group, dot, leaf = path.rpartition(".")
            return Parameter(f"{group}{dot}one_minus_{leaf}", dimension.distance, _one_minus, _one_minus)
        if isinstance(dimension, Ordinal):
            return _index(path, len(dimension.values) - 1, lambda value: dimension.index(value, path), dimension.after)
        if isinstance(dimension, Real | Integer) and dimension.step not in (None, 1) and not self.steps:
            low, step = dimension.low, dimension.step or 1
            return _index(path, dimension.steps, lambda value: round((value - low) / step), dimension.after)
        if isinstance(dimension, Categorical) and dimension.weights is not None and not self.weights:
            return Parameter(f"{path}.quantile", Real(low=0.0, high=1.0), dimension.quantile, dimension.at)
        if isinstance(dimension, Categorical) and not _are_scalars(dimension.values):
            texts = [identity(value) for value in dimension.values]
            choice = Categorical(values=texts, weights=dimension.weights)
            return Parameter(path, choice, identity, lambda text: dimension.after(texts.index(text)))
        return Parameter(path, dimension, _same, _same)


def _unasked(dimension: Dimension) -> Value:
    """Return the value of a dimension that has no parameter."""
    if isinstance(dimension, Fidelity):
        return dimension.high
    assert dimension.default is not REQUIRED
    return dimension.default


def _index(path: str, last: int, encode: Callable[[Any], int], decode: Callable[[Any], Value]) -> Parameter:
    # an ordinal of one value stays a parameter, so the driver always sees the same names
    index = Integer(low=0, high=last) if last else Categorical(values=(0,))
    return Parameter(f"{path}.index", index, encode, decode)


def _are_scalars(values: Any) -> bool:
    """Return whether drivers, which compare by ==, can distinguish the values.

    They can distinguish neither lists, nor 1 from True.
    """
    return not any(isinstance(value, list) for value in values) and len(set(values)) == len(values)


def _within(dimension: Dimension, value: Any) -> Any:
    """Return `value`, moved back to a bound that it passed by rounding."""
    if isinstance(dimension, Range) and isinstance(value, float):
        slack = ROUNDING * max(abs(dimension.low), abs(dimension.high))
        if dimension.low - slack <= value <= dimension.high + slack:
            return min(max(value, dimension.low), dimension.high)
    return value


def _one_minus(value: float) -> float:
    return 1 - value


def _same(value: Value) -> Value:
    return value
