"""Networks of CrossQ: policy and critics with batch renormalization, and no targets.

The critics see a batch and its next observations together, so that one batch has the moments of both: Bhatt et al.
(2024), arXiv:1902.05605, section 3.

Notation: P members, B batch, c critics of a member.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ...cuda.graphs import captured
from ...networks.fused.autograd import Autograd
from ...networks.mlp import Parameters, actor_layers, affine, initialize, shapes_of
from ...networks.renorm import RenormMLP
from ...rng import streams
from .actions import NormalizedActions
from .networks import ActorCritics, Batch, NetworkForm


class RenormActorCritics(ActorCritics):
    """`ActorCritics` with batch renormalization, whose own values are the targets."""

    def __init__(
        self,
        inputs: int,
        actions: NormalizedActions,
        form: NetworkForm,
        hp: SimpleNamespace,
        seeds: list[int],
        device: torch.device,
    ):
        """Initialize the networks. The arguments are those of `ActorCritics`."""
        members, model = len(seeds), hp.model
        self.head, self.copies, self.online = form.head, form.copies, form.copies * members
        self.padding, self.autograd = int(inputs == 1), Autograd()
        numbers, values = inputs + self.padding, max(2, form.values) if form.copies == 1 else form.values
        self.used_values = form.values
        pi = RenormMLP("actor", [numbers, *actor_layers(model), self.head.outputs], model.activation, self.head.gain)
        q_sizes = [
            numbers + actions.continuous_dim,
            *(model.critic_hidden or [model.critic_width] * model.layers),
            values,
        ]
        q = RenormMLP("critic", q_sizes, model.activation, last_gain=1.0)
        self.actor = initialize([pi], Parameters(shapes_of([pi]), members, device), seeds)
        critic_seeds = [streams.seed_of(seed, "critic", copy) for seed in seeds for copy in range(self.copies)]
        self.critics = initialize([q], Parameters(shapes_of([q]), self.online, device), critic_seeds)
        self.actor_vector, self.critic_vector = self.actor.vector, self.critics.vector.view(members, -1)
        self.critic_vectors = {"critic": self.critic_vector}
        self.actor_moments = Parameters(pi.moment_shapes, members, device)
        self.critic_moments = Parameters(q.moment_shapes, self.online, device)
        for moments in (self.actor_moments, self.critic_moments):
            for name, view in moments.views.items():
                view.fill_(name.endswith("variance"))
        steps, critic_steps = torch.zeros(members, 1, device=device), torch.zeros(self.online, 1, device=device)
        self._pi_renorm, self._pi_moments = pi, pi.moments(self.actor_moments.views, steps)
        self._q_renorm, self._q_moments = q, q.moments(self.critic_moments.views, critic_steps)
        self.tensors = {
            "actor": self.actor_vector,
            "critic": self.critic_vector,
            "actor_moments": self.actor_moments.vector,
            "critic_moments": self.critic_moments.vector.view(members, -1),
            "actor_steps": steps,
            "critic_steps": critic_steps.view(members, -1),
        }

    # --- acting ---

    def hidden(self, obs: Tensor) -> Tensor:
        return self._pi_renorm.run(self.actor.views, self._pi_moments, self._padded(obs), learn=False)[1]

    def outputs(self, z: Tensor) -> Tensor:
        weight, bias = self._pi_renorm.layers(self.actor.views)[-1]
        return self.head(self.actor.views, affine(z, weight, bias), z)

    @captured
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        rows = obs.shape[1]
        if rows == 1:  # see Exactness in networks/mlp.py
            obs = torch.cat([obs, obs], 1)
        out, z = self._pi_renorm.run(self.actor.views, self._pi_moments, self._padded(obs), learn=False)
        return self.head(self.actor.views, out, z)[:, :rows], z[:, :rows]

    def values(self, obs: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self._padded(obs), numbers], -1).repeat_interleave(self.copies, 0)
        return self._by_copies(self._q_renorm.run(self.critics.views, self._q_moments, x, learn=False)[0])

    # --- learning ---

    def actor_outputs(self, obs: Tensor, learn: bool) -> Tensor:
        """Return action parameters of observations, (P, B, outputs).

        If the policy learns, they have gradients, and its moments are updated.
        """
        tensors = self.actor.leaves if learn else self.actor.views
        out, z = self._pi_renorm.run(tensors, self._pi_moments, self._padded(obs), learn)
        return self.head(tensors, out, z)

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.actor_outputs(batch["obs"], learn=False), self.actor_outputs(batch["next_obs"], learn=False)

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        obs = torch.cat([batch["obs"], batch["next_obs"]], 1)
        x = torch.cat([self._padded(obs), torch.cat([numbers, next_numbers], 1)], -1)
        learn = torch.is_grad_enabled()
        tensors = self.critics.leaves if learn else self.critics.views
        both = self._q_renorm.run(tensors, self._q_moments, x.repeat_interleave(self.copies, 0), learn)[0]
        q, next_q = self._by_copies(both).split([numbers.shape[1], next_numbers.shape[1]], 2)
        return q, next_q.detach()

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        return self.values(batch["obs"], numbers)

    def imitating_outputs(self, obs: Tensor) -> Tensor:
        out, z = self._pi_renorm.run(self.actor.leaves, self._pi_moments, self._padded(obs), learn=False)
        return self.head(self.actor.leaves, out, z)

    def actor_gradient(self, losses: Tensor) -> Tensor:
        return self.actor.joined(torch.autograd.grad(losses.sum(), list(self.actor.leaves.values())))

    def critic_gradient(self, losses: Tensor) -> Tensor:
        gradients = torch.autograd.grad(losses.sum(), list(self.critics.leaves.values()))
        return self.critics.joined(gradients).view_as(self.critic_vector)

    def move_target(self, tau: Tensor) -> None:
        """Do nothing; there are no targets."""

    def of(self, member: int) -> dict[str, Tensor]:
        names = super().of(member) | self.actor_moments.of(member)
        for copy in range(self.copies):
            moments = self.critic_moments.of(self.copies * member + copy)
            names |= {name.replace("critic", f"critic{copy}", 1): tensor for name, tensor in moments.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Do nothing; there are no targets."""

    def _by_copies(self, values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, self.copies))[..., : self.used_values]
