"""The networks of soft actor-critic: a policy, and two critics with their targets, of P members."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from . import streams
from .networks import MLP, Parameters
from .optimizers import Optimizer
from .parts import Stacked
from .soft_actions import SoftActions

TWINS = 2


class SoftActorCritic(Stacked):
    """π(a|s), and q₁(s, a), q₂(s, a) as one stack of 2P members, so that both are one computation.

    Attributes:
        actor: Parameters of P members; critic, target: Parameters of 2P, the twins of a member side by side.
        actor_vector, critic_vector: (P, D) and (P, 2D), what optimizers change.
    """

    def __init__(self, inputs: int, actions: SoftActions, hp: SimpleNamespace, seeds: list[int], device: torch.device):
        """inputs: numbers in an observation; hp: the values of `model`."""
        hidden = [hp.width] * hp.layers
        self._pi = MLP("actor", [inputs, *hidden, actions.outputs], hp.activation, last_gain=0.01)
        self._q = MLP("critic", [inputs + actions.numbers, *hidden, actions.choices], hp.activation, last_gain=1.0)
        self.actor = Parameters(self._pi.shapes, len(seeds), device)
        self.critic, self.target = (Parameters(self._q.shapes, TWINS * len(seeds), device) for _ in range(2))
        for member, seed in enumerate(seeds):
            self._pi.initialize(self.actor, member, seed)
            for twin in range(TWINS):
                self._q.initialize(self.critic, TWINS * member + twin, streams.seed_of(seed, "critic", twin))
        self.target.vector.copy_(self.critic.vector)
        self.actor_vector = self.actor.vector
        self.critic_vector, self.target_vector = (x.vector.view(len(seeds), -1) for x in (self.critic, self.target))
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}
        self._pi_views, self._pi_leaves = (self._pi.layers(x) for x in (self.actor.views, self.actor.leaves))
        self._q_views, self._q_leaves, self._target_views = (
            self._q.layers(x) for x in (self.critic.views, self.critic.leaves, self.target.views)
        )

    def policy(self, obs: Tensor, learn: bool = False) -> Tensor:
        """The policy's outputs (P, B, outputs) for observations (P, B, inputs); with gradients if it is to `learn`."""
        return self._pi(self._pi_leaves if learn else self._pi_views, obs)

    def q(self, obs: Tensor, numbers: Tensor, learn: bool = False) -> Tensor:
        """The twins' q(s, c, ·), (P, 2, B, n), of unit numbers c (P, B, k)."""
        return self._twins(self._q_leaves if learn else self._q_views, obs, numbers)

    def target_q(self, obs: Tensor, numbers: Tensor) -> Tensor:
        """The same of the target networks."""
        return self._twins(self._target_views, obs, numbers)

    def _twins(self, layers, obs: Tensor, numbers: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        x = torch.cat([obs, numbers], -1).unsqueeze(1)
        both = x.expand(-1, TWINS, -1, -1).reshape(-1, *x.shape[2:])  # [P, 1, B, D] -> [2P, B, D]
        return self._q(layers, both).unflatten(0, (-1, TWINS))

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """θ' ← θ' + tau (θ - θ'): tau (P, 1) is the fraction TAKEN from the online critics; 0 leaves θ', 1 copies."""
        self.target_vector.lerp_(self.critic_vector, tau)

    @property
    def parameters(self) -> SoftActorCritic:
        """What knows the parameters by name."""
        return self

    def named(self, member: int) -> dict[str, Tensor]:
        """One member's parameters by name; copies."""
        names = self.actor.named(member)
        for twin in range(TWINS):
            twins = self.critic.named(TWINS * member + twin)
            names |= {name.replace("critic", f"critic{twin}", 1): tensor for name, tensor in twins.items()}
        return names


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
