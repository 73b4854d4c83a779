"""Random numbers by position, computed in blocks.

A number is a function of its position, so the cached block is not state.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import streams

AT_ONCE = 4096  # numbers per member in a block; enough to hide the cost of the calls


class Draws:
    """Uniform numbers in [0, 1) for P members, by position."""

    scratch = ("_block", "_values")

    def __init__(self, keys: streams.Bits, shape: tuple[int, ...]):
        """Prepare the draws.

        Args:
            keys: random streams of the members, (P,).
            shape: shape of one member's numbers at one position.
        """
        self.keys, self.shape = keys[:, None], shape
        self.size = math.prod(shape)
        self.ahead = max(1, AT_ONCE // max(1, self.size))
        self._block = -1
        self._values: NDArray[np.float64] = np.empty(0)

    def __call__(self, position: int) -> NDArray[np.float64]:
        """Return the numbers (P, *shape) at a position; they are read-only."""
        block, row = divmod(position, self.ahead)
        if block != self._block:
            count = self.ahead * self.size
            numbers = streams.uniform(self.keys, np.arange(block * count, (block + 1) * count))
            numbers = numbers.reshape(len(self.keys), self.ahead, *self.shape)
            self._values, self._block = np.ascontiguousarray(numbers.swapaxes(0, 1)), block
            self._values.flags.writeable = False
        values: NDArray[np.float64] = self._values[row]
        return values


class Normals:
    """Standard normal numbers for P members, as tensors.

    Box and Muller (1958), using both numbers of every pair.
    """

    scratch = ("_block", "_values")

    def __init__(self, keys: streams.Bits, shape: tuple[int, ...], device: torch.device | str = "cpu"):
        """Prepare the draws.

        Args:
            keys: random streams of the members, (P,).
            shape: shape of one member's numbers at one position.
            device: device of the tensors.
        """
        self.keys, self.shape, self.device = keys[:, None], shape, torch.device(device)
        size = math.prod(shape)
        whole = 16 // math.gcd(16, size)  # both halves of a block fill whole vector registers (see Exactness in mlp.py)
        self.ahead = -(-max(1, AT_ONCE // max(1, size)) // whole) * whole
        self.count = self.ahead * size
        self._block = -1
        self._values = torch.empty(0)

    def __call__(self, position: int) -> Tensor:
        """Return the float32 numbers (P, *shape) at a position; they are read-only."""
        block, row = divmod(position, self.ahead)
        if block != self._block:
            counters = np.arange(block * self.count, (block + 1) * self.count).reshape(2, -1)
            radius = np.sqrt(-2 * np.log1p(-streams.uniform(self.keys, counters[0])))
            angle = 2 * np.pi * streams.uniform(self.keys, counters[1])
            pair = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)
            numbers = torch.from_numpy(pair).reshape(len(pair), self.ahead, *self.shape)
            self._values, self._block = numbers.transpose(0, 1).contiguous().to(self.device), block
        return self._values[row]
