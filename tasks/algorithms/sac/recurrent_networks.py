"""The networks of soft actor-critic where each has a memory: a policy, two critics, and the critics' targets.

A critic remembers what was seen, and values an action by that: q(h, a), where the action enters after the memory. So
other actions cost no other memory: Ni et al. (2022), arXiv:2110.05038.

Notation: P members, N environments, B sequences of T steps, L of them learned from, R = B * L rows, S numbers in a
memory's state. The three states beside each other, (..., 3S), are those of the policy and of both critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from ...networks.mlp_backward import Dense
from ...networks.recurrent import Core, States
from ...networks.recurrent_backward import Unrolled, unrolled
from .actions import SoftActions
from .networks import TWINS, SoftActorCritic

Batch = Mapping[str, Tensor]


class RecurrentSoftActorCritic(SoftActorCritic):
    """`SoftActorCritic` for batches of `Sequences`: rows are the L steps of each sequence, one after the other."""

    def __init__(
        self,
        inputs: int,
        actions: SoftActions,
        hp: SimpleNamespace,
        rows: int,
        seeds: list[int],
        device: torch.device,
        spread: Tensor | None,
        n_step: int,
    ):
        """inputs: numbers in an observation; hp: the values of `model`; rows: R; spread: as without a memory."""
        self.cores = [Core(f"{name}.memory", hp.memory, inputs, hp.width) for name in ("actor", "critic")]
        super().__init__(hp.width, actions, hp, rows, seeds, device, spread, self.cores)
        self.width, self.state_size = hp.width, self.cores[0].state_size
        self.length, self.burn_in, self.n_step = hp.sequence_length, hp.burn_in, n_step
        self._actor_memory, self._critic_memory = (unrolled(core) for core in self.cores)
        self._online = {name: self.critics.views[name][: self.twins] for name in self.cores[1].shapes}

    def policy(self, batch: Batch) -> Tensor:
        """The policy's outputs (P, 2R, outputs) at the steps learned from, and n steps later."""
        seen = batch["obs"], batch["begins"], batch["memory"][..., : self.state_size]
        remembered = self._go_through(self._actor_memory, self.actor.views, *seen)
        return self._policy(torch.cat([self._now(remembered), self._then(remembered)], 1))

    def policy_gradient(self, g: Tensor) -> Tensor:
        g, of_spread = self._split(g)
        return self._with_spread(self._through_time(self._dense_pi, self._actor_memory, g), of_spread)

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        obs, begins, state = (x.repeat(2, *[1] * (x.ndim - 1)) for x in self._of_twins(batch))
        both = self._go_through(self._critic_memory, self.critics.views, obs, begins, state)
        online, target = both.split(self.twins)
        return self._both_q(self._join(self._now(online), numbers), self._join(self._then(target), next_numbers))

    def critic_gradient(self, g: Tensor) -> Tensor:
        return self._through_time(self._dense_q, self._critic_memory, g.flatten(0, 1)).view_as(self.critic_vector)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        remembered = self._go_through(self._critic_memory, self._online, *self._of_twins(batch), learning=False)
        return self._online_q(self._join(self._now(remembered), numbers))

    def _go_through(
        self,
        memory: Unrolled,
        tensors: Mapping[str, Tensor],
        obs: Tensor,
        begins: Tensor,
        state: Tensor,
        learning: bool = True,
    ) -> Tensor:
        """What is remembered (M, B, L + n, width) after the burn-in, which gets no gradient."""
        first = self.burn_in
        if first:
            _, state = memory(tensors, obs[:, :, :first], begins[..., :first], state)
        return memory(tensors, obs[:, :, first:], begins[..., first:], state, learning)[0]

    def _now(self, remembered: Tensor) -> Tensor:
        """What is remembered at the steps learned from, (M, R, width)."""
        return remembered[:, :, : self.length].flatten(1, 2)

    def _then(self, remembered: Tensor) -> Tensor:
        """... and n steps later."""
        return remembered[:, :, self.n_step : self.n_step + self.length].flatten(1, 2)

    def _through_time(self, dense: Dense, memory: Unrolled, g: Tensor) -> Tensor:
        """The gradient (M, D) in all parameters by that in the outputs of `dense`, (M, R, outputs)."""
        vector, to_input = dense.to_both(g)
        slopes = to_input[..., : self.width].unflatten(1, (-1, self.length))
        gradient = memory.to_vector(functional.pad(slopes, (0, 0, 0, self.n_step)))  # nothing comes from what followed
        vector[:, dense.used : dense.used + gradient.shape[1]] = gradient  # the memory stands behind the perceptron
        return vector

    def _of_twins(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Observations, beginnings and states, (2P, B, ...)."""
        obs, begins = (batch[name].repeat_interleave(TWINS, 0) for name in ("obs", "begins"))
        state = batch["memory"][..., self.state_size :].unflatten(-1, (TWINS, -1))
        return obs, begins, state.transpose(1, 2).flatten(0, 1).contiguous()  # [P, B, 2, S] -> [2P, B, S]

    def _join(self, remembered: Tensor, numbers: Tensor) -> Tensor:
        """What is remembered and the numbers of an action, (2P, R, width + k)."""
        return torch.cat([self._padded(remembered), numbers.repeat_interleave(TWINS, 0)], -1)


class SoftMemory(States):
    """What the networks remember of each environment while acting: the policy's state, and with `critics` theirs."""

    def __init__(self, policy: RecurrentSoftActorCritic, num_envs: int, critics: bool = True):
        self.networks, self.critics = policy, critics
        self.size = policy.state_size * (1 + TWINS * critics)
        super().__init__(policy.actor_vector.new_zeros(len(policy.actor_vector), num_envs, self.size))

    @property
    def output(self) -> Tensor:
        """What the policy knows of what it saw, (P, N, width)."""
        return self.tensors["state"][..., : self.networks.width].contiguous()

    @torch.no_grad()
    def see(self, obs: Tensor) -> None:
        """Remembers observations (P, N, numbers)."""
        networks, states = self.networks, self.tensors["state"]
        obs, size = obs.unsqueeze(2), networks.state_size
        begins = obs.new_zeros(obs.shape[:3])  # no episode begins between two steps of acting
        own = networks.cores[0](networks.actor.views, obs, begins, states[..., :size].contiguous())
        states[..., :size] = own.squeeze(2)
        if self.critics:
            twins = networks._of_twins({"obs": obs, "begins": begins, "memory": states})
            theirs = networks.cores[1](networks._online, *twins).squeeze(2)
            states[..., size:] = theirs.unflatten(0, (-1, TWINS)).transpose(1, 2).flatten(2)
