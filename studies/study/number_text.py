"""Numbers as text: results with enough digits to tell them apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

LEAST, MOST = 3, 6  # significant digits: at least, of every result; at most, of the largest to tell two apart
FINEST = 9  # decimals
NOISE = 1e-12  # of the largest result; smaller results and differences come from rounding, and are 0 as text


def in_digits(results: Iterable[float | None]) -> list[str]:
    """Format results that are shown together, with the same number of decimals.

    Every result has at least three significant digits. Results that differ also differ as text, if six digits of the
    largest one suffice. None becomes "".
    """
    values = list(results)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    decimals = _decimals(finite)
    return ["" if value is None else f"{value:z,.{decimals}f}" for value in values]


def in_digits_alone(result: float) -> str:
    """Format one result with at least three significant digits."""
    return in_digits([result])[0]


def _decimals(values: Sequence[float]) -> int:
    least_size = NOISE * max(map(abs, values), default=0.0)
    values = [value for value in values if abs(value) > least_size]
    if not values:
        return 1
    sizes = [math.floor(math.log10(abs(value))) for value in values]
    least = max(1 if max(sizes) < 3 else 0, LEAST - 1 - min(sizes))
    most = max(least, MOST - 1 - max(sizes))
    different = 1 + sum(above - below > least_size for below, above in pairwise(sorted(values)))
    telling = (n for n in range(least, most) if len({f"{value:.{n}f}" for value in values}) >= different)
    return min(next(telling, most), FINEST)


def share(value: float) -> str:
    """Format a share in percent; only all are 100%, and none 0%."""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return "less than 1%" if value < 0.5 else "more than 99%"
    return f"{value:.0%}"


def counted(number: int, noun: str) -> str:
    """Format a number of things, such as "1 trial" or "2,000 trials"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
