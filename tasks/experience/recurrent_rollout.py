"""Rollouts of recurrent policies, batched by whole sequences.

The steps of each environment are consecutive rows of a batch.

Notation: P members, T steps, N environments, S numbers in a recurrent state; a batch has B = N * T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..envs import Envs
from ..networks.distributions import finite
from ..networks.recurrent import RecurrentActorCritic, States
from ..rng import streams
from .rollout import Agent, Batch, Rollout, Truncations, bootstrap, permutations, shuffled


class RecurrentAgent(Agent):
    """An agent with a recurrent policy.

    Its batches have `begins` and `memory` for `RecurrentActorCritic.sequences`.
    """

    policy: RecurrentActorCritic
    memory: States

    def collect(self, envs: Envs, iteration: int, keep_next: bool = False) -> Rollout:
        before = self.memory.tensors["state"].clone()
        return replace(super().collect(envs, iteration, keep_next), memory=before)

    def _sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return finite(self.policy.distribution.sample(self.policy.step(obs, self.memory), noise))

    def _begin(self, memory: States) -> Callable[[Tensor], Tensor]:
        return partial(self.policy.step, memory=memory)

    def _params_after(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert state is not None
        params, _, states = self.policy.sequences(obs, torch.zeros_like(state[..., 0]), state, learning=False)
        return params, states.squeeze(2)

    def _value(self, obs: Tensor, memory: States) -> Tensor:
        return self.policy.sequences(obs, memory.begins, memory.tensors["state"], learning=False)[1]

    def _end_episodes(self, ended: NDArray[np.bool_]) -> None:
        self.memory.reset(ended)

    def evaluate(self, rollout: Rollout) -> tuple[Batch, Tensor, Tensor]:
        batch = self.batch(rollout.obs[:, :-1], rollout.actions, rollout.ended, rollout.memory)
        params, values, next_values = self._replay(rollout)
        log_probs = rollout.log_probs
        if log_probs is None:
            log_probs = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])[0]
        return {**batch, "log_probs": log_probs}, values, next_values

    def values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        return self._replay(rollout)[1:]

    @torch.no_grad()
    def _replay(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Return action parameters, vₜ and v'ₜ of a rollout, from one pass.

        Parameters are (P, B, ...), values (T, P, N).
        """
        assert rollout.memory is not None
        steps, num_envs = len(rollout.rewards), rollout.memory.shape[1]
        begins = torch.cat([torch.zeros_like(rollout.ended[:1]), rollout.ended])
        params, flat_values, states = self.policy.sequences(
            self.flatten_steps(rollout.obs), self.flatten(begins), rollout.memory, learning=False
        )
        form = (num_envs, steps + 1)
        values = flat_values.unflatten(1, form).permute(2, 0, 1).contiguous()
        next_values = values[1:].clone()
        if rollout.truncations:
            bootstrap(with_states(rollout, states), self.policy.value_after, next_values)
        params = params.unflatten(1, form)[:, :, :-1].flatten(1, 2).contiguous()
        return params, values[:-1], rollout.following(next_values)

    def batch(self, obs: Tensor, actions: Tensor, ended: Tensor, memory: Tensor | None = None) -> Batch:
        """Return a batch with obs, actions, beginnings and recurrent states.

        `memory` are the states before the first step; None if episodes start there.
        """
        # The state before the first step belongs to the running episode, or was reset, so it must not be reset again.
        begins = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
        if memory is None:
            memory = ended.new_zeros(*ended.shape[1:], self.policy.state_size)
        return {**super().batch(obs, actions, ended), "begins": self.flatten(begins), "memory": memory}

    def flatten_steps(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(1, 2).contiguous()

    def flatten(self, x: Tensor) -> Tensor:
        return x.permute(1, 2, 0).flatten(1).contiguous()

    def minibatches(
        self, batch: Mapping[str, Tensor], keys: streams.Bits, iteration: int, epochs: int, parts: int
    ) -> Iterator[Batch]:
        """Yield minibatches of whole sequences, `parts` or one for each."""
        num_envs = batch["memory"].shape[1]
        rows = {name: x if name == "memory" else x.unflatten(1, (num_envs, -1)) for name, x in batch.items()}
        for order in permutations(keys, iteration, epochs, num_envs, self.device):
            for part in shuffled(rows, order, min(parts, num_envs)):
                yield {name: x if name == "memory" else x.flatten(1, 2) for name, x in part.items()}


def with_states(rollout: Rollout, states: Tensor) -> Truncations:
    """Return the truncations with recurrent states appended to the final observations.

    States are (P, N, T, S); those at the truncated steps form one row with the observation.
    """
    members, num_envs = states.shape[:2]
    rows = ((t, mask, final.reshape(members, num_envs, -1)) for t, mask, final in rollout.truncations)
    return [
        (t, mask, np.concatenate([final.astype(np.float32), states[:, :, t].cpu().numpy()], -1))
        for t, mask, final in rows
    ]
