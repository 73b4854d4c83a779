"""Dimensions of numbers, fidelities, curves and sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

from .dimension import Dimension
from .errors import OutOfRange, SpaceError, WrongType
from .values import REQUIRED, Default, Value, canonical, display

Bounds = tuple[float, float]
MOST_SIZES = 16
LARGEST_LOG = 700.0  # exp of it, and of its negative, fits into a float


@dataclass(frozen=True, kw_only=True)
class Number(Dimension):
    """A number, stored as a float."""

    def check(self, value: object, name: str) -> float:
        number = canonical(value, name)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise self._refusal(WrongType, value, name)
        return _float(number, name)


@dataclass(frozen=True, kw_only=True)
class Range(Number):
    """A number in [low, high].

    `accept` is a wider range that a user may choose from but no study searches.
    """

    low: float
    high: float
    accept: Bounds | None = None

    def __post_init__(self) -> None:
        self._set_frozen(low=self._bound(self.low), high=self._bound(self.high))
        if self.low >= self.high:
            raise SpaceError(f"a range needs low below high, not [{self.low}, {self.high}]; use fixed() for one value")
        if not math.isfinite(self.high - self.low):
            raise SpaceError(f"the width of a range must fit into a float, unlike that of [{self.low}, {self.high}]")
        if self.accept is not None:
            low, high = map(self._bound, self.accept)
            self._set_frozen(accept=(low, high))
            if low > self.low or high < self.high:
                raise SpaceError(f"accept must contain the searched [{self.low}, {self.high}], not be [{low}, {high}]")
        super().__post_init__()

    @property
    def expects(self) -> str:
        return "a number in [{}, {}]".format(*self._accepted)

    def check(self, value: object, name: str) -> float:
        number = super().check(value, name)
        low, high = self._accepted
        if not low <= number <= high:
            raise self._refusal(OutOfRange, value, name)
        return number

    @property
    def _accepted(self) -> Bounds:
        return self.accept or (self.low, self.high)

    def _bound(self, value: object) -> float:
        return bound(value)


@dataclass(frozen=True, kw_only=True)
class Real(Range):
    """A float in [low, high], uniform or (log) log-uniform.

    With `step`, it is one of low, low + step, ..., high.
    """

    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        if self.log and bound(self.low) <= 0:
            raise SpaceError(f"a log-uniform range must begin above 0, not at {self.low}")
        if self.step is not None:
            self._set_frozen(step=bound(self.step))
            _check_steps(bound(self.low), bound(self.high), self.step, self.log)
        super().__post_init__()

    @property
    def expects(self) -> str:
        return super().expects + (f" in steps of {self.step} from {self.low}" if self.step else "")

    def check(self, value: object, name: str) -> float:
        number = super().check(value, name)
        if self.step is None:
            return number
        nearest = self.after(round((number - self.low) / self.step))
        if not math.isclose(number, nearest, rel_tol=1e-9, abs_tol=1e-9 * self.step):
            raise self._refusal(OutOfRange, value, name)
        return nearest

    def at(self, u: float) -> float:
        if self.step is not None:
            return self.after(int(u * (self.steps + 1)))
        if self.log:
            number = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + u * (self.high - self.low)
        return min(max(number, self.low), self.high)

    @property
    def steps(self) -> int:
        """Number of steps from low to high."""
        assert self.step is not None
        return round((self.high - self.low) / self.step)

    def after(self, steps: int) -> float:
        """Return the value a number of steps above low.

        Decimal arithmetic makes three steps of 0.1 from 0 equal 0.3.
        """
        return float(Decimal(repr(self.low)) + steps * Decimal(repr(self.step)))


@dataclass(frozen=True, kw_only=True)
class Integer(Range):
    """An int in [low, high], uniform or (log) log-uniform.

    With `step`, it is one of low, low + step, ..., high.
    """

    low: int
    high: int
    accept: tuple[int, int] | None = None
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        if self.log and bound(self.low) < 1:
            raise SpaceError(f"a log-uniform range of integers must begin at 1 or more, not at {self.low}")
        self._set_frozen(step=_whole(self.step))
        _check_steps(_whole(self.low), _whole(self.high), self.step, self.log and self.step > 1)
        super().__post_init__()

    @property
    def expects(self) -> str:
        text = "an integer in [{}, {}]".format(*self._accepted)
        return text + (f" in steps of {self.step} from {self.low}" if self.step > 1 else "")

    def check(self, value: object, name: str) -> int:
        number = super().check(value, name)
        if not float(number).is_integer():
            raise self._refusal(WrongType, value, name)
        if (int(number) - self.low) % self.step:
            raise self._refusal(OutOfRange, value, name)
        return int(number)

    def at(self, u: float) -> int:
        if not self.log:
            return self.after(int(u * (self.steps + 1)))
        # each integer n owns the interval from n - 1/2 to n + 1/2, on the log scale
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(max(round(math.exp(low + u * (high - low))), self.low), self.high)

    @property
    def steps(self) -> int:
        """Number of steps from low to high."""
        return (self.high - self.low) // self.step

    def after(self, steps: int) -> int:
        """Return the value a number of steps above low."""
        return self.low + steps * self.step

    def _bound(self, value: object) -> int:
        return _whole(value)


@dataclass(frozen=True, kw_only=True)
class NearOne(Range):
    """A float just below one, log-uniform in 1 - x.

    0.99 and 0.999 look alike but differ tenfold in horizon. The distance to one is what matters, and what drivers
    search. In [0.5, 1], 1 - x and 1 - (1 - x) are exact in floating point, so the conversion loses nothing.
    """

    def __post_init__(self) -> None:
        if not 0.5 <= bound(self.low) <= bound(self.high) < 1:
            raise SpaceError(f"near_one searches inside [0.5, 1), not [{self.low}, {self.high}]; use real() there")
        super().__post_init__()

    def at(self, u: float) -> float:
        return 1 - self.distance.at(u)

    @property
    def distance(self) -> Real:
        """Dimension of the distance 1 - x."""
        return Real(low=1 - self.high, high=1 - self.low, log=True)


@dataclass(frozen=True, kw_only=True)
class Normal(Number):
    """A normally distributed float, or (log) exp of one."""

    mean: float
    std: float
    log: bool = False

    def __post_init__(self) -> None:
        self._set_frozen(mean=bound(self.mean), std=bound(self.std))
        if self.std <= 0:
            raise SpaceError(f"a standard deviation must be above 0, not {self.std}")
        if not math.isfinite(abs(self.mean) + 10 * self.std):  # further away than any sample
            raise SpaceError(f"normal numbers must fit into a float, unlike those of {self.mean} and {self.std}")
        if self.log and abs(self.mean) > LARGEST_LOG:
            raise SpaceError(f"the mean of a logarithm must lie within ±{LARGEST_LOG:g}, not be {self.mean}")
        super().__post_init__()

    @property
    def expects(self) -> str:
        return "a number above 0" if self.log else "a number"

    def check(self, value: object, name: str) -> float:
        number = super().check(value, name)
        if self.log and number <= 0:
            raise self._refusal(OutOfRange, value, name)
        return number

    def at(self, u: float) -> float:
        number = NormalDist(self.mean, self.std).inv_cdf(max(u, 2.0**-53))
        return math.exp(min(max(number, -LARGEST_LOG), LARGEST_LOG)) if self.log else number


@dataclass(frozen=True, kw_only=True)
class Fidelity(Number):
    """The cost of a trial, an int from low to high.

    Studies raise it by factors of `base`; they do not search it.
    """

    low: int
    high: int
    base: int = 2

    def __post_init__(self) -> None:
        self._set_frozen(low=_whole(self.low), high=_whole(self.high), base=_whole(self.base))
        if not (1 <= self.low <= self.high and self.base >= 2):
            raise SpaceError(
                "a fidelity needs 1 <= low <= high and a base of 2 or more,"
                f" not low {self.low}, high {self.high}, base {self.base}"
            )
        if self.default is REQUIRED:
            self._set_frozen(default=self.high)
        super().__post_init__()

    @property
    def expects(self) -> str:
        return f"an integer in [{self.low}, {self.high}]"

    def check(self, value: object, name: str) -> int:
        number = super().check(value, name)
        if not float(number).is_integer():
            raise self._refusal(WrongType, value, name)
        if not self.low <= number <= self.high:
            raise self._refusal(OutOfRange, value, name)
        return int(number)

    def at(self, u: float) -> int:
        return self.high

    @property
    def rungs(self) -> tuple[int, ...]:
        """Values low, low * base, low * base**2, ..., and high."""
        rungs = [self.low]
        while rungs[-1] * self.base < self.high:
            rungs.append(rungs[-1] * self.base)
        return tuple(dict.fromkeys([*rungs, self.high]))


@dataclass(frozen=True, kw_only=True)
class Curve(Dimension):
    """Points [[x, y], ...] of a piecewise linear function.

    x starts at 0 or more and rises, y is in [low, high], and the curve is constant before the first point and after the
    last. A curve takes the place of a function of time, because values must be stored, compared and hashed. No study
    searches it.
    """

    low: float
    high: float
    search: bool = False
    structural: bool = True

    def __post_init__(self) -> None:
        self._set_frozen(low=bound(self.low), high=bound(self.high))
        if self.search or not self.structural:
            raise SpaceError("a curve is structural, and not searched")
        if self.low >= self.high:
            raise SpaceError(f"a curve needs low below high, not [{self.low}, {self.high}]")
        super().__post_init__()

    @property
    def expects(self) -> str:
        low, high = f"{self.low:g}", f"{self.high:g}"
        return f"points such as [[0, {high}], [100000, {low}]], x rising from 0, y in [{low}, {high}]"

    def check(self, value: object, name: str) -> list[Value]:
        points = canonical(value, name)
        if not isinstance(points, list) or not points:
            raise self._refusal(WrongType, value, name)
        if any(not isinstance(point, list) or len(point) != 2 for point in points):
            raise self._refusal(WrongType, value, name)
        try:
            checked = [(bound(x), bound(y)) for x, y in points]
        except OutOfRange:
            raise self._refusal(OutOfRange, value, name) from None
        except SpaceError:
            raise self._refusal(WrongType, value, name) from None
        rising = all(a < b for (a, _), (b, _) in pairwise(checked))
        if checked[0][0] < 0 or not rising or not all(self.low <= y <= self.high for _, y in checked):
            raise self._refusal(OutOfRange, value, name)
        return [[x, y] for x, y in checked]

    def at(self, u: float) -> Value:
        return canonical(self.default, "the default")


@dataclass(frozen=True, kw_only=True)
class Sizes(Dimension):
    """None, or 1 to 16 ints in [low, high]: layer widths.

    Sizes are structural. A study searches them only with a prior over lists, such as choices([[64], [128, 64]]).
    """

    low: int
    high: int
    default: Default = None
    search: bool = False
    structural: bool = True

    def __post_init__(self) -> None:
        self._set_frozen(low=_whole(self.low), high=_whole(self.high))
        if self.search or not self.structural:
            raise SpaceError("sizes are structural, and not searched")
        super().__post_init__()

    @property
    def expects(self) -> str:
        return f"None or a list of 1 to {MOST_SIZES} integers in [{self.low}, {self.high}], such as [256, 128]"

    def check(self, value: object, name: str) -> list[Value] | None:
        sizes = canonical(value, name)
        if sizes is None:
            return None
        if not isinstance(sizes, list) or any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in sizes):
            raise self._refusal(WrongType, value, name)
        whole = [int(x) for x in sizes if float(x).is_integer() and self.low <= x <= self.high]
        if len(whole) < len(sizes) or not 1 <= len(sizes) <= MOST_SIZES:
            raise self._refusal(OutOfRange, value, name)
        return list(whole)

    def at(self, u: float) -> Value:
        return canonical(self.default, "the default")


def _float(number: float, name: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise OutOfRange(f"{name} must fit into a float, not be an integer of that many digits") from None


def bound(value: object) -> float:
    """Return the bound of a range as a finite float.

    Raises:
        SpaceError: it is not a finite number.
    """
    number = canonical(value, "a bound")
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise SpaceError(f"a bound must be a number, not {display(value)}")
    return _float(number, "a bound")


def _whole(value: object) -> int:
    number = bound(value)
    if not number.is_integer() or abs(number) >= 2**53:
        raise SpaceError(f"the bounds and steps of integers must be integers below 2**53, not {display(value)}")
    return int(number)


def _check_steps(low: float, high: float, step: float, log: bool) -> None:
    if log:
        raise SpaceError(f"a log-uniform range cannot have steps of {step}; use ordinal() with its values")
    if step <= 0:
        raise SpaceError(f"a step must be above 0, not {step}")
    first, last, width = (Fraction(repr(float(number))) for number in (low, high, step))
    if (last - first) % width:
        raise SpaceError(f"steps of {step} do not lead from {low} to {high}")
