"""Networks of CrossQ: policy and critics with batch renormalization, and no targets.

The critics see a batch and its next observations together, so that one batch has the moments of both: Bhatt et al.
(2024), arXiv:1902.05605, section 3.

Notation: P members, B batch, c critics of a member.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ...networks.renorm import Moments, RenormMLP
from .networks import ActorCritics, Batch, NetworkForm


class RenormActorCritics(ActorCritics):
    """`ActorCritics` with batch renormalization, whose own values are the targets.

    Networks learn where gradients are enabled, and otherwise leave their running moments.
    """

    pi: RenormMLP
    critic_form: RenormMLP

    def __init__(self, shape: tuple[int, ...], form: NetworkForm, seeds: list[int], device: torch.device):
        """Initialize the networks; the arguments are those of `ActorCritics`."""
        super().__init__(shape, form, seeds, device)
        members = len(seeds)
        self.targets, self.target_vector, self.followers = self.critics, self.critic_vector, []
        del self.tensors["target"]
        for name, net, copies in (("actor", self.pi, 1), ("critic", self.critic_form, self.copies)):
            net.moments = Moments(net, copies * members, device)
            self.tensors[f"{name}_moments"] = net.moments.vector.view(members, -1)
            self.tensors[f"{name}_steps"] = net.moments.steps.view(members, -1)

    def forms(self, hp: SimpleNamespace) -> tuple[type[RenormMLP], type[RenormMLP]]:
        return RenormMLP, RenormMLP

    def learning_outputs(self, batch: Batch) -> Tensor:
        tensors, obs = self.actor.leaves, self._padded(batch["obs"])
        return self.head(tensors, *self.pi.run(tensors, obs, learn=torch.is_grad_enabled()))

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        obs = self._padded(torch.cat([batch["obs"], batch["next_obs"]], 1))
        x = self.beside(torch.cat([obs, torch.cat([numbers, next_numbers], 1)], -1))
        values, _ = self.critic_form.run(self.critics.leaves, x, learn=torch.is_grad_enabled())
        q, next_q = values.unflatten(0, (-1, self.copies))[..., : self.used_values].chunk(2, 2)
        return q, next_q.detach()

    def of(self, member: int) -> dict[str, Tensor]:
        moments = (net.moments.parameters for net in (self.pi, self.critic_form))
        return super().of(member) | self.named(member, *moments)
