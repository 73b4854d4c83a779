"""Exploration noise of deterministic policies, added to their actions.

    Gaussian:             n_t ~ N(0, σ²)
    Ornstein-Uhlenbeck:   n_t = (1 - θ) n_{t-1} + σ z_t,   z_t ~ N(0, 1),   θ = 0.15

The second is that of Lillicrap et al. (2016), arXiv:1509.02971, section 7; it begins at 0 in every episode. State-
dependent exploration is in `actions`.

Notation: P members, N environments, k numbers in an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....spaces import Dimension, Space, categorical, integer, maybe, real
from ...checkpoint.member_state import Stacked
from ...rng.draws import Normals
from ...rng.streams import Bits

Noise = Callable[[int, Tensor, Tensor], tuple[Tensor | None, NDArray[Any] | None]]  # see `Head.noise`
THETA = 0.15


def noise_space(name: str, std: float) -> Space:
    """Return the hyperparameters of exploration noise.

    `std` is σ for normalized actions, whose bounds are -1 and 1. The ranges are those of rl-zoo's sampler.

    Args:
        name: default noise.
        std: default σ.
    """
    return Space(
        noise=categorical(*NOISES, "none", default=name, structural=True),
        std=real(0.0, 1.0, default=std, accept=(0.0, 100.0), when={"noise": tuple(NOISES)}),
    )


def sde_space() -> dict[str, Dimension | Space]:
    """Return the hyperparameters of state-dependent exploration, see `actions`.

    Its noise is drawn every `sde_sample_freq` steps. `sde_std_init` is the initial standard deviation when all
    activations of the last hidden layer are 1 or -1. `sde_clip_mean` bounds the means before they are squashed, against
    overflow, as in Stable-Baselines3. Few environments need this noise, so that its prior probability is small.
    """
    use = {"use_sde": True}
    return {
        "use_sde": categorical(False, True, default=False, structural=True, weights=(7, 1)),
        "sde_sample_freq": integer(1, 1_000_000, default=64, structural=True, search=False, when=use),
        "sde_std_init": real(0.1, 1.5, default=1.0, accept=(1e-3, 100.0), search=False, when=use),
        "sde_clip_mean": maybe(real(1.0, 5.0, accept=(1e-3, 1e3)), default=None, search=False, silent=True, when=use),
    }


def no_noise(step: int, outputs: Tensor, z: Tensor) -> tuple[None, None]:
    """Return no noise, for greedy actions."""
    return None, None


class GaussianNoise:
    """Independent noise at every step."""

    def __init__(self, std: Tensor, keys: Bits, shape: tuple[int, int], device: torch.device):
        """Prepare the noise.

        Args:
            std: σ, (P, 1).
            keys: random streams, (P,).
            shape: (N, k).
            device: device of the noise.
        """
        self.std, self.normals = std.unsqueeze(-1), Normals(keys, shape, device)

    def __call__(self, step: int, outputs: Tensor, z: Tensor) -> tuple[Tensor, None]:
        """Return the noise of a step, (P, N, k)."""
        return self.std * self.normals(step), None


class CorrelatedNoise(GaussianNoise, Stacked):
    """Noise of an Ornstein-Uhlenbeck process; its last values are state."""

    def __init__(self, std: Tensor, keys: Bits, shape: tuple[int, int], device: torch.device):
        super().__init__(std, keys, shape, device)
        self.tensors = {"noise": torch.zeros(len(std), *shape, device=device)}

    def __call__(self, step: int, outputs: Tensor, z: Tensor) -> tuple[Tensor, None]:
        noise = self.tensors["noise"]
        noise.mul_(1 - THETA).add_(super().__call__(step, outputs, z)[0])
        return noise, None

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Begin at 0 where episodes ended, (P, N)."""
        if ended.any():
            noise = self.tensors["noise"]
            noise.mul_(torch.from_numpy(~ended).to(noise).unsqueeze(-1))


NOISES = {"gaussian": GaussianNoise, "ou": CorrelatedNoise}  # by name
