"""The policy's last layer, and the noise of exploration.

Numbers of an action have noise of their own, new at each step, or state-dependent noise, see networks/sde.py:

    u = μ(s) + θ z(s),   θ_ij ~ N(0, σ_ij²),   so that   u_i ~ N(μ_i(s), Σ_j σ_ij² z_j(s)²)

While acting θ stays for many steps; a gradient step has the same distribution, with new noise for every row.

Notation: P members, N environments, B batch, k numbers in an action, L activations z of the policy's last hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from ...networks.fused import state_dependent_log_std
from ...networks.mlp import Parameters
from ...networks.sde import variance
from ...rng.draws import Draws, Normals
from ...rng.streams import Bits
from .actions import Array, SoftActions

Noise = Callable[[int, Tensor, Tensor], tuple[Tensor | None, Array | None]]


def no_noise(step: int, outputs: Tensor, z: Tensor) -> tuple[None, None]:
    """Return the noise of greedy actions."""
    return None, None


class Head:
    """A linear layer that gives means, log standard deviations and logits.

    Attributes:
        outputs: of the linear layer; shapes: of further parameters.
    """

    def __init__(self, actions: SoftActions):
        self.actions, self.outputs = actions, actions.outputs
        self.shapes: dict[str, tuple[int, ...]] = {}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Set one member's further parameters."""

    def __call__(self, tensors: Mapping[str, Tensor], out: Tensor, z: Tensor) -> Tensor:
        """Return the parameters of actions (P, N, outputs).

        `out` are the linear layer's outputs, z its inputs.
        """
        return out

    def learn(
        self, parameters: Parameters, leaf: Tensor, out: Tensor, next_out: Tensor, z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the parameters of actions for a batch and its next observations.

        The former have gradients in `leaf`, the parameters' vector.
        """
        return out, next_out

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        """Return the noise of exploration, a function of step, outputs and z.

        It gives noise (P, N, k) for the means, and uniforms (P, N, 1) for choices.
        """
        device = next(iter(tensors.values())).device
        normals = Normals(keys("action"), (num_envs, max(1, self.actions.continuous_dim)), device)
        choices = Draws(keys("choice"), (num_envs, 1))
        return lambda step, outputs, z: (self.actions.std_noise(outputs, normals(step)), choices(step).copy())


class StateDependentHead(Head):
    """A linear layer that gives means and logits, with state-dependent noise.

    Learned σ (L, k) give the standard deviations by z.
    """

    def __init__(self, actions: SoftActions, width: int, std_init: Tensor, sample_freq: int):
        """Describe the head.

        Args:
            actions: the action space.
            width: L.
            std_init: the first standard deviations where all of z are 1 or -1, (P, 1).
            sample_freq: steps between two draws of θ.
        """
        super().__init__(actions)
        self.std_init, self.sample_freq, self.width = std_init, sample_freq, width
        k = actions.continuous_dim
        self.used = actions.outputs - k
        self.outputs = max(2, self.used)  # see Exactness in networks/mlp.py
        self.shapes = {"actor.log_std": (width, k)}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        log_std = self.std_init[member].log() - 0.5 * math.log(self.width)
        parameters.views["actor.log_std"][member] = log_std

    def __call__(self, tensors: Mapping[str, Tensor], out: Tensor, z: Tensor) -> Tensor:
        return self._join(out, 0.5 * variance(tensors["actor.log_std"], z).log())

    def learn(
        self, parameters: Parameters, leaf: Tensor, out: Tensor, next_out: Tensor, z: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_std = leaf[:, parameters.spans["actor.log_std"]].unflatten(1, self.shapes["actor.log_std"])
        std, next_std = state_dependent_log_std(log_std, z, out.shape[1])
        return self._join(out, std), self._join(next_out, next_std)

    def _join(self, out: Tensor, log_std: Tensor) -> Tensor:
        k = self.actions.continuous_dim
        return torch.cat([out[..., :k], log_std, out[..., k : self.used]], -1)

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        log_std = tensors["actor.log_std"]
        normals = Normals(keys("sde"), (num_envs, *self.shapes["actor.log_std"][::-1]), log_std.device)

        choices = Draws(keys("choice"), (num_envs, 1))

        def noise(step: int, outputs: Tensor, z: Tensor) -> tuple[Tensor, Array]:
            scale = log_std.exp().transpose(1, 2).contiguous().unsqueeze(1)
            theta = normals(step // self.sample_freq) * scale
            return (theta * z.unsqueeze(-2)).sum(-1), choices(step).copy()

        return noise


def head_for(actions: SoftActions, hp: SimpleNamespace) -> Head:
    """Return the head that SAC's hyperparameters ask for."""
    if hp.use_sde:
        return StateDependentHead(actions, hp.model.width, hp.sde_std_init, hp.sde_sample_freq)
    return Head(actions)
