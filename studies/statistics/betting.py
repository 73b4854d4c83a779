"""Test by betting that a mean exceeds a value.

It follows Waudby-Smith and Ramdas (2024), doi:10.1093/jrsssb/qkad009. A bettor with wealth 1 bets, before each result,
that it exceeds the value. If the mean does not exceed it, the wealth is a supermartingale, so by Ville's inequality the
probability that it ever reaches 1 / error is at most `error`, whatever the distribution and whenever the test is
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BOLDEST = 0.9  # maximum fraction of the wealth at stake


def wealth(results: Sequence[float], value: float, least: float) -> float:
    """Return the greatest wealth reached by betting on the results.

    Args:
        results: independent results, in order.
        value: the bettor claims that the mean exceeds it.
        least: lower bound of the results.
    """
    gaps = np.asarray(results, float) - value
    width = max(value - least, 1e-3 * max(1.0, abs(value)))  # a lower bound than `least` holds as well
    counts = np.arange(1, len(gaps) + 1)  # one more than the earlier results, for the prior guess
    means = (np.cumsum(gaps) - gaps) / counts  # over earlier results only, so that each bet is predictable
    squares = (gaps - means) ** 2
    variances = (width**2 / 4 + np.cumsum(squares) - squares) / counts
    bets = np.clip(means / (variances + means**2), 0.0, BOLDEST / width)
    return float(np.maximum(0.0, 1.0 + bets * gaps).cumprod().max(initial=1.0))
