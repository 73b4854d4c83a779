"""Networks of CrossQ: policy and critics with batch renormalization, and no targets.

The critics see a batch and its next observations together, so that one batch has the moments of both: Bhatt et al.
(2024), arXiv:1902.05605, section 3.

Notation: P members, B batch, c critics of a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ...cuda.graphs import captured
from ...networks.mlp import Parameters, actor_layers, initialize, shapes_of
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
        self.head, self.copies, self.padding = form.head, form.copies, int(inputs == 1)
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
        self.critics = initialize([q], Parameters(shapes_of([q]), len(critic_seeds), device), critic_seeds)
        self.actor_vector, self.critic_vector = self.actor.vector, self.critics.vector.view(members, -1)
        self.critic_vectors = {"critic": self.critic_vector}
        self.actor_moments = Parameters(pi.moment_shapes, members, device)
        self.critic_moments = Parameters(q.moment_shapes, len(critic_seeds), device)
        for moments in (self.actor_moments, self.critic_moments):
            for name, view in moments.views.items():
                view.fill_(name.endswith("variance"))
        steps, critic_steps = torch.zeros(members, 1, device=device), torch.zeros(len(critic_seeds), 1, device=device)
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

    @captured
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        rows = obs.shape[1]
        if rows == 1:  # see Exactness in networks/mlp.py
            obs = torch.cat([obs, obs], 1)
        out, z = self._pi_renorm.run(self.actor.views, self._pi_moments, self._padded(obs), learn=False)
        return self.head(self.actor.views, out, z)[:, :rows], z[:, :rows]

    # --- learning ---

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.outputs(batch["obs"]), self.outputs(batch["next_obs"])

    def learning_outputs(self, batch: Batch) -> Tensor:
        """Return action parameters for a batch, with gradients, and update the moments."""
        return self._outputs(self.actor.leaves, self._padded(batch["obs"]), learn=True)

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        obs, learn = self._padded(torch.cat([batch["obs"], batch["next_obs"]], 1)), torch.is_grad_enabled()
        tensors = self.critics.leaves if learn else self.critics.views
        both = self._renormalized(tensors, obs, torch.cat([numbers, next_numbers], 1), learn)
        q, next_q = both.split([numbers.shape[1], next_numbers.shape[1]], 2)
        return q, next_q.detach()

    def _outputs(self, tensors: Mapping[str, Tensor], x: Tensor, learn: bool = False) -> Tensor:
        out, z = self._pi_renorm.run(tensors, self._pi_moments, x, learn)
        return self.head(tensors, out, z)

    def _values(
        self, tensors: Mapping[str, Tensor], x: Tensor, numbers: Tensor, factors: Sequence[Tensor] = ()
    ) -> Tensor:
        return self._renormalized(tensors, x, numbers, learn=False)

    def _renormalized(self, tensors: Mapping[str, Tensor], x: Tensor, numbers: Tensor, learn: bool) -> Tensor:
        """Return critics' values (P, c, B, n); learning updates their moments."""
        x = self.beside(torch.cat([x, numbers], -1))
        values = self._q_renorm.run(tensors, self._q_moments, x, learn)[0]
        return values.unflatten(0, (-1, self.copies))[..., : self.used_values]

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
