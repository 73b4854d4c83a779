"""The networks of soft actor-critic: a policy, and two critics with their targets, of P members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ...checkpoint.member_state import Stacked
from ...networks.fused import Autograd, FusedMLP, Tape, joined
from ...networks.mlp import ACTIVATIONS, MLP, Network, Parameters, affine, initialize, shapes_of
from ...networks.optimizers import Optimizer
from ...networks.recurrent import Core
from ...rng import streams
from ...rng.streams import Bits
from .actions import SoftActions
from .heads import Head, Noise

TWINS = 2
Batch = Mapping[str, Tensor]


class ActingMemory(Protocol):
    """Remembers the observations of running episodes."""

    def __call__(self, obs: Tensor) -> Tensor:
        """Take observations (P, N, ...); returns what the policy acts on."""

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Reset the memory where an episode ended, (P, N)."""


class NoMemory:
    """The memory of a policy that acts on the last observation alone."""

    def __call__(self, obs: Tensor) -> Tensor:
        return obs

    def reset(self, ended: NDArray[np.bool_]) -> None:
        """Do nothing."""


class SoftActorCritic(Stacked):
    """π(a|s) of P members, and q₁(s, a), q₂(s, a) with their targets as one stack of 4P, all one computation.

    Attributes:
        actor: parameters of P members; critics: of 4P: the twins of every member side by side, then all their targets.
        actor_vector, critic_vector, target_vector: (P, D), (P, 2D) and (P, 2D) of these parameters.
        graph: records the losses that gradients are taken of.
        critic_vectors: all that the critics' loss is differentiated with respect to, by network.
    """

    def __init__(
        self,
        inputs: int,
        actions: SoftActions,
        head: Head,
        hp: SimpleNamespace,
        rows: int,
        seeds: list[int],
        device: torch.device,
        cores: Sequence[Core] = (),
    ):
        """Initialize the networks.

        Args:
            inputs: numbers in an observation.
            actions: the action space.
            head: turns the policy network's last layer into the parameters of actions.
            hp: the values of `model`.
            rows: B, of the batches learned from.
            seeds: of the members.
            device: where the networks are.
            cores: the policy's and the critics', if they have a memory.
        """
        members = len(seeds)
        self.head, self.twins = head, TWINS * members
        self.padding = int(inputs == 1)  # see Exactness in networks/mlp.py
        hidden = [hp.width] * hp.layers
        pi = [inputs + self.padding, *hidden, head.outputs]
        q = [inputs + self.padding + actions.continuous_dim, *hidden, actions.num_discrete]
        self._pi = MLP("actor", pi, hp.activation, last_gain=0.01)
        self._q = MLP("critic", q, hp.activation, last_gain=1.0)
        of_actor: list[Network] = [self._pi, *cores[:1], head]
        of_critic: list[Network] = [self._q, *cores[1:]]
        self.actor = initialize(of_actor, Parameters(shapes_of(of_actor), members, device), seeds)
        self.critics = Parameters(shapes_of(of_critic), 2 * self.twins, device)
        initialize(
            of_critic, self.critics, [streams.seed_of(seed, "critic", twin) for seed in seeds for twin in range(TWINS)]
        )
        self.actor_vector = self.actor.vector
        self.critic_vector, self.target_vector = self.critics.vector.view(2, members, -1)
        self.target_vector.copy_(self.critic_vector)
        self.critic_vectors = {"critic": self.critic_vector}
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}
        self._pi_layers, self._q_layers = self._pi.layers(self.actor.views), self._q.layers(self.critics.views)
        self._online_layers = [(weight[: self.twins], bias[: self.twins]) for weight, bias in self._q_layers]
        plain = type(self) is SoftActorCritic and type(head) is Head  # the others have more to differentiate
        self.graph: Autograd | Tape = Tape() if plain else Autograd()
        activation = ACTIVATIONS[hp.activation]
        self._fused_pi = FusedMLP(pi, activation, self.actor_vector, members, 2 * rows)
        self._fused_q = FusedMLP(q, activation, self.critics.vector[: self.twins], 2 * self.twins, rows)

    # --- acting ---

    def memory(self, num_envs: int) -> ActingMemory:
        """Return what remembers the observations of so many environments, from an episode's beginning."""
        return NoMemory()

    def hidden(self, obs: Tensor) -> Tensor:
        """Return the policy's last hidden activations (P, N, width) for observations (P, N, inputs) of any number."""
        return self._pi.hidden(self._pi_layers, self._padded(obs))

    def outputs(self, z: Tensor) -> Tensor:
        """Return the parameters of actions (P, N, outputs) by these activations."""
        return self.head(self.actor.views, affine(z, *self._pi_layers[-1]), z)

    def noise(self, keys: Callable[[str], Bits], num_envs: int) -> Noise:
        """Return the noise of training, with the random streams of these keys."""
        return self.head.noise(keys, num_envs, self.actor.views)

    # --- learning ---

    def encode(self, batch: Batch) -> Batch:
        """Return the batch as the other methods need it."""
        return batch

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the parameters of actions (P, B, outputs): for a batch, with gradients, and for what followed."""
        return self._outputs_of(batch["obs"].detach(), batch["next_obs"])

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the twins' q(s, c, ·), (P, 2, B, n), and their targets' of what followed; numbers c are (P, B, k)."""
        rest = joined(self._padded(batch["next_obs"]), next_numbers, TWINS)
        q, target, _ = self._fused_q(self._q_layers, self._padded(batch["obs"]), numbers, rest, TWINS)
        return q, target

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        """Return the values that the twins give to actions c, (P, 2, B, n), with gradients in c only."""
        obs = self._padded(batch["obs"])
        return self._fused_q(self._online_layers, obs, numbers, copies=TWINS, learn=False)[0]

    def actor_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient (P, D) of losses in the actor."""
        return self.graph.gradient(losses, self._fused_pi.leaf)

    def critic_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of losses in the `critic_vectors`, side by side."""
        return self.graph.gradient(losses, self._fused_q.leaf).view_as(self.critic_vector)

    def _outputs_of(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        out, next_out, z = self._fused_pi(self._pi_layers, self._padded(obs), rest=self._padded(next_obs))
        return self.head.learn(self.actor, self._fused_pi.leaf, out, next_out, z)

    def _padded(self, obs: Tensor) -> Tensor:
        return functional.pad(obs, (0, 1)) if self.padding else obs

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """Move targets: θ' ← θ' + tau (θ - θ'), tau (P, 1); 0 leaves θ', 1 copies θ."""
        self.target_vector.lerp_(self.critic_vector, tau)

    @property
    def parameters(self) -> SoftActorCritic:
        """The networks, which know their parameters by name."""
        return self

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the vectors."""
        names = self.actor.of(member)
        for twin in range(TWINS):
            twins = self.critics.of(TWINS * member + twin)
            names |= {name.replace("critic", f"critic{twin}", 1): tensor for name, tensor in twins.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Make one member's targets copies of its online critics."""
        self.target_vector[member].copy_(self.critic_vector[member])


class FixedEntropy:
    """Entropy coefficients α (P, 1) of all terms that stay as they are."""

    def __init__(self, alpha: Tensor):
        self.alpha = alpha

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Change nothing."""


class LearnedEntropy(Stacked):
    """Entropy coefficients α = exp(log_alpha), (P, terms), learned so that the entropies H reach their targets.

        J = log α (H - target),   dJ/dlog α = H - target

    arXiv:1812.05905, eq. 18, with log α in the place of the factor α, as its authors' code has it.
    """

    def __init__(self, alpha: Tensor, targets: Tensor, hp: SimpleNamespace):
        """alpha: the first one, (P, 1); targets: (P, terms); hp: the values of `optimizer_space`."""
        self.targets = targets
        self._parameters = Parameters({"log_alpha": targets.shape[1:]}, len(alpha), alpha.device)
        self._parameters.views["log_alpha"].copy_(alpha.log().expand_as(targets))
        self._optimizer = Optimizer(self._parameters.vector, hp)
        self.tensors = {"log_alpha": self._parameters.vector, **self._optimizer.tensors}

    @property
    def alpha(self) -> Tensor:
        """(P, terms)."""
        return self._parameters.views["log_alpha"].exp()

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Take one step by the mean entropies of a batch (P, terms), at learning rates (P, 1)."""
        self._optimizer.step(self._parameters.joined([entropies - self.targets]), lr)
