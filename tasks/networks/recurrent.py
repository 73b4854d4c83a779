"""Recurrent cores of P members, LSTM and GRU, and what acting and learning with a memory need.

Notation: P members, N environments (or sequences), T steps, S numbers in a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..rng import streams
from .mlp import Parameters, affine, orthogonal

if TYPE_CHECKING:
    from .actor_critic import ActorCritic

GATES = {"lstm": 4, "gru": 3}
FORGET_BIAS = 1.0  # Jozefowicz et al. (2015), An empirical exploration of recurrent network architectures


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), by way of tanh; torch's own rounds by position in the array."""
    return 0.5 * (1 + torch.tanh(0.5 * x))


class Core:
    """An LSTM (Hochreiter and Schmidhuber 1997, with forget gates) or GRU (Cho et al. 2014, arXiv:1406.1078).

    Attributes:
        state_size: S; the first `width` numbers of a state are the output, an LSTM's cells follow.
    """

    def __init__(self, prefix: str, kind: str, inputs: int, width: int):
        self.prefix, self.kind, self.width, self.inputs = prefix, kind, width, inputs
        self.gates = GATES[kind]
        self.state_size = 2 * width if kind == "lstm" else width
        size = self.gates * width
        self.shapes = {
            f"{prefix}.input.weight": (inputs, size),
            f"{prefix}.input.bias": (1, size),
            f"{prefix}.hidden.weight": (width, size),
        }
        if kind == "gru":
            self.shapes[f"{prefix}.hidden.bias"] = (1, size)

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Every gate orthogonal, from the member's own stream."""
        for part, rows in (("input", self.inputs), ("hidden", self.width)):
            name = f"{self.prefix}.{part}.weight"
            gates = [orthogonal(streams.key(seed, "init", name, g), rows, self.width, 1.0) for g in range(self.gates)]
            parameters.views[name][member] = torch.cat(gates, 1)
        if self.kind == "lstm":
            parameters.views[f"{self.prefix}.input.bias"][member, :, self.width : 2 * self.width] = FORGET_BIAS

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor) -> Tensor:
        """The states (P, N, T, S) after each step of sequences (P, N, T, inputs).

        `state` (P, N, S) is what is remembered before the first step; where `begins` (P, N, T) is 1 an episode begins
        with that step, and everything before it is forgotten.
        """
        batch, steps = x.shape[1:3]
        weight, bias = tensors[f"{self.prefix}.input.weight"], tensors[f"{self.prefix}.input.bias"]
        hidden, hidden_bias = tensors[f"{self.prefix}.hidden.weight"], tensors.get(f"{self.prefix}.hidden.bias")
        inputs = affine(x.flatten(1, 2), weight, bias)
        if inputs.requires_grad:
            # Otherwise its layout, and with it how the bias's gradient is summed, would depend on P.
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
    """What is remembered of each environment, (P, N, S)."""

    def __init__(self, state: Tensor):
        self.tensors = {"state": state}

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Reset the states where an episode ended, (P, N)."""
        if ended.any():
            state = self.tensors["state"]
            state.mul_(torch.from_numpy(~ended).to(state).unsqueeze(-1))


class Memory(States):
    """What each environment's actor remembers; acts like a policy without one."""

    def __init__(self, policy: ActorCritic, num_envs: int):
        assert policy.core is not None
        vector = policy.parameters.vector
        self.actor, self.distribution = policy, policy.distribution
        super().__init__(vector.new_zeros(len(vector), num_envs, policy.core.state_size))
        self.going_on = vector.new_zeros(len(vector), num_envs)  # no episode begins between two steps of acting

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The distribution's parameters for observations (P, N, ...), which are remembered."""
        params, _, states = self.actor.sequences(obs, self.going_on, self.tensors["state"], learning=False)
        self.tensors["state"].copy_(states.squeeze(2))
        return params

    @torch.no_grad()
    def value_after(self, both: Tensor) -> Tensor:
        """v of observations that follow a state, (P, B); both in one row, (P, B, numbers of an observation + S)."""
        size = self.tensors["state"].shape[-1]
        obs, state = both[..., :-size], both[..., -size:].contiguous()
        seen = obs.reshape(*obs.shape[:2], *self.actor.obs_shape).contiguous()
        begins = both.new_zeros(both.shape[:2])
        return self.actor.sequences(seen, begins, state, learning=False)[1]


def sequences_first(x: Tensor) -> Tensor:
    """(P, T, N, ...) -> (P, N * T, ...), contiguous: the steps of each environment in a row."""
    return x.transpose(1, 2).flatten(1, 2).contiguous()


def with_states(cuts: list[tuple[int, NDArray[np.bool_], NDArray[Any]]], states: Tensor) -> list[tuple[int, Any, Any]]:
    """Cuts whose final observations have what was remembered then in the same row; states (P, N, T, S)."""
    members, num_envs = states.shape[:2]
    flat = ((t, mask, final.reshape(members, num_envs, -1).astype(np.float32)) for t, mask, final in cuts)
    return [(t, mask, np.concatenate([final, states[:, :, t].cpu().numpy()], -1)) for t, mask, final in flat]
