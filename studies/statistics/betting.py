"""Test by betting that a mean exceeds a value.

It is that of Waudby-Smith and Ramdas (2024), doi:10.1093/jrsssb/qkad009. Someone with a wealth of 1 bets, before each
result, that it will exceed the value. If the mean does not exceed it, the wealth is not expected to grow, so by Ville's
inequality it ever reaches 1 / error with a probability of `error` at most, whatever the results' distribution and
however long one looks on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BOLDEST = 0.9  # part of the wealth at stake at most


def wealth(results: Sequence[float], value: float, least: float) -> float:
    """Return the greatest wealth that betting on results has reached.

    Args:
        results: independent ones, in their order.
        value: that their mean exceeds, so the bettor says.
        least: that no result is below.
    """
    gaps, width = np.asarray(results, float) - value, max(value - least, 1e-12)
    counts = np.arange(1, len(gaps) + 1)  # a guess is counted before the first result
    means = (np.cumsum(gaps) - gaps) / counts  # of what was seen before each result
    squares = (gaps - means) ** 2
    variances = (width**2 / 4 + np.cumsum(squares) - squares) / counts
    bets = np.clip(means / (variances + means**2), 0.0, BOLDEST / width)
    return float(np.maximum(0.0, 1.0 + bets * gaps).cumprod().max(initial=1.0))
