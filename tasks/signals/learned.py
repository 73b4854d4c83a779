"""Networks of P members beside the policy, each group with Adam and a learning rate of its own.

Notation used for tensor shapes: P members, B batch, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algorithms.separate_critic import ADAM
from ..checkpoint.state import Tree
from ..experience.returns import average
from ..networks.encoders import Encoder, encoder_for
from ..networks.mlp import MLP, Layers, Parameters
from ..networks.optimizers import Optimizer

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner

LAYERS = 2  # hidden ones of every network here


class Eye:
    """What makes vectors of observations: an encoder of its own, of the kind that the policy has."""

    def __init__(self, prefix: str, learner: ActingLearner):
        self.encoder = encoder_for(learner.hp.model, f"{prefix}.eye", learner.envs.obs_shape)
        self.size = self.encoder.features

    @property
    def networks(self) -> list[Encoder | MLP]:
        """Those that need parameters."""
        return [self.encoder]

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """(P, B, ...) -> (P, B, size)."""
        return self.encoder(tensors, obs)


class Learned:
    """The parameters of some networks, and Adam (Kingma and Ba 2015, arXiv:1412.6980) for them.

    Attributes:
        views, leaves: the parameters by name, without and with gradients.
        tensors: all state, each (P, ...).
    """

    def __init__(self, networks: Sequence[Encoder | MLP], seeds: Sequence[int], device: torch.device | str):
        shapes = {name: shape for net in networks for name, shape in net.shapes.items()}
        self.parameters = Parameters(shapes, len(seeds), device)
        for member, seed in enumerate(seeds):
            for net in networks:
                net.initialize(self.parameters, member, seed)
        self.views, self.leaves = self.parameters.views, self.parameters.leaves
        self.optimizer = adam(self.parameters.vector)
        self.tensors = {**self.parameters.tensors, **self.optimizer.tensors}

    def descend(self, losses: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """One step down each member's loss (P,) at learning rates (P, 1), of the members that are `active` (P, 1)."""
        self.optimizer.step(self.parameters.gradient(losses), lr, active)

    def member_state(self, member: int) -> Tree:
        return {**self.parameters.member_state(member), **self.optimizer.member_state(member)}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.parameters.load_member(member, tree)
        self.optimizer.load_member(member, tree)


def adam(vector: Tensor) -> Optimizer:
    """Adam for a vector (P, D), with the constants that a separate critic has."""
    constants = {name: torch.full_like(vector[:, :1], value) for name, value in ADAM.items()}
    return Optimizer(vector, SimpleNamespace(name="adam", **constants))


def perceptron(prefix: str, inputs: int, width: int, outputs: int, last_gain: float = 1.0, layers: int = LAYERS) -> MLP:
    """With `layers` hidden layers of tanh."""
    return MLP(prefix, [inputs, *[width] * layers, outputs], "tanh", last_gain)


class Critic:
    """v(s) of what one signal pays, of P members, fitted to its own returns."""

    def __init__(self, prefix: str, learner: ActingLearner, width: int):
        self.eye = Eye(prefix, learner)
        # What signals pay is small, and a critic that begins with larger values would drown it.
        self.net = perceptron(prefix, self.eye.size, width, 1, last_gain=0.01)
        self.learned = Learned([*self.eye.networks, self.net], learner.seeds, learner.device)

    def __call__(self, obs: Tensor, learning: bool = False) -> Tensor:
        """v of observations (P, B, ...), (P, B)."""
        tensors = self.learned.leaves if learning else self.learned.views
        layers: Layers = self.net.layers(tensors)
        return self.net(layers, self.eye(tensors, obs)).squeeze(-1)

    def learn(self, batch: Mapping[str, Tensor], returns: Tensor, lr: Tensor, active: Tensor | None) -> Tensor:
        """One step of active members towards returns (P, B) at learning rates (P, 1), by the weights of the batch.

        The mean squared error before it, halved, (P,).
        """
        losses = 0.5 * average((self(batch["obs"], learning=True) - returns).square(), batch.get("weights"))
        self.learned.descend(losses, lr, active)
        return losses.detach()
