"""Encoding of actions for networks, and the error of predicted actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..envs import Joined
from ..networks.distributions import Categorical, Gaussian, Hybrid, MultiCategorical, distribution_for


class ActionEncoder:
    """Encoder of actions as rows of numbers.

    Choices become one-hot, bits 0 or 1, and numbers of a Box are clipped to its bounds. A range with two finite bounds
    is scaled to [-1, 1], so errors and distances have no unit.

    Attributes:
        size: length of an encoded action.
        outputs: number of network outputs that describe a prediction.
    """

    def __init__(self, space: gym.Space[Any], subject: str, device: torch.device | str = "cpu"):
        self.distribution = distribution_for(space, subject)
        self.outputs = self.size = self.distribution.outputs
        if isinstance(space, gym.spaces.Box | Joined):
            columns = self.distribution.columns[0] if isinstance(self.distribution, Hybrid) else slice(None)
            self.low, self.high = (
                torch.from_numpy(x.astype("float32").reshape(-1)[columns]).to(device) for x in (space.low, space.high)
            )
            bounded = self.low.isfinite() & self.high.isfinite() & (self.low < self.high)
            self.middle = torch.where(bounded, 0.5 * (self.low + self.high), 0.0)
            self.half = torch.where(bounded, 0.5 * (self.high - self.low), 1.0)

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions (P, B, ...) as (P, B, size)."""
        dist = self.distribution
        if isinstance(dist, Categorical):
            return one_hot(actions, dist.outputs).float()
        if isinstance(dist, MultiCategorical):
            parts = zip(actions.unbind(-1), dist.sizes, strict=True)
            return torch.cat([one_hot(part, n) for part, n in parts], -1).float()
        if isinstance(dist, Hybrid):
            numbers, choices = dist.parts(actions)
            parts = zip(choices.unbind(-1), dist.choices.sizes, strict=True)
            scaled = (numbers - self.middle) / self.half
            return torch.cat([scaled, *(one_hot(part, n).float() for part, n in parts)], -1)
        if isinstance(dist, Gaussian):
            numbers = torch.minimum(torch.maximum(actions.flatten(2), self.low), self.high)
            return (numbers - self.middle) / self.half
        return actions.flatten(2).float()

    def error(self, guess: Tensor, actions: Tensor) -> Tensor:
        """Return the errors (P, B) of predictions (P, B, outputs).

        The error is the squared distance in a Box, -log π for choices, and the sum of both if an action has both.
        """
        if isinstance(self.distribution, Hybrid):
            k, (_, choices) = self.distribution.size, self.distribution.parts(actions)
            of_numbers = (guess[..., :k] - self(actions)[..., :k]).square().sum(-1)
            return of_numbers - self.distribution.choices.log_prob_and_entropy(guess[..., k:], choices)[0]
        if isinstance(self.distribution, Gaussian):
            return (guess - self(actions)).square().sum(-1)
        return -self.distribution.log_prob_and_entropy(guess, actions)[0]
