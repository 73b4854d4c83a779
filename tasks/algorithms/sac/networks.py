"""The networks of soft actor-critic: a policy, and two critics with their targets, of P members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from ...checkpoint.member_state import Stacked
from ...networks.mlp import MLP, Parameters, affine
from ...networks.mlp_backward import Dense
from ...networks.optimizers import Optimizer
from ...networks.recurrent import Core
from ...rng import streams
from .actions import SoftActions
from .sde import StateDependentSpread

TWINS = 2


class SoftActorCritic(Stacked):
    """π(a|s) of P members, and q₁(s, a), q₂(s, a) with their targets as one stack of 4P, all one computation.

    Attributes:
        actor: Parameters of P members; critics: of 4P: the twins of every member, side by side, then all their targets.
        actor_vector, critic_vector, target_vector: (P, D) and (P, 2D), what optimizers and targets' steps change.
    """

    def __init__(
        self,
        inputs: int,
        actions: SoftActions,
        hp: SimpleNamespace,
        rows: int,
        seeds: list[int],
        device: torch.device,
        spread: Tensor | None = None,
        cores: Sequence[Core] = (),
    ):
        """inputs: numbers in an observation; hp: the values of `model`; rows: B, of the batches learned from.

        spread: the first standard deviations (P, 1) where they depend on the state, see `soft_sde`.
        cores: the policy's and the critics', where they have a memory; their parameters follow the others.
        """
        members = len(seeds)
        self.twins = TWINS * members
        self.padding = int(inputs == 1)  # products with a vector round otherwise for one member than for many
        hidden = [hp.width] * hp.layers
        self.spread = None if spread is None else StateDependentSpread(actions, hp.width)
        pi = [inputs + self.padding, *hidden, self.spread.outputs if self.spread else actions.outputs]
        q = [inputs + self.padding + actions.numbers, *hidden, actions.choices]
        self._pi = MLP("actor", pi, hp.activation, last_gain=0.01)
        self._q = MLP("critic", q, hp.activation, last_gain=1.0)
        of_actor: list[MLP | Core] = [self._pi, *cores[:1]]
        of_critic: list[MLP | Core] = [self._q, *cores[1:]]
        shapes = _shapes(of_actor)
        if self.spread is not None:
            shapes["actor.log_std"] = self.spread.shape
        self.actor = Parameters(shapes, members, device)
        self.critics = Parameters(_shapes(of_critic), 2 * self.twins, device)
        for member, seed in enumerate(seeds):
            for network in of_actor:
                network.initialize(self.actor, member, seed)
            for twin in range(TWINS):
                for network in of_critic:
                    network.initialize(self.critics, TWINS * member + twin, streams.seed_of(seed, "critic", twin))
        if spread is not None:
            self.actor.views["actor.log_std"][:] = spread.log().unsqueeze(-1) - 0.5 * math.log(hp.width)
        self.actor_vector = self.actor.vector
        self.critic_vector, self.target_vector = self.critics.vector.view(2, members, -1)
        self.target_vector.copy_(self.critic_vector)
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}
        self._pi_layers, self._q_layers = self._pi.layers(self.actor.views), self._q.layers(self.critics.views)
        self._online_layers = [(weight[: self.twins], bias[: self.twins]) for weight, bias in self._q_layers]
        self._dense_pi = Dense(pi, hp.activation, members, 2 * rows, self.actor.vector)
        self._dense_q = Dense(q, hp.activation, 2 * self.twins, rows, self.critics.vector[: self.twins])

    def hidden(self, obs: Tensor) -> Tensor:
        """The activations (P, N, width) of the policy's last hidden layer for observations (P, N, inputs) to act on."""
        return self._pi.hidden(self._pi_layers, self._padded(obs))

    def outputs(self, z: Tensor) -> Tensor:
        """The policy's outputs (P, N, outputs) by those activations."""
        out = affine(z, *self._pi_layers[-1])
        return out if self.spread is None else self.spread(out, z, self.actor.views["actor.log_std"])

    def perturbation(self, z: Tensor, noise: Tensor) -> Tensor:
        """What state-dependent noise, of standard normal numbers (P, N, k, width), adds to means, (P, N, k)."""
        assert self.spread is not None
        return self.spread.perturbation(z, self.actor.views["actor.log_std"], noise)

    def act(self, obs: Tensor) -> Tensor:
        """The policy's outputs (P, N, outputs) for observations (P, N, inputs) of any number."""
        return self.outputs(self.hidden(obs))

    def policy(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The policy's outputs (P, 2B, outputs) for a batch and what followed."""
        return self._policy(torch.cat([batch["obs"], batch["next_obs"]], 1))

    def policy_gradient(self, g: Tensor) -> Tensor:
        """The gradient (P, D) in the actor by that in the last `policy`'s first outputs, (P, B, outputs)."""
        g, of_spread = self._split(g)
        return self._with_spread(self._dense_pi.to_vector(g), of_spread)

    def _policy(self, rows: Tensor) -> Tensor:
        out = self._dense_pi(self._pi_layers, self._padded(rows))
        if self.spread is not None:
            out = self.spread(out, self._dense_pi.hidden, self.actor.views["actor.log_std"])
        return out

    def _split(self, g: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient in the last layer's outputs, and that in log σ if there is one."""
        if self.spread is None:
            return g, None
        return self.spread.back(g, self._dense_pi.hidden[:, : g.shape[1]], self.actor.views["actor.log_std"])

    def _with_spread(self, vector: Tensor, of_spread: Tensor | None) -> Tensor:
        if of_spread is not None:
            end = vector.shape[1] - self.actor.padding  # log σ is the last of the parameters
            vector[:, end - of_spread.shape[1] : end] = of_spread
        return vector

    def q_and_target(self, batch: Mapping[str, Tensor], numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The twins' q(s, c, ·), and their targets' of what followed, each (P, 2, B, n); numbers are (P, B, k)."""
        return self._both_q(self._twice(batch["obs"], numbers), self._twice(batch["next_obs"], next_numbers))

    def critic_gradient(self, g: Tensor) -> Tensor:
        """The gradient (P, 2D) in the critics by that in the last q, (P, 2, B, n)."""
        return self._dense_q.to_vector(g.flatten(0, 1)).view_as(self.critic_vector)

    def q(self, batch: Mapping[str, Tensor], numbers: Tensor) -> Tensor:
        """The twins' q(s, c, ·), (P, 2, B, n)."""
        return self._online_q(self._twice(batch["obs"], numbers))

    def numbers_gradient(self, g: Tensor, numbers: int) -> Tensor:
        """The gradient (P, B, k) in the numbers by that in the last q, (P, 2, B, n)."""
        to_input = self._dense_q.to_input(g.flatten(0, 1)).unflatten(0, (-1, TWINS))
        return (to_input[:, 0] + to_input[:, 1])[..., -numbers:]

    def _both_q(self, x: Tensor, next_x: Tensor) -> tuple[Tensor, Tensor]:
        """q of inputs (2P, B, D), and the targets' of what followed."""
        q, target = self._dense_q(self._q_layers, torch.cat([x, next_x])).split(self.twins)
        return q.unflatten(0, (-1, TWINS)), target.unflatten(0, (-1, TWINS))

    def _online_q(self, x: Tensor) -> Tensor:
        return self._dense_q(self._online_layers, x).unflatten(0, (-1, TWINS))

    def _twice(self, obs: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self._padded(obs), numbers], -1).unsqueeze(1)
        return x.expand(-1, TWINS, -1, -1).reshape(-1, *x.shape[2:])  # [P, 1, B, D] -> [2P, B, D]

    def _padded(self, obs: Tensor) -> Tensor:
        return functional.pad(obs, (0, 1)) if self.padding else obs

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """θ' ← θ' + tau (θ - θ'): tau (P, 1) is the fraction TAKEN from the online critics; 0 leaves θ', 1 copies."""
        self.target_vector.lerp_(self.critic_vector, tau)

    @property
    def parameters(self) -> SoftActorCritic:
        """What knows the parameters by name."""
        return self

    def of(self, member: int) -> dict[str, Tensor]:
        """One member's parameters by name; views of the vectors."""
        names = self.actor.of(member)
        for twin in range(TWINS):
            twins = self.critics.of(TWINS * member + twin)
            names |= {name.replace("critic", f"critic{twin}", 1): tensor for name, tensor in twins.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Makes one member's targets copies of its online critics."""
        self.target_vector[member].copy_(self.critic_vector[member])


def _shapes(networks: Sequence[MLP | Core]) -> dict[str, tuple[int, ...]]:
    return {name: shape for network in networks for name, shape in network.shapes.items()}


class EntropyCoefficients(Stacked):
    """α = exp(log_alpha) of every entropy term, (P, terms), learned so that the entropies come to their targets.

        dJ/dlog_alpha = H - target

    arXiv:1812.05905, eq. 18, with log α in the place of the factor α, as its authors' code has it.
    """

    def __init__(self, start: Tensor, terms: int, hp: SimpleNamespace):
        """start: the first α, (P, 1); hp: the values of `optimizer_space`."""
        parameters = Parameters({"log_alpha": (terms,)}, len(start), start.device)
        self.log_alpha = parameters.views["log_alpha"]
        self.log_alpha.copy_(start.log().expand(-1, terms))
        self.vector = parameters.vector
        self.optimizer = Optimizer(parameters.vector, hp)
        self.tensors = {"log_alpha": parameters.vector, **self.optimizer.tensors}

    @property
    def alpha(self) -> Tensor:
        """(P, terms)."""
        return self.log_alpha.exp()

    def step(self, entropies: Tensor, targets: Tensor, lr: Tensor) -> None:
        """One step on the mean entropies of a batch (P, terms), at learning rates (P, 1)."""
        gradient = torch.zeros_like(self.vector)
        gradient[:, : entropies.shape[1]] = entropies - targets
        self.optimizer.step(gradient, lr)
