"""Generalized state-dependent exploration: Raffin et al. (2022), arXiv:2005.05719, section 3.

    a = μ(s) + θ z(s),   θ_ij ~ N(0, σ_ij²) drawn once for many steps,   so that   a_i ~ N(μ_i(s), Σ_j σ_ij² z_j(s)²)

z(s) are the activations of the policy's last hidden layer, and σ is learned. While θ stays, the noise is a smooth
function of the state instead of a new number at each step, which is what motors want.

Notation: P members, N environments, k numbers in an action, L in z.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from ..errors import UnsupportedSpace
from ..rng.draws import Normals
from ..rng.streams import Bits
from .distributions import Gaussian, distribution_for
from .mlp import affine

VARIANCE = 1e-6  # is added, so that a z of zeros does not make the density infinite


class StateDependentGaussian(Gaussian):
    """Normal actions whose noise is a function of the state; params are means, log standard deviations and z, (2k + L).

    `sample` takes θ, (..., k, L), for noise. The rest is a normal distribution's: for the density of an action it does
    not matter that the noise of the next step will be alike.
    """

    def __init__(self, shape: tuple[int, ...], features: int):
        super().__init__(shape)
        self.noise_size = 0  # drawn by `Perturbations`, not step by step
        self.features = features

    def params(self, mean: Tensor, z: Tensor, log_std: Tensor) -> Tensor:
        """From μ(s), (P, B, k), z(s), (P, B, L), and log σ, (P, L, k). No gradient of the noise flows into z."""
        z = z.detach()
        offset = mean.new_full((len(mean), 1, self.size), VARIANCE)
        variance = affine(z * z, (2 * log_std).exp(), offset)
        return torch.cat([mean, 0.5 * variance.log(), z], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, _, z = params.split([self.size, self.size, self.features], -1)
        return (mean + (noise * z.unsqueeze(-2)).sum(-1)).unflatten(-1, self.action_shape)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return super().log_prob_and_entropy(params[..., : 2 * self.size], actions)


def state_dependent(space: gym.Space[Any], features: int, place: str) -> StateDependentGaussian:
    """The distribution over a Box of floats; UnsupportedSpace for any other space, named with the place."""
    distribution = distribution_for(space, place)
    if not isinstance(distribution, Gaussian):
        raise UnsupportedSpace(f"{place}: use_sde explores in a Box of floats, but got {space}; leave use_sde out")
    return StateDependentGaussian(distribution.action_shape, features)


class Perturbations:
    """θ for every environment and step of a rollout, from the member's own stream; its position is no state.

    They are drawn anew at each rollout's beginning, with the σ of then, and in it after every `every` steps if that is
    not -1.
    """

    def __init__(
        self,
        keys: Bits,
        num_envs: int,
        distribution: StateDependentGaussian,
        steps: int,
        every: int,
        device: torch.device | str = "cpu",
    ):
        """keys: the members' streams, (P,); steps: of a rollout."""
        self.normals = Normals(keys, (num_envs, distribution.size, distribution.features), device)
        self.steps = steps
        self.every = steps if every == -1 else min(every, steps)
        self.draws = -(-steps // self.every)  # in a rollout

    @torch.no_grad()
    def __call__(self, rollout: int, log_std: Tensor) -> list[Tensor]:
        """(P, N, k, L) for each step of the rollout with this number; log_std: log σ, (P, L, k)."""
        scale = log_std.exp().transpose(1, 2).contiguous().unsqueeze(1)
        drawn = [self.normals(rollout * self.draws + i) * scale for i in range(self.draws)]
        return [drawn[step // self.every] for step in range(self.steps)]
