"""Recurrent networks of actor-critics: policy, critics and targets.

Each network has its own recurrent core. A critic's core takes observations only, and the action enters behind it: q(h,
a). Other actions in the same step therefore need no other recurrent state: Ni et al. (2022), arXiv:2110.05038.

Notation: P members, N environments, B sequences of T steps, L of them learned from, R = B * L rows, S numbers in a
recurrent state. The states side by side, (..., (1 + c) S), are those of the policy and of its c critics.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...experience.sequence_replay import Sequences
from ...networks.recurrent import ActingMemory, Core
from .networks import ActorCritics, Batch, NetworkForm

Sequence = tuple[Tensor, Tensor, Tensor]  # observations, beginnings, state


class RecurrentActorCritics(ActorCritics):
    """`ActorCritics` for batches of sequences.

    The rows of a batch are the L steps of each sequence, one sequence after another.
    """

    def __init__(self, shape: tuple[int, ...], form: NetworkForm, seeds: list[int], device: torch.device):
        """Initialize the networks and their recurrent cores.

        The arguments are those of `ActorCritics`; a batch has R rows.
        """
        model = form.hp.model
        self.cores = [Core(f"{name}.memory", model.memory, shape[0], model.width) for name in ("actor", "critic")]
        super().__init__((model.width,), form, seeds, device)
        self.width, self.state_size = model.width, self.cores[0].state_size
        self.length, self.burn_in, self.n_step = model.sequence_length, model.burn_in, form.hp.n_step

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert state is not None
        states = self.advanced(self.encoded(obs), state)
        return states[..., : self.width].contiguous(), states

    def inputs(self, obs: Tensor) -> Tensor:
        return self._padded(obs)

    def advanced(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the policy's states (P, N, S) after a step."""
        begins = torch.zeros_like(state[..., :1])  # no episode begins between two steps of acting
        return self.cores[0](self.actor.views, inputs.unsqueeze(2), begins, state).squeeze(2)

    def advanced_critics(self, inputs: Tensor, states: Tensor) -> Tensor:
        """Return the critics' states (P, N, c S) after a step.

        Those before it are (P, N, (1 + c) S), with the policy's.
        """
        obs = inputs.unsqueeze(2)
        sequence = self.of_critics({"obs": obs, "begins": obs.new_zeros(obs.shape[:3]), "memory": states})
        after = self.cores[1](self.critics.views, *sequence).squeeze(2)
        return after.unflatten(0, (-1, self.copies)).transpose(1, 2).flatten(2)

    def memory(self, num_envs: int) -> PolicyMemory:
        return PolicyMemory(self, num_envs)

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return action parameters, with gradients, and those n steps later.

        Each is (P, R, outputs).
        """
        policy_state = batch["memory"][..., : self.state_size]
        remembered = self._states(0, self.actor.leaves, (batch["obs"].detach(), batch["begins"], policy_state))
        following = self._outputs(self.actor.views, self._padded(self._rows(remembered.detach(), self.n_step)))
        return self._outputs(self.actor.leaves, self._padded(self._rows(remembered))), following

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        sequence, target_obs = self.of_critics(batch), self.beside(batch.get("target_obs", batch["obs"]).detach())
        target = self._rows(self._states(1, self.targets.views, (target_obs, *sequence[1:])), self.n_step)
        next_q = self._of_copies(self.targets.views, self._join(target, next_numbers), self._dropped(batch, 1))
        online = self._rows(self._states(1, self.critics.leaves, sequence))
        q = self._of_copies(self.critics.leaves, self._join(online, numbers), self._dropped(batch, 0))
        return q, next_q

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        remembered = self._rows(self._states(1, self.critics.views, self.of_critics(self.encode_again(batch))))
        return self._of_copies(self.critics.views, self._join(remembered, numbers), self._dropped(batch, 2))

    def _states(self, core: int, tensors: Mapping[str, Tensor], sequence: Sequence) -> Tensor:
        """Return a core's outputs (M, B, steps, width) after the burn-in."""
        return self.cores[core].after_burn_in(tensors, *sequence, self.burn_in)

    def _rows(self, remembered: Tensor, later: int = 0) -> Tensor:
        """Select outputs at the steps learned from, or later, (M, R, width)."""
        return remembered[:, :, later : later + self.length].flatten(1, 2)

    def of_critics(self, batch: Batch) -> Sequence:
        """Return observations, beginnings and states for all critics, (cP, B, ...)."""
        state = batch["memory"][..., self.state_size :].unflatten(-1, (self.copies, -1))
        state = state.transpose(1, 2).flatten(0, 1).contiguous()  # [P, B, c, S] -> [cP, B, S]
        return self.beside(batch["obs"]), self.beside(batch["begins"]), state

    def _join(self, remembered: Tensor, numbers: Tensor) -> Tensor:
        """Join the core's outputs with the numbers of an action.

        The result is (cP, R, width + k).
        """
        return torch.cat([self._padded(remembered), self.beside(numbers)], -1)


class PolicyMemory(ActingMemory):
    """Recurrent states of each environment's policy while acting.

    In training, those of the critics are beside them, and both are stored as the initial states of sequences.
    """

    def __init__(self, policy: RecurrentActorCritics, num_envs: int, sequences: Sequences | None = None):
        """Set the states of num_envs environments to 0; training gives `sequences`."""
        self.networks, self.sequences = policy, sequences
        sizes = 1 if sequences is None else 1 + policy.copies
        super().__init__(policy.actor_vector.new_zeros(len(policy.actor_vector), num_envs, sizes * policy.state_size))

    @torch.no_grad()
    def __call__(self, obs: Tensor) -> Tensor:
        """Advance the states by observations, and return the policy core's outputs.

        Observations are (P, N, numbers), outputs (P, N, width).
        """
        networks, states, size = self.networks, self.tensors["state"], self.networks.state_size
        inputs = networks.encoded(obs)
        if self.sequences is not None:
            self.sequences.remember(states)
            states[..., size:] = networks.advanced_critics(inputs, states)
        of_policy = networks.advanced(inputs, states[..., :size].contiguous())
        states[..., :size] = of_policy
        return of_policy[..., : networks.width].contiguous()
