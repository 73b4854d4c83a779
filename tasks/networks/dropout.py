"""Dropout of units by counter-based random streams."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import tensors
from ..rng.streams import Bits

LEVELS = 1 << 16  # a rate of dropout is a multiple of 1 / LEVELS


class Dropout:
    """Random factors of units: Srivastava et al. (2014).

    They are 0 with a probability, and otherwise 1 / (1 - rate). They are functions of the step's number.
    """

    def __init__(self, keys: Bits, rate: float, shape: tuple[int, ...], device: torch.device | str):
        """Prepare the draws.

        Args:
            keys: random streams of the members, (P,).
            rate: probability, rounded to a multiple of 1 / LEVELS.
            shape: shape of one member's units in one step.
            device: device of the factors.
        """
        self.shape, self.keys = shape, tensors.key_tensor(keys, device).unsqueeze(1)
        self.limit = round(rate * LEVELS)
        self.count = torch.Size(shape).numel()
        self.words = -(-self.count // 4)  # 64 bits decide about four units

    def __call__(self, step: int) -> Tensor:
        """Return the factors (P, *shape) of a step."""
        counters = torch.arange(step * self.words, (step + 1) * self.words, device=self.keys.device)
        levels = tensors.bits(self.keys, counters).view(torch.int16)[:, : self.count]  # from -LEVELS / 2
        stays = (levels >= self.limit - LEVELS // 2).unflatten(1, self.shape)
        return stays * (LEVELS / (LEVELS - self.limit))
