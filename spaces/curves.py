"""The dimension of curves: piecewise linear functions, given as data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .dimension import Dimension
from .errors import OutOfRange, SpaceError
from .ranges import bound
from .values import Value, canonical


@dataclass(frozen=True, kw_only=True)
class Curve(Dimension):
    """Points [[x, y], ...] of a piecewise linear function.

    x rises from 0 or more, and y is in [low, high]; the curve is flat before and after.

    A curve stands for a function of time where values must be stored, compared and hashed. No study searches it.
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
            raise self._wrong_type(value, name)
        if any(not isinstance(point, list) or len(point) != 2 for point in points):
            raise self._wrong_type(value, name)
        try:
            checked = [(bound(x), bound(y)) for x, y in points]
        except OutOfRange:
            raise self._out_of_range(value, name) from None
        except SpaceError:
            raise self._wrong_type(value, name) from None
        rising = all(a < b for (a, _), (b, _) in pairwise(checked))
        if checked[0][0] < 0 or not rising or not all(self.low <= y <= self.high for _, y in checked):
            raise self._out_of_range(value, name)
        return [[x, y] for x, y in checked]

    def at(self, u: float) -> Value:
        return canonical(self.default, "the default")
