"""Sequence replay for recurrent networks: Kapturowski et al. (2019), R2D2, ICLR.

A sequence starts at every L-th step, and the recurrent states before it are stored next to the transitions. First,
`burn_in` steps without gradients bring the stored state up to date, since older networks made it. Then the networks
learn from the L steps that follow, so every transition is learned from in exactly one sequence.

A sequence continues across the end of an episode, where the states are reset as while acting, so no step is padding.
The last step of a truncated episode is masked, since its next observation is not in the sequence.

Notation: P members, N environments, B sequences, T steps, L of them learned from, S numbers in a recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Dimension, ordinal
from ..checkpoint.state import Tree
from ..rng import streams
from .replay_buffer import Field, Index, ReplayBuffer, RingForm, Sampler


def sequence_space() -> dict[str, Dimension]:
    """Return the hyperparameters of sequences, which a `model` has beside its `memory`.

    With a recurrent core, a batch consists of sequences of `sequence_length` steps, each after `burn_in` steps without
    gradients.
    """
    remembers = {"memory": ("lstm", "gru")}
    return {
        "sequence_length": ordinal(8, 16, 32, default=16, accept=(1, 65536), structural=True, when=remembers),
        "burn_in": ordinal(0, 4, 8, 16, default=8, accept=(0, 65536), structural=True, when=remembers),
    }


class Sequences(Sampler):
    """A sampler of sequences, with the recurrent states at their starts.

    The states before every L-th step are stored in a ring next to the transitions.
    """

    def __init__(self, replay: ReplayBuffer, keys: streams.Bits, state_size: int, hp: SimpleNamespace):
        """Allocate the ring of states.

        Args:
            replay: the transitions.
            keys: random streams of the members, (P,).
            state_size: S.
            hp: hyperparameters, of which model.sequence_length (L), model.burn_in, n_step and batch_size (B * L, the
                transitions learned from at once) are used.
        """
        self.length, self.burn_in = hp.model.sequence_length, hp.model.burn_in
        self.transitions = self.burn_in + self.length + hp.n_step - 1  # of a sequence, T - 1
        super().__init__(replay, keys, hp.batch_size // self.length, hp.n_step)
        room = (replay.slots // self.length + 1) * replay.num_envs
        form = RingForm(replay.members, room, replay.num_envs, {"state": Field((state_size,))})
        self.states = ReplayBuffer(form, replay.device)

    def remember(self, state: Tensor) -> None:
        """Store the recurrent states before a step, (P, N, S)."""
        if self.replay.steps % self.length == 0:
            self.states.add(state=state.cpu().numpy())

    def starts(self, draw: int) -> tuple[Index, Index]:
        """Return the numbers and environments of a draw's sequences, (P, B).

        A sequence starts at the step of its number times L. Drawn are those that are in the replay buffer as a whole.
        """
        replay = self.replay
        first = -(-(replay.steps - replay.size) // self.length)  # rounded up from the oldest step
        last = (replay.steps - self.transitions) // self.length
        index = (self.draws(draw) * ((last + 1 - first) * replay.num_envs)).astype(np.int64)
        return first + index // replay.num_envs, index % replay.num_envs

    def batch(self, draw: int, gamma: Tensor) -> dict[str, Tensor]:
        """Return the sequences of a draw, for discounts gamma (P, 1).

        - obs: observations, and the last next observation, (P, B, T, numbers), T = burn_in + L + n_step.
        - begins: 1 where an episode begins with that observation, (P, B, T).
        - memory: recurrent states before the first of them, (P, B, S).
        - action, reward, discount: those of the L steps, with n-step returns as in the replay buffer, each (P, B * L,
          ...).
        - mask: 0 where a return is cut off, else the factor by which a mean over all rows becomes one over the rest,
          (P, B * L).
        """
        number, env = self.starts(draw)
        rows = self._rows(number, env)
        members, count, steps = rows.shape
        fields = self.replay.batch(rows.reshape(members, -1), ("obs", "reward", "terminated", "truncated"))
        obs, reward, terminated, truncated = (x.unflatten(1, (count, steps)) for x in fields.values())
        learned = rows[:, :, self.burn_in : self.burn_in + self.length].reshape(members, -1)
        last = self.replay.batch(rows[:, :, -1], ("next_obs",))["next_obs"]
        ended = torch.maximum(terminated, truncated)
        nothing = torch.zeros_like(ended[..., :1])
        at = self.states.batch(number % self.states.slots * self.states.num_envs + env, ("state",))
        return {
            "obs": torch.cat([obs, last.unsqueeze(2)], 2),
            "begins": torch.cat([nothing, ended[..., :-1], nothing], 2),  # the last next_obs belongs to its episode
            "memory": at["state"],
            **self.replay.batch(learned, ("action",)),
            **self._returns(reward, terminated, truncated, gamma.to(reward).unsqueeze(-1)),
        }

    def _rows(self, number: Index, env: Index) -> Index:
        """Return the replay buffer's rows (P, B, T - 1) of sequences.

        `number` and `env` (P, B) are their numbers and environments.
        """
        steps = number[..., None] * self.length + np.arange(self.transitions)
        rows: Index = steps % self.replay.slots * self.replay.num_envs + env[..., None]
        return rows

    def _returns(self, reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: Tensor) -> dict[str, Tensor]:
        """Return reward, discount and mask of the steps learned from.

        The arguments cover all steps, (P, B, T - 1); gamma is (P, 1, 1). A return in which the episode terminates has
        no bootstrap, one in which it is cut off is masked.
        """
        total, factor = torch.zeros_like(reward[..., : self.length]), torch.ones_like(gamma)
        alive, bootstrap, mask = (torch.ones_like(total) for _ in range(3))
        for k in range(self.n_step):  # all L returns at once: their kth steps
            at = slice(self.burn_in + k, self.burn_in + k + self.length)
            total, factor = total + factor * alive * reward[..., at], factor * gamma
            terminates = alive * terminated[..., at]
            cut_off = alive * truncated[..., at] * (1 - terminated[..., at])
            alive, bootstrap, mask = alive - terminates - cut_off, bootstrap - terminates, mask - cut_off
        mask = mask.flatten(1)
        counted = mask.sum(1, keepdim=True).clamp(min=1)
        return {
            "reward": total.flatten(1),
            "discount": (factor * bootstrap).flatten(1),
            "mask": mask * (mask.shape[1] / counted),
        }

    def draw(self, number: int, gamma: Tensor, env_steps: int) -> tuple[Index, dict[str, Tensor]]:
        """Return no rows, and the `batch`."""
        return np.empty((self.replay.members, 0), np.int64), self.batch(number, gamma)

    def member_state(self, member: int) -> Tree:
        return self.states.member_state(member)

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.states.load_member(member, tree)


def check_sequences(algorithm: str, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless the hyperparameters allow sequences to be drawn."""
    model, batch, n = values["model"], values["batch_size"], values["n_step"]
    length, burn_in, memory = model["sequence_length"], model["burn_in"], model["memory"]
    if values["replay"]["name"] != "uniform":
        raise ValueError(
            f"{algorithm}: replay.name={values['replay']['name']} draws single transitions, but "
            f"model.memory={memory} learns from sequences; use replay.name=uniform"
        )
    if batch % length:
        near = max(2, round(batch / length)) * length
        raise ValueError(
            f"{algorithm}: with a memory, batch_size ({batch}) must be a multiple of "
            f"model.sequence_length ({length}); try batch_size={near}"
        )
    if batch < 2 * length:
        raise ValueError(
            f"{algorithm}: with a memory, batch_size ({batch}) must be at least two sequences of "
            f"model.sequence_length ({length}); raise the former or lower the latter"
        )
    if model["width"] < 2:
        raise ValueError(f"{algorithm}: with a memory, model.width must be at least 2, but got {model['width']}")
    # This many consecutive steps contain a whole sequence, wherever they begin.
    window, envs = burn_in + 2 * length + n - 2, values["num_envs"]
    for name in ("learning_starts", "buffer_size"):
        if window * envs > values[name]:
            raise ValueError(
                f"{algorithm}: with a memory, (model.burn_in + 2 model.sequence_length + n_step - 2) * num_envs "
                f"({window * envs}) must be at most {name} ({values[name]}); raise the latter or lower the former"
            )
