"""The last episodes of each member, for smoother means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...spaces import Dimension, integer, maybe
from ..checkpoint.member_state import Stacked


def window_size(silent: bool = False) -> Dimension:
    """Return the hyperparameter for the number of episodes in the window.

    The window adds the metrics `recent_return`, its min, median, max and std, and `recent_length`; None adds nothing.
    It is silent for tasks that are older than it.
    """
    return maybe(integer(1, 100_000, structural=True), default=None, search=False, silent=silent)


class EpisodeWindow(Stacked):
    """Returns and lengths of P members' last `size` training episodes, unnormalized."""

    def __init__(self, members: int, size: int):
        self.size = size
        self.returns, self.lengths = np.zeros((members, size)), np.zeros((members, size))
        self.count = np.zeros((members, 1), np.int64)  # all episodes so far; modulo `size`, the slot of the next one
        self.tensors = {name: torch.from_numpy(getattr(self, name)) for name in ("returns", "lengths", "count")}

    def add(self, members: NDArray[np.int64], returns: NDArray[Any], lengths: NDArray[Any]) -> None:
        """Add episodes of these members, in the order in which they ended."""
        for member, value, length in zip(members.tolist(), returns.tolist(), lengths.tolist(), strict=True):
            slot = int(self.count[member, 0]) % self.size
            self.returns[member, slot], self.lengths[member, slot] = value, length
            self.count[member] += 1

    def recent(self, member: int) -> list[float]:
        """Return a member's returns in the window, oldest first."""
        count = int(self.count[member, 0])
        order = [number % self.size for number in range(max(count - self.size, 0), count)]
        returns: list[float] = self.returns[member, order].tolist()
        return returns

    def metrics(self, member: int) -> dict[str, float]:
        """Return means over a member's window, and the spread of its returns.

        The result is empty before the member's first episode.
        """
        count = min(int(self.count[member, 0]), self.size)
        if not count:
            return {}
        returns, lengths = self.returns[member, :count], self.lengths[member, :count]
        return {
            "recent_return": float(returns.mean()),
            "recent_length": float(lengths.mean()),
            "recent_return_min": float(returns.min()),
            "recent_return_median": float(np.median(returns)),
            "recent_return_max": float(returns.max()),
            "recent_return_std": float(returns.std()),
        }
