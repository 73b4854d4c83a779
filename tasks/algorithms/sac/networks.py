"""Networks of soft actor-critic: a policy, twin critics and their targets.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...networks.distributions import log_softmax
from ...networks.fused.autograd import Autograd, Tape
from ...networks.fused.mlp import ActingMLP, FusedMLP
from ...networks.mlp import (
    ACTIVATIONS,
    MLP,
    Network,
    Parameters,
    actor_layers,
    affine,
    critic_layers,
    initialize,
    shapes_of,
)
from ...networks.optimizers import Optimizer
from ...networks.recurrent import ActingMemory, Core
from ...rng import streams
from ...rng.streams import Bits
from .actions import Head, Noise, SoftActions, head_for

TWINS = 2
Batch = Mapping[str, Tensor]


class SoftActorCritic(Stacked):
    """Policy π(a|s), critics q₁(s, a) and q₂(s, a), and their targets.

    The critics and targets of P members form one stack of 4P networks, so they are computed together.

    Attributes:
        actor: parameters of P policies.
        critics: parameters of 4P critics: the twins of every member side by side, then all of their targets.
        actor_vector, critic_vector, target_vector: these parameters as (P, D), (P, 2D) and (P, 2D).
        critic_vectors: vectors that the critics' loss is differentiated by, by network.
        autograd: computes the losses' gradients: torch's autograd or a tape.
        cores: recurrent cores of policy and critics, if any.
    """

    cores: Sequence[Core] = ()

    def __init__(self, inputs: int, actions: SoftActions, hp: SimpleNamespace, seeds: list[int], device: torch.device):
        """Initialize the networks.

        Args:
            inputs: numbers in an observation.
            actions: action space.
            hp: hyperparameters, of which `model`, batch_size and those of exploration are used.
            seeds: seeds of the members.
            device: device of all tensors.
        """
        members, model, rows = len(seeds), hp.model, hp.batch_size
        self.head, self.twins = head_for(actions, hp), TWINS * members  # twins of all members: the learning critics
        self.padding = int(inputs == 1)  # see Exactness in networks/mlp.py
        numbers = inputs + self.padding
        pi = MLP("actor", [numbers, *actor_layers(model), self.head.outputs], model.activation, last_gain=0.01)
        q_sizes = [numbers + actions.continuous_dim, *critic_layers(model), actions.num_discrete]
        q = MLP("critic", q_sizes, model.activation, last_gain=1.0)

        of_actor: list[Network] = [pi, *self.cores[:1], self.head]
        self.actor = initialize(of_actor, Parameters(shapes_of(of_actor), members, device), seeds)
        self.actor_vector = self.actor.vector
        of_critic: list[Network] = [q, *self.cores[1:]]
        critic_seeds = [streams.seed_of(seed, "critic", twin) for seed in seeds for twin in range(TWINS)]
        self.critics = initialize(of_critic, Parameters(shapes_of(of_critic), 2 * self.twins, device), critic_seeds)
        self.critic_vector, self.target_vector = self.critics.vector.view(2, members, -1)  # of [4P, D] twice [P, 2D]
        self.target_vector.copy_(self.critic_vector)
        self.critic_vectors = {"critic": self.critic_vector}
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}

        self._pi, self._pi_layers = pi, pi.layers(self.actor.views)
        self._q, self._q_layers = q, q.layers(self.critics.views)
        self._online_layers = [(weight[: self.twins], bias[: self.twins]) for weight, bias in self._q_layers]
        plain = type(self) is SoftActorCritic and type(self.head) is Head  # a tape cannot differentiate anything else
        self.autograd: Autograd | Tape = Tape() if plain else Autograd()
        activation = ACTIVATIONS[model.activation]
        self._acting = ActingMLP.of(pi.sizes, activation, self.actor_vector)
        self._fused_pi = FusedMLP(pi.sizes, activation, self.actor_vector, members, 2 * rows)  # and next observations
        self._online_vector = self.critics.vector[: self.twins]
        self._fused_q = FusedMLP(q.sizes, activation, self._online_vector, 2 * self.twins, rows)

    # --- acting ---

    def memory(self, num_envs: int) -> ActingMemory:
        """Return the recurrent state of num_envs environments at the start of episodes."""
        return ActingMemory()

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the policy's inputs for observations, and its next recurrent states.

        Observations are (P, N, ...).
        """
        return obs, None

    def hidden(self, obs: Tensor) -> Tensor:
        """Return the policy's last hidden activations, (P, N, width).

        Observations are (P, N, inputs), with any N.
        """
        return self._pi.hidden(self._pi_layers, self._padded(obs))

    def outputs(self, z: Tensor) -> Tensor:
        """Return the parameters of the action distributions, (P, N, outputs).

        z are the policy's last hidden activations, (P, N, width).
        """
        return self.head(self.actor.views, affine(z, *self._pi_layers[-1]), z)

    @property
    def capturable(self) -> bool:
        """Return whether acting can run as a CUDA graph."""
        return self.actor_vector.is_cuda

    @captured
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action distributions' parameters, and the last hidden activations z.

        Observations are (P, N, inputs), with any N; the results are (P, N, ...).
        """
        rows = obs.shape[1]
        if self._acting is not None:
            out, z = map(torch.from_numpy, self._acting(self._padded(obs)))
            return self.head(self.actor.views, out, z), z
        if rows == 1:  # see Exactness in networks/mlp.py
            obs = torch.cat([obs, obs], 1)
        z = self.hidden(obs)
        return self.outputs(z)[:, :rows], z[:, :rows]

    def values(self, obs: Tensor, numbers: Tensor) -> Tensor:
        """Return both critics' values, (P, 2, N, n), without gradients.

        Observations are (P, N, inputs) with any N, and the actions' continuous numbers (P, N, k).
        """
        x = torch.cat([self._padded(obs), numbers], -1).repeat_interleave(TWINS, 0)
        return self._q(self._online_layers, x).unflatten(0, (-1, TWINS))

    def noise(self, keys: Callable[[str], Bits], num_envs: int) -> Noise:
        """Return the exploration noise, drawn from these random streams."""
        return self.head.noise(keys, num_envs, self.actor.views)

    # --- learning ---

    def encode(self, batch: Batch) -> Batch:
        """Return the batch in the form that the other methods take."""
        return batch

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return action parameters for a batch and for its next observations.

        Each is (P, B, outputs); only the first has gradients.
        """
        return self._outputs_of(batch["obs"].detach(), batch["next_obs"])

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' values of a batch, and the targets' next values.

        They are q(s, c, ·) for numbers c (P, B, k), and q'(s', c', ·) for the next numbers c', each (P, 2, B, n).
        """
        obs, next_obs = self._padded(batch["obs"]), self._padded(batch["next_obs"])
        q, target, _ = self._fused_q(self.critics.vector, obs, numbers, next_obs, next_numbers, TWINS)
        return q, target

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        """Return both critics' values of numbers c, (P, 2, B, n).

        Gradients pass to c only.
        """
        obs = self._padded(batch["obs"])
        return self._fused_q(self._online_vector, obs, numbers, num_copies=TWINS, learn=False)[0]

    def actor_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient (P, D) of losses with respect to the actor."""
        return self.autograd.gradient(losses, self._fused_pi.leaf)

    def critic_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of losses with respect to `critic_vectors`, side by side."""
        return self.autograd.gradient(losses, self._fused_q.leaf).view_as(self.critic_vector)

    def _outputs_of(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        out, next_out, z = self._fused_pi(self.actor_vector, self._padded(obs), no_grad_inputs=self._padded(next_obs))
        return self.head.learn(self.actor, self._fused_pi.leaf, out, next_out, z)

    def features(self, obs: Tensor) -> Tensor:
        """Return the actor's inputs for observations (P, B, ...), without gradients."""
        return self._padded(obs)

    def _padded(self, obs: Tensor) -> Tensor:
        return functional.pad(obs, (0, 1)) if self.padding else obs

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """Move the targets: θ' ← θ' + tau (θ - θ').

        tau is (P, 1); 0 leaves the targets, 1 copies θ.
        """
        self.target_vector.lerp_(self.critic_vector, tau)

    @property
    def parameters(self) -> SoftActorCritic:
        """The networks themselves, which return parameters by name."""
        return self

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the vectors."""
        names = self.actor.of(member)
        for twin in range(TWINS):
            twins = self.critics.of(TWINS * member + twin)
            names |= {name.replace("critic", f"critic{twin}", 1): tensor for name, tensor in twins.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Copy one member's online critics into its targets."""
        self.target_vector[member].copy_(self.critic_vector[member])


