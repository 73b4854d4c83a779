"""Running normalization of observations and rewards, for each member.

The moments of each step are merged into the running ones by eq. 2.1 of Chan, Golub and LeVeque (1979), "Updating
formulae and a pairwise algorithm for computing sample variances". A small prior weight keeps the first steps finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.state import Tree

Array = NDArray[np.float64]
PRIOR_WEIGHT = 1e-4
CLIP = 10.0


class RunningMoments:
    """Mean and variance of P members' streams of vectors, (P, D)."""

    def __init__(self, members: int, size: int):
        self.mean = np.zeros((members, size))
        self.variance = np.ones((members, size))
        self.count = np.full((members, 1), PRIOR_WEIGHT)

    @np.errstate(invalid="ignore", over="ignore")  # an infinite number is the fault of an environment, which is named
    def update(self, batch: NDArray[Any], counted: NDArray[np.bool_] | None = None) -> None:
        """Merge a batch (P, B, D).

        `counted` (P, B) selects rows; None takes all.
        """
        number: Any = batch.shape[1]
        batch = batch.astype(np.float64, copy=False)
        if counted is None:
            mean = batch.mean(1)
            variance = np.square(batch - mean[:, None]).mean(1)
        else:
            number = counted.sum(1, keepdims=True)
            weights = counted[:, :, None] / np.maximum(number, 1)[:, None]
            mean = (batch * weights).sum(1)
            variance = (np.square(batch - mean[:, None]) * weights).sum(1)
        total = self.count + number
        delta = mean - self.mean
        self.variance = (
            self.variance * self.count + variance * number + delta**2 * self.count * number / total
        ) / total
        self.mean = self.mean + delta * number / total
        self.count = total

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's statistics by name; views, valid until the next update."""
        return {name: torch.from_numpy(getattr(self, name)[member]) for name in ("mean", "variance", "count")}

    def member_state(self, member: int) -> Tree:
        return {name: view.clone() for name, view in self.of(member).items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name in ("mean", "variance", "count"):
            getattr(self, name)[member] = tree[name].numpy()


class ObservationNormalizer(RunningMoments):
    """Standardization of observations (P, N, D) by running moments, clipped to ±10."""

    def __init__(self, members: int, size: int, mask: slice | None = None):
        """Start with no observations.

        The columns of a mask are not scaled.
        """
        super().__init__(members, size)
        self.mask = mask

    def __call__(
        self, obs: NDArray[np.float32], learn: bool = False, counted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        if learn:
            self.update(obs, counted)
        mean, scale = self._moments()
        standardized = (obs - mean[:, None]) * scale[:, None]
        return np.clip(standardized, -CLIP, CLIP).astype(np.float32)

    def _moments(self) -> tuple[Array, Array]:
        """Return the mean and the factor of each number, (P, D)."""
        scale = 1 / np.sqrt(self.variance + 1e-8)
        if self.mask is None:
            return self.mean, scale
        mean = self.mean.copy()
        mean[:, self.mask], scale[:, self.mask] = 0, 1
        return mean, scale

    def of_batch(self, obs: Tensor) -> Tensor:
        """Standardize a batch (P, ..., D) without updating the moments."""
        form = (len(obs), *[1] * (obs.ndim - 2), -1)
        mean, scale = (torch.from_numpy(x).to(obs.device).view(form) for x in self.of_batches())
        return ((obs - mean) * scale).clamp(-CLIP, CLIP)

    def of_batches(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean and the factor for batches, each (P, D)."""
        mean, scale = self._moments()
        return mean.astype(np.float32), scale.astype(np.float32)


class ReturnMoments(RunningMoments):
    """Running moments of the discounted returns of N environments."""

    def __init__(self, members: int, num_envs: int, gamma: Array):
        """Set the returns to 0; gamma is (P, 1)."""
        super().__init__(members, 1)
        self.gamma = gamma
        self.returns = np.zeros((members, num_envs))

    @np.errstate(invalid="ignore", over="ignore")  # an infinite number is the fault of an environment, which is named
    def learn(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], counted: NDArray[np.bool_] | None = None
    ) -> None:
        """Merge the returns after each of T steps.

        Args:
            rewards: (T, P, N).
            ended: (T, P, N), episodes that ended; their returns begin again at 0.
            counted: (T, P, N), steps that count; None for all.
        """
        steps, members, num_envs = rewards.shape
        returns = np.empty((members, steps, num_envs))  # how the moments are summed depends on the order in memory
        returns[:] = rewards.transpose(1, 0, 2)
        before, decay = self.returns, self.gamma
        for now, following in zip(returns.transpose(1, 0, 2), self.gamma * ~ended, strict=True):
            now += decay * before
            before, decay = now, following
        self.returns = before * ~ended[-1]
        mask = None if counted is None else counted.transpose(1, 0, 2).reshape(members, -1)
        self.update(returns.reshape(members, -1, 1), mask)

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Reset the returns of episodes that ended, (P, N)."""
        self.returns = self.returns * ~ended

    @property
    def deviation(self) -> Array:
        """Running standard deviation, (P, 1)."""
        return np.sqrt(self.variance + 1e-8)

    def member_state(self, member: int) -> Tree:
        return {"returns": torch.from_numpy(self.returns[member].copy()), **super().member_state(member)}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        super().load_member(member, tree)
        self.returns[member] = tree["returns"].numpy()


class RewardNormalizer(ReturnMoments):
    """Division of rewards by the running standard deviation of discounted returns.

    Engstrom et al. (2020), arXiv:2005.12729, section 3, as in Gymnasium's `NormalizeReward`; but all rewards of a
    rollout are divided by the deviation that follows from all steps up to its end.
    """

    def __call__(
        self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], counted: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """Merge rewards (T, P, N) into the moments, and scale them.

        The results are clipped to ±10. The arguments are those of `learn`.
        """
        self.learn(rewards, ended, counted)
        return np.clip(rewards / self.deviation, -CLIP, CLIP).astype(np.float32)

    def scale(self, rewards: Tensor) -> Tensor:
        """Divide stored rewards (P, B) by the current standard deviation."""
        return rewards / torch.from_numpy(self.deviation).to(rewards)
