"""The random numbers of `streams`, computed by torch where the tensors are.

They are equal bit for bit. Torch has no unsigned 64-bit arithmetic. Products and sums of signed numbers wrap around to
the same bits, and right shifts fill in zeros here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .streams import GOLDEN, MIX_1, MIX_2, TWO_52, TWO_53, Bits


def key_tensor(keys: Bits, device: torch.device | str) -> Tensor:
    """Return keys of streams as signed numbers with the same bits."""
    return torch.from_numpy(np.asarray(keys, np.uint64).view(np.int64).copy()).to(device)


def bits(keys: Tensor, counters: Tensor) -> Tensor:
    """Return 64 random bits, as signed numbers, for every key and counter.

    Both are int64 and broadcast against each other; see `streams.bits`.
    """
    return _mix(_mix((counters + 1) * _signed(GOLDEN) + keys) + keys)


def uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), see `streams.uniform`."""
    return _shifted(bits(keys, counters), 11).double() * TWO_53


def open_uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Return float64 numbers in (0, 1), see `streams.open_uniform`."""
    return (_shifted(bits(keys, counters), 12).double() + 0.5) * TWO_52


def in_order(words: Tensor) -> Tensor:
    """Return indices that sort rows of random bits as unsigned numbers."""
    return (words ^ torch.iinfo(torch.int64).min).argsort(-1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(constant: np.uint64) -> int:
    return int(constant.astype(np.int64))
