"""Generalized state-dependent exploration (gSDE): Raffin et al. (2022), arXiv:2005.05719.

Section 3:

    a = μ(s) + θ z(s),   θ_ij ~ N(0, σ_ij²) drawn once for many steps,   so that   a_i ~ N(μ_i(s), Σ_j σ_ij² z_j(s)²)

z(s) are the activations of the policy's last hidden layer, and σ is learned. Between two draws of θ, the noise is a
smooth function of the state instead of a new number at each step, which suits motors.

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
from .distributions import Gaussian, Units, distribution_for
from .mlp import affine

VARIANCE = 1e-6  # added to the variance, so that z = 0 does not make the density infinite


def variance(log_std: Tensor, z: Tensor) -> Tensor:
    """Return the variances Σ_j σ_ij² z_j² of actions, (P, B, k).

    log σ is (P, L, k), z is (P, B, L).
    """
    return affine(z * z, (2 * log_std).exp(), z.new_full((len(z), 1, log_std.shape[-1]), VARIANCE))


class StateDependentGaussian(Gaussian):
    """Normally distributed actions whose noise is a function of the state.

    Parameters are means, log standard deviations and z, (2k + L). `sample` takes θ, (..., k, L), as noise. Otherwise it
    is an ordinary normal distribution: the density of an action does not depend on the noise of other steps.
    """

    def __init__(self, shape: tuple[int, ...], features: int, units: Units | None = None):
        super().__init__(shape, units)
        self.log_std_shape = (features, self.size)
        self.noise_size = 0  # drawn by `Perturbations`, not step by step
        self.features = features

    def params(self, outputs: Tensor, z: Tensor, log_std: Tensor | None) -> Tensor:
        """Combine μ(s), z(s) and log σ into parameters.

        They are (P, B, k), (P, B, L) and (P, L, k); no gradient passes from the noise to z.
        """
        assert log_std is not None
        z = z.detach()
        return torch.cat([outputs, 0.5 * variance(log_std, z).log(), z], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, _, z = params.split([self.size, self.size, self.features], -1)
        return self.actions(mean + (noise * z.unsqueeze(-2)).sum(-1))

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return super().log_prob_and_entropy(params[..., : 2 * self.size], actions)


def state_dependent(space: gym.Space[Any], features: int, subject: str) -> StateDependentGaussian:
    """Return the state-dependent distribution over a Box of floats.

    Raises:
        UnsupportedSpace: the space is of another kind.
    """
    distribution = distribution_for(space, subject)
    if not isinstance(distribution, Gaussian):
        raise UnsupportedSpace(f"{subject}: use_sde explores in a Box of floats, but got {space}; leave use_sde out")
    return StateDependentGaussian(distribution.action_shape, features, distribution.units)


class Perturbations:
    """Random θ for every environment and step of a rollout.

    θ is drawn from the member's own stream at the start of each rollout, with the σ of that moment, and again after
    every `every` steps unless that is -1.
    """

    def __init__(
        self, keys: Bits, num_envs: int, distribution: StateDependentGaussian, log_std: Tensor, steps: int, every: int
    ):
        """Store the random streams and the shape of a rollout.

        Args:
            keys: random streams of the members, (P,).
            num_envs: N.
            distribution: distribution of the actions.
            log_std: view of log σ, (P, L, k).
            steps: steps in a rollout.
            every: steps between two draws of θ; -1 for one draw per rollout.
        """
        self.normals = Normals(keys, (num_envs, distribution.size, distribution.features), log_std.device)
        self.log_std, self.steps = log_std, steps
        self.every = steps if every == -1 else min(every, steps)
        self.draws = -(-steps // self.every)  # in a rollout

    @torch.no_grad()
    def __call__(self, rollout: int) -> list[Tensor]:
        """Return θ for each step of the rollout with this number.

        Each is (P, N, k, L).
        """
        scale = self.log_std.exp().transpose(1, 2).contiguous().unsqueeze(1)
        drawn = [self.normals(rollout * self.draws + i) * scale for i in range(self.draws)]
        return [drawn[step // self.every] for step in range(self.steps)]
