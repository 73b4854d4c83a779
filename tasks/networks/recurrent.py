"""Recurrent networks of P members: LSTM and GRU cores, and an actor-critic.

Notation: P members, N environments (or sequences), T steps, S numbers in a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..rng import streams
from .actor_critic import ActorCritic
from .mlp import Parameters, affine, orthogonal

GATES = {"lstm": 4, "gru": 3}
FORGET_BIAS = 1.0  # Jozefowicz et al. (2015), An empirical exploration of recurrent network architectures


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), computed with tanh.

    See Exactness in networks/mlp.py.
    """
    return 0.5 * (1 + torch.tanh(0.5 * x))


class Core:
    """LSTM or GRU layer of P members.

    Hochreiter and Schmidhuber (1997), with forget gates; Cho et al. (2014), arXiv:1406.1078.

    Attributes:
        features: number of outputs.
        state_size: S; the first `width` numbers of a state are the output, followed by an LSTM's cells.
    """

    def __init__(self, prefix: str, cell: str, inputs: int, width: int):
        self.prefix, self.cell, self.width, self.inputs = prefix, cell, width, inputs
        self.features = width
        self.gates = GATES[cell]
        self.state_size = 2 * width if cell == "lstm" else width
        size = self.gates * width
        self.shapes = {
            f"{prefix}.input.weight": (inputs, size),
            f"{prefix}.input.bias": (1, size),
            f"{prefix}.hidden.weight": (width, size),
        }
        if cell == "gru":
            self.shapes[f"{prefix}.hidden.bias"] = (1, size)

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw orthogonal weights for every gate from the member's own stream."""
        for part, rows in (("input", self.inputs), ("hidden", self.width)):
            name = f"{self.prefix}.{part}.weight"
            gates = [orthogonal(streams.key(seed, "init", name, g), rows, self.width, 1.0) for g in range(self.gates)]
            parameters.views[name][member] = torch.cat(gates, 1)
        if self.cell == "lstm":
            parameters.views[f"{self.prefix}.input.bias"][member, :, self.width : 2 * self.width] = FORGET_BIAS

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor) -> Tensor:
        """Return the states (P, N, T, S) after each step of sequences.

        Args:
            tensors: parameters by name.
            x: inputs, (P, N, T, inputs).
            begins: 1 at the first step of an episode, where the state is reset to 0, (P, N, T).
            state: state before the first step, (P, N, S).
        """
        batch, steps = x.shape[1:3]
        weight, bias = tensors[f"{self.prefix}.input.weight"], tensors[f"{self.prefix}.input.bias"]
        hidden, hidden_bias = tensors[f"{self.prefix}.hidden.weight"], tensors.get(f"{self.prefix}.hidden.bias")
        inputs = affine(x.flatten(1, 2), weight, bias)
        if inputs.requires_grad:
            # Without it the gradient's layout, and the order in which the bias gradient is summed, would depend on P.
            inputs.register_hook(torch.Tensor.contiguous)
        by_time = inputs.unflatten(1, (batch, steps)).permute(2, 0, 1, 3).contiguous().unbind(0)
        kept = (1 - begins).permute(2, 0, 1).unsqueeze(-1).contiguous().unbind(0)
        states = []
        for drive, keep in zip(by_time, kept, strict=True):
            state = state * keep
            if hidden_bias is None:
                state = self._lstm(drive, hidden, state)
            else:
                state = self._gru(drive, hidden, hidden_bias, state)
            states.append(state)
        return torch.stack(states, 2)

    def after_burn_in(
        self, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor, steps: int
    ) -> Tensor:
        """Return the outputs after a burn-in, (P, N, T - steps, width).

        Its `steps`, the first ones, bring a stored state up to date, without gradients. The other arguments are those
        of `__call__`.
        """
        if steps:
            with torch.no_grad():
                state = self(tensors, x[:, :, :steps], begins[..., :steps], state)[:, :, -1]
        return self(tensors, x[:, :, steps:], begins[..., steps:], state)[..., : self.width]

    def _lstm(self, drive: Tensor, weight: Tensor, state: Tensor) -> Tensor:
        output, cell = state.split(self.width, -1)
        gates = affine(output.contiguous(), weight, drive)
        enter, forget, leave = sigmoid(gates[..., : 3 * self.width]).split(self.width, -1)
        cell = forget * cell + enter * torch.tanh(gates[..., 3 * self.width :])
        return torch.cat([leave * torch.tanh(cell), cell], -1)

    def _gru(self, drive: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        recurrent = affine(state, weight, bias)
        both, width = 2 * self.width, self.width
        reset, update = sigmoid(drive[..., :both] + recurrent[..., :both]).split(width, -1)
        proposed = torch.tanh(drive[..., both:] + reset * recurrent[..., both:])
        return (1 - update) * proposed + update * state


class States(Stacked):
    """Recurrent states of the running episodes, (P, N, S)."""

    def __init__(self, state: Tensor):
        self.tensors = {"state": state}
        self.begins = state.new_zeros(state.shape[:2])  # always 0 while acting, since `reset` clears ended episodes

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Set the states of ended episodes, (P, N), to 0."""
        if ended.any():
            state = self.tensors["state"]
            state.mul_(torch.from_numpy(~ended).to(state).unsqueeze(-1))


class ActingMemory(States):
    """Recurrent states of running episodes that act."""

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the policy's inputs for observations (P, N, ...); advance the states."""
        raise NotImplementedError


class RecurrentActorCritic(ActorCritic):
    """Actor and critic behind a shared recurrent core."""

    def _trunk(self, hp: SimpleNamespace) -> list[Any]:
        self.core = Core("memory", hp.memory, self.encoder.features, hp.width)
        self.state_size = self.core.state_size
        return [self.encoder, self.core]

    def states(self, num_envs: int) -> States:
        """Return the states at the start of num_envs episodes."""
        vector = self.parameters.vector
        return States(vector.new_zeros(len(vector), num_envs, self.state_size))

    @torch.no_grad()
    def step(self, obs: Tensor, memory: States) -> Tensor:
        """Return the action distribution's parameters, and advance the states.

        Observations are (P, N, ...).
        """
        params, _, states = self.sequences(obs, memory.begins, memory.tensors["state"], learning=False)
        memory.tensors["state"].copy_(states.squeeze(2))
        return params

    @torch.no_grad()
    def value_after(self, both: Tensor) -> Tensor:
        """Return the values (P, B) of observations, given recurrent states.

        Each row of `both` holds an observation and a state: (P, B, numbers of an observation + S).
        """
        size = self.state_size
        obs = both[..., :-size].reshape(*both.shape[:2], *self.obs_shape).contiguous()
        begins = both.new_zeros(both.shape[:2])
        return self.sequences(obs, begins, both[..., -size:].contiguous(), learning=False)[1]

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.sequences(batch["obs"], batch["begins"], batch["memory"])[:2]

    def sequences(
        self, obs: Tensor, begins: Tensor, state: Tensor, learning: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return action parameters, values and states of N sequences.

        Args:
            obs: observations of one sequence after another, (P, N * T, ...).
            begins: see `Core`, (P, N * T).
            state: state before the first step, (P, N, S).
            learning: whether results have gradients.

        Returns:
            Parameters of the action distributions (P, N * T, ...), values v(s) (P, N * T), and states (P, N, T, S).
        """
        tensors, actor, critic, log_std = self._leaves if learning else self._views
        form = (state.shape[1], -1)
        features, begins = self.encoder(tensors, obs), begins.view(len(begins), *form)
        features = features.view(len(features), *form, features.shape[-1])  # after unflatten, ONNX knows no axes
        states = self.core(tensors, features, begins, state)
        outputs = states[..., : self.core.width].flatten(1, 2)
        params, values = self._params(actor, outputs, log_std), self.critic(critic, outputs)
        return self._masked(params, obs), values.squeeze(-1), states
