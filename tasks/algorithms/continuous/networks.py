"""Networks of actor-critics: a policy, critics and their targets.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...envs.base.masks import mask_in
from ...networks.acting import ActingMLP, acting_mlp
from ...networks.distributions import log_softmax
from ...networks.layer_norm import LayerNormMLP
from ...networks.masked_logits import FORBIDDEN, allowed_in
from ...networks.mlp import MLP, Network, Parameters, actor_layers, critic_layers, initialize, shapes_of
from ...networks.recurrent import ActingMemory, Core
from ...networks.residual import ResidualMLP
from ...rng import streams
from ...rng.streams import Bits
from .actions import Head, NormalizedActions
from .noise import Noise

Batch = Mapping[str, Tensor]
FORMS = {"none": MLP, "layer": LayerNormMLP, "simba": ResidualMLP}  # by `critic.norm`, `critic.block` and `model.block`
USES = 3  # of critics in a gradient step: learning, as targets, and for the policy


class NetworkForm(NamedTuple):
    """Form of an algorithm's networks.

    Attributes:
        hp: hyperparameters, of which `model` and `critic` are used.
        head: last layer of the policy, which has the action space.
        copies: critics of a member.
        values: outputs of a critic, such as one for each choice.
        target_actor: whether the policy has a target network, too.
    """

    hp: SimpleNamespace
    head: Head
    copies: int = 2
    values: int = 1
    target_actor: bool = False


class ActorCritics(Stacked):
    """Policy π(a|s), critics qᵢ(s, a), and their targets.

    The c critics of P members form one stack of cP networks, side by side, so they are computed together.

    Attributes:
        copies: c.
        actor: parameters of P policies.
        critics, targets: parameters of cP critics, and of their targets.
        actor_vector, critic_vector, target_vector: these parameters as (P, D), (P, cD) and (P, cD).
        actor_target: parameters of the policies' targets, if the form has them.
        followers: vectors of targets, each with that of the networks that it follows.
        learned: parameters that the critics' loss is differentiated by, by network.
        pi, critic_form: multilayer perceptrons of policy and critics.
        cores: recurrent cores of policy and critics, if any.
        mask: columns of the action mask in observations, if any.
    """

    scratch: ClassVar[tuple[str, ...]] = ("_acting",)
    cores: Sequence[Core] = ()

    def __init__(self, shape: tuple[int, ...], form: NetworkForm, seeds: list[int], device: torch.device):
        """Initialize the networks.

        Args:
            shape: shape of an observation.
            form: form of the networks.
            seeds: seeds of the members.
            device: device of all tensors.
        """
        actions, hp, members, model = form.head.actions, form.hp, len(seeds), form.hp.model
        self.head, self.copies, self.used_values = form.head, form.copies, form.values
        self.actions, self.mask = actions, mask_in(shape)
        inputs = shape[0] - (0 if self.mask is None else self.mask.stop - self.mask.start)
        self.padding = max(0, 2 - inputs)  # with two rows of weights, as long as stored states have them
        numbers, (of_pi, of_q) = inputs + self.padding, self.forms(hp)
        pi_sizes = [numbers, *actor_layers(model), self.head.outputs]
        self.pi = of_pi("actor", pi_sizes, model.activation, self.head.gain)
        values = max(2, form.values) if form.copies == 1 else form.values
        q_sizes = [numbers + actions.continuous_dim, *critic_layers(model), values]
        self.critic_form = of_q("critic", q_sizes, model.activation, last_gain=1.0)

        of_actor: list[Network] = [self.pi, *self.cores[:1], self.head]
        self.actor = initialize(of_actor, Parameters(shapes_of(of_actor), members, device), seeds)
        of_critic: list[Network] = [self.critic_form, *self.cores[1:]]
        critic_seeds = [streams.seed_of(seed, "critic", twin) for seed in seeds for twin in range(form.copies)]
        self.critics = initialize(of_critic, Parameters(shapes_of(of_critic), len(critic_seeds), device), critic_seeds)
        self.targets, self.actor_target = self.critics.copy(), self.actor.copy() if form.target_actor else None
        self.actor_vector = self.actor.vector
        self.critic_vector, self.target_vector = (x.vector.view(members, -1) for x in (self.critics, self.targets))
        self.followers, self.learned = [(self.target_vector, self.critic_vector)], {"critic": self.critics}
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}
        if self.actor_target is not None:
            self.tensors["actor_target"] = self.actor_target.vector
            self.followers.append((self.actor_target.vector, self.actor_vector))

    def forms(self, hp: SimpleNamespace) -> tuple[type[MLP], type[MLP]]:
        """Return the classes of policy and critics."""
        return FORMS[hp.model.block], FORMS[hp.critic.norm if hp.critic.block == "none" else hp.critic.block]

    @property
    def critic_vectors(self) -> dict[str, Tensor]:
        """Vectors (P, D) of all that is `learned`, by network."""
        return {name: part.vector.view(len(self.actor_vector), -1) for name, part in self.learned.items()}

    # --- acting ---

    @cached_property
    def _acting(self) -> ActingMLP:
        return acting_mlp(self.pi, self.actor)

    def memory(self, num_envs: int) -> ActingMemory | None:
        """Return the recurrent states at the start of num_envs episodes; None here."""
        return None

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the policy's inputs for observations, and its next recurrent states.

        Observations are (P, N, ...).
        """
        return obs, None

    def inputs(self, obs: Tensor) -> Tensor:
        """Return the first layer's inputs, (P, N, inputs), without gradients.

        The argument is what `memory` returns.
        """
        return self._padded(self.encoded(obs))

    def encoded(self, obs: Tensor) -> Tensor:
        """Return what the networks see of observations (P, N, ...), without gradients."""
        return obs

    def outputs(self, obs: Tensor, learn: bool = False) -> Tensor:
        """Return the parameters of action distributions, (P, N, outputs).

        To learn, they have gradients in the actor's `leaves`.
        """
        return self.masked(self._outputs(self.actor.leaves if learn else self.actor.views, self.inputs(obs)), obs)

    def masked(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Return action parameters (P, B, outputs) without the choices that observations forbid."""
        if self.mask is None:
            return outputs
        return torch.where(self.actions.allowed(allowed_in(obs, self.mask)), outputs, FORBIDDEN)

    @property
    def capturable(self) -> bool:
        """Return whether acting can run as a CUDA graph."""
        return self.actor_vector.is_cuda

    @captured
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action distributions' parameters, and the last hidden activations z.

        Observations are (P, N, inputs), with any N; the results are (P, N, ...).
        """
        out, z = self._acting(self.inputs(obs))
        return self.masked(self.head(self.actor.views, out, z), obs), z

    def values(self, obs: Tensor, numbers: Tensor) -> Tensor:
        """Return the critics' values, (P, c, N, n).

        Observations are (P, N, inputs), and the actions' continuous numbers (P, N, k), which alone get gradients.
        """
        return self._values(self.critics.views, self.inputs(obs), numbers)

    def noise(self, keys: Callable[[str], Bits], num_envs: int) -> Noise:
        """Return the exploration noise, drawn from these random streams."""
        return self.head.noise(keys, num_envs, self.actor.views)

    # --- learning ---

    def encode(self, batch: Batch) -> Batch:
        """Return the batch in the form that the other methods take."""
        return batch

    def encode_again(self, batch: Batch) -> Batch:
        """Return an encoded batch as the actor sees it, after the critics."""
        return batch

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return action parameters for a batch and for its next observations.

        The latter are those of the target policy, if there is one.
        Each is (P, B, outputs); only the first has gradients.
        """
        next_actor = self.actor_target or self.actor
        next_outputs = self._outputs(next_actor.views, self._padded(batch["next_obs"]))
        return self.learning_outputs(batch), self.masked(next_outputs, batch["next_obs"])

    def learning_outputs(self, batch: Batch) -> Tensor:
        """Return action parameters for a batch, (P, B, outputs), with gradients."""
        return self.masked(self._outputs(self.actor.leaves, self._padded(batch["obs"].detach())), batch["obs"])

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' values of a batch, and the targets' next values.

        They are q(s, c, ·) for numbers c (P, B, k), and q'(s', c', ·) for the next numbers c', each (P, c, B, n).
        """
        q = self._values(self.critics.leaves, self._padded(batch["obs"]), numbers, self._dropped(batch, 0))
        next_obs, factors = self._padded(batch.get("target_obs", batch["next_obs"])), self._dropped(batch, 1)
        return q, self._values(self.targets.views, next_obs, next_numbers, factors)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        """Return the critics' values of numbers c, (P, c, B, n).

        Gradients pass to c only.
        """
        obs = self._padded(self.encode_again(batch)["obs"].detach())
        return self._values(self.critics.views, obs, numbers, self._dropped(batch, 2))

    def actor_gradient(self, losses: Tensor) -> Tensor:
        """Return the actor's gradient (P, D) of mean losses (P, B)."""
        return self.actor.gradient(losses.mean(1))

    def critic_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of mean losses (P, B) in `critic_vectors`."""
        leaves = [leaf for parameters in self.learned.values() for leaf in parameters.leaves.values()]
        gradients = iter(torch.autograd.grad(losses.mean(1).sum(), leaves))
        parts = [part.joined(list(islice(gradients, len(part.leaves)))) for part in self.learned.values()]
        return torch.cat([part.view(len(losses), -1) for part in parts], 1)

    def _outputs(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return action parameters for the first layer's inputs."""
        return self.head(tensors, *self.pi.run(tensors, x))

    def _dropped(self, batch: Batch, use: int) -> Sequence[Tensor]:
        """Return the factors of hidden layers in one of `USES`, if any."""
        if "dropout" not in batch:
            return ()
        return batch["dropout"][:, use].flatten(0, 1).split(self.critic_form.sizes[1:-1], -1)

    def _values(
        self, tensors: Mapping[str, Tensor], x: Tensor, numbers: Tensor, factors: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return critics' values (P, c, B, n) for inputs and numbers."""
        return self._of_copies(tensors, self.beside(torch.cat([x, numbers], -1)), factors)

    def _of_copies(self, tensors: Mapping[str, Tensor], x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        """Return critics' values (P, c, B, n) for inputs (cP, B, ...)."""
        values, _ = self.critic_form.run(tensors, x, factors)
        if values.requires_grad:  # else sums of the gradient would be in an order that depends on the loss and on P
            values.register_hook(torch.Tensor.contiguous)
        return values.unflatten(0, (-1, self.copies))[..., : self.used_values]

    def beside(self, x: Tensor) -> Tensor:
        """Repeat (P, ...) for the critics of each member, (cP, ...)."""
        return x if self.copies == 1 else x.unsqueeze(1).expand(-1, self.copies, *x.shape[1:]).flatten(0, 1)

    def _padded(self, obs: Tensor) -> Tensor:
        """Return the inputs in observations, without their mask."""
        if self.mask is not None:
            obs = torch.cat([obs[..., : self.mask.start], obs[..., self.mask.stop :]], -1)
        return functional.pad(obs, (0, self.padding)) if self.padding else obs

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """Move the targets: θ' ← θ' + tau (θ - θ').

        tau is (P, 1); 0 leaves the targets, 1 copies θ.
        """
        for target, vector in self.followers:
            target.lerp_(vector, tau)

    @property
    def parameters(self) -> ActorCritics:
        """The networks themselves, which return parameters by name."""
        return self

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the vectors."""
        return self.named(member, self.actor, self.critics)

    def named(self, member: int, of_actor: Parameters, of_critics: Parameters) -> dict[str, Tensor]:
        """Return one member's tensors by name, those of its critics with numbers."""
        names = of_actor.of(member)
        for copy in range(self.copies):
            critic = of_critics.of(self.copies * member + copy)
            names |= {name.replace("critic", f"critic{copy}", 1): tensor for name, tensor in critic.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Copy one member's online networks into its targets."""
        for target, vector in self.followers:
            target[member].copy_(vector[member])


class ActorImitator:
    """A policy that learns from demonstrations.

    The loss is the squared error of the normalized means of numbers, and -log π of choices.
    """

    state_size = 0

    def __init__(self, policy: ActorCritics, actions: NormalizedActions):
        self.policy, self.actions, self.parameters, self.distribution = policy, actions, policy.actor, self

    def __call__(self, batch: Batch) -> tuple[Tensor, None]:
        """Return the parameters of the action distributions, (P, B, outputs), with gradients."""
        return self.policy.outputs(batch["obs"], learn=True), None

    def imitation_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the losses (P, B) of imitating the environments' actions."""
        mean, logits = self.actions.greedy_outputs(outputs)
        numbers, choices = self.actions.normalize(actions)
        losses = [(torch.tanh(mean) - numbers).square().mean(-1)] if self.actions.continuous_dim else []
        if choices is not None and logits is not None:
            losses.append(-log_softmax(logits).gather(-1, choices.unsqueeze(-1)).squeeze(-1))
        return sum(losses[1:], losses[0])
