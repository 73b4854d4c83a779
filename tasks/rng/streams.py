"""Counter-based random streams.

A number is a function of a key and a position, so a counter is the complete random state.

A stream is named by a path such as ``key(seed, "train", "reset", n)``. Its i-th number does not depend on how many
numbers were drawn before, by whom, or in which cohort. There is no generator whose state a checkpoint could forget.

The bits are SplitMix64's finalizer (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195, fig. 16), applied twice.
The key is mixed in before each pass, so streams are not shifted copies of one another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
TO_52_BITS, TO_53_BITS = np.uint64(12), np.uint64(11)
TWO_52, TWO_53 = 1.0 / (1 << 52), 1.0 / (1 << 53)

Bits = NDArray[np.uint64]
Keys = Callable[[str], Bits]  # from a stream's purpose to one key per member, (P,)


def key(*path: int | str) -> np.uint64:
    """Return the 64-bit key of the stream with this path.

    An example is ``key(seed, "train", "reset", n)``.
    """
    text = "/".join(f"{type(part).__name__[0]}:{part}" for part in path)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def keys(seeds: Sequence[int], *path: int | str) -> Bits:
    """Return one key per seed, (P,)."""
    return np.array([key(seed, *path) for seed in seeds], dtype=np.uint64)


def seed_of(*path: int | str) -> int:
    """Return a seed for libraries that take 31-bit seeds (Gymnasium, Optuna)."""
    return int(key(*path) >> np.uint64(33))


def short(seed: int) -> int:
    """Return a seed of 31 bits: itself, or one from it.

    NumPy's and scikit-learn's generators refuse longer ones.
    """
    return seed if 0 <= seed < 1 << 31 else seed_of(seed, "short")


def _mix(z: Bits) -> Bits:
    """Apply SplitMix64's finalizer in place."""
    z ^= z >> SHIFT_1
    z *= MIX_1
    z ^= z >> SHIFT_2
    z *= MIX_2
    z ^= z >> SHIFT_3
    return z


def bits(stream_keys: Bits | np.uint64, counters: NDArray[np.int64] | Bits | int) -> Bits:
    """Return 64 random bits for every pair of key and counter.

    Keys and counters are broadcast against each other.
    """
    stream_keys = np.asarray(stream_keys, dtype=np.uint64)
    # At least one axis, since numpy warns about overflow of scalars but not of arrays.
    z = (np.atleast_1d(counters).astype(np.uint64) + np.uint64(1)) * GOLDEN + stream_keys
    z = _mix(z)
    z += stream_keys
    return _mix(z)


def uniform(stream_keys: Bits | np.uint64, counters: NDArray[np.int64] | Bits | int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) with 53 random bits.

    Keys and counters are broadcast against each other.
    """
    return np.asarray((bits(stream_keys, counters) >> TO_53_BITS) * TWO_53, dtype=np.float64)


def open_uniform(stream_keys: Bits | np.uint64, counters: NDArray[np.int64] | Bits | int) -> NDArray[np.float64]:
    """Return numbers in (0, 1), for transforms that take a logarithm.

    They have 52 random bits, since with 53 the largest would round to 1.
    """
    return np.asarray(((bits(stream_keys, counters) >> TO_52_BITS) + 0.5) * TWO_52, dtype=np.float64)
