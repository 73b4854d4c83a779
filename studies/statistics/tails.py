"""Tail probabilities and quantiles for tests and intervals, without SciPy."""

from __future__ import annotations

import math


def chi2_tail(x: float, freedom: int) -> float:
    """Return the probability that a chi-squared variable exceeds x.

    Abramowitz and Stegun, 26.4.4 and 26.4.5.
    """
    if x <= 0:
        return 1.0
    odd = freedom % 2
    halves = (i + odd / 2 for i in range(freedom // 2))
    tail = math.erfc(math.sqrt(x / 2)) if odd else 0.0
    return tail + sum(math.exp(half * math.log(x / 2) - x / 2 - math.lgamma(half + 1)) for half in halves)


def t_tails(t: float, freedom: int) -> float:
    """Return the two-sided tail probability of Student's t, P(|T| > |t|).

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for i in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    within = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + within) if odd else within)


def f_normal(ratio: float, freedom: int, other: int) -> float:
    """Return the normal deviate with about the tail of an F ratio.

    Abramowitz and Stegun, 26.6.15.

    Args:
        ratio: ratio of two estimates of one variance.
        freedom: degrees of freedom of the numerator.
        other: degrees of freedom of the denominator.
    """
    root, a, b = ratio ** (1 / 3), 2 / (9 * freedom), 2 / (9 * other)
    return ((1 - b) * root - (1 - a)) / math.sqrt(b * root**2 + a)


def t_quantile(level: float, freedom: int) -> float:
    """Return the quantile of Student's t at a level above 1/2.

    It is found by bisection, to a relative error of 1e-12.
    """
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 2 * (1 - level):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 2 * (1 - level) else (low, middle)
    return high