class SoftImitator:
    """A policy that learns from demonstrations.

    The loss is the squared error of the normalized means of numbers, and -log π of choices.
    """

    state_size = 0

    def __init__(self, policy: SoftActorCritic, actions: SoftActions):
        self.policy, self.actions, self.parameters, self.distribution = policy, actions, policy.actor, self

    def __call__(self, batch: Batch) -> tuple[Tensor, None]:
        """Return the parameters of the action distributions, (P, B, outputs), with gradients."""
        policy, tensors = self.policy, self.policy.actor.leaves
        layers = policy._pi.layers(tensors)
        z = policy._pi.hidden(layers, policy.features(batch["obs"]))
        return policy.head(tensors, affine(z, *layers[-1]), z), None

    def imitation_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the losses (P, B) of imitating the environments' actions."""
        mean, _, logits = self.actions.split(outputs)
        numbers, choices = self.actions.normalize(actions)
        losses = [(torch.tanh(mean) - numbers).square().mean(-1)] if self.actions.continuous_dim else []
        if choices is not None:
            losses.append(-log_softmax(logits).gather(-1, choices.unsqueeze(-1)).squeeze(-1))
        return sum(losses[1:], losses[0])


class FixedEntropy:
    """Constant entropy coefficients α, (P, terms)."""

    def __init__(self, alpha: Tensor):
        self.alpha = alpha

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Change nothing."""


class LearnedEntropy(Stacked):
    """Learned entropy coefficients α = exp(log_alpha), (P, terms).

    They move the entropies H towards their targets:

        J = log α (H - target),   dJ/dlog α = H - target

    arXiv:1812.05905, eq. 18, with log α in place of the factor α, as in the authors' code.
    """

    def __init__(self, alpha: Tensor, targets: Tensor, hp: SimpleNamespace):
        """Initialize the coefficients and their optimizer.

        Args:
            alpha: initial coefficients, (P, 1).
            targets: target entropies, (P, terms).
            hp: values of `optimizer_space`.
        """
        self.targets = targets
        self._parameters = Parameters({"log_alpha": targets.shape[1:]}, len(alpha), alpha.device)
        self._parameters.views["log_alpha"].copy_(alpha.log().expand_as(targets))
        self._optimizer = Optimizer(self._parameters.vector, hp)
        self.tensors = {"log_alpha": self._parameters.vector, **self._optimizer.tensors}

    @property
    def alpha(self) -> Tensor:
        """Current coefficients, (P, terms)."""
        return self._parameters.views["log_alpha"].exp()

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Take one step, given a batch's mean entropies (P, terms).

        Learning rates are (P, 1).
        """
        self._optimizer.step(self._parameters.joined([entropies - self.targets]), lr)
