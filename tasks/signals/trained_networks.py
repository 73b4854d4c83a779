"""Networks beside the policy, each group with its own Adam.

Notation used for tensor shapes: P members, B batch, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..experience.returns import average
from ..networks.encoders import Encoder, encoder_for
from ..networks.mlp import MLP, Parameters
from ..networks.optimizers import adam
from .host import SignalHost

HIDDEN_LAYERS = 2


class TrainedNetworks(Stacked):
    """The parameters of some networks, and Adam for them.

    Kingma and Ba (2015), arXiv:1412.6980.

    Attributes:
        views: the parameters by name, without gradients.
        leaves: the same, with gradients.
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
        """Take one step down the losses (P,).

        Args:
            losses: of the members.
            lr: learning rates (P, 1).
            active: the members to update, (P, 1); None for all.
        """
        self.optimizer.step(self.parameters.gradient(losses), lr, active)


def encoder(prefix: str, host: SignalHost) -> Encoder:
    """Return an encoder of observations, of the policy's kind."""
    return encoder_for(host.hp.model, f"{prefix}.eye", host.envs.obs_shape)


def perceptron(
    prefix: str, inputs: int, width: int, outputs: int, last_gain: float = 1.0, layers: int = HIDDEN_LAYERS
) -> MLP:
    """Return a perceptron with `layers` hidden layers of tanh."""
    return MLP(prefix, [inputs, *[width] * layers, outputs], "tanh", last_gain)


class SignalCritic:
    """v(s) of one signal's rewards, of P members."""

    def __init__(self, prefix: str, host: SignalHost, width: int):
        self.encoder = encoder(prefix, host)
        # Signals pay little: a critic with larger first values would drown them.
        self.net = perceptron(prefix, self.encoder.features, width, 1, last_gain=0.01)
        self.trained = TrainedNetworks([self.encoder, self.net], host.seeds, host.device)

    def __call__(self, obs: Tensor, learning: bool = False) -> Tensor:
        """Return v of observations (P, B, ...), (P, B)."""
        tensors = self.trained.leaves if learning else self.trained.views
        return self.net(self.net.layers(tensors), self.encoder(tensors, obs)).squeeze(-1)

    def update(self, batch: Mapping[str, Tensor], returns: Tensor, lr: Tensor, active: Tensor | None) -> Tensor:
        """Take one step of active members towards returns (P, B).

        Returns:
            The mean squared error before it, halved, (P,).
        """
        losses = 0.5 * average((self(batch["obs"], learning=True) - returns).square(), batch.get("weights"))
        self.trained.descend(losses, lr, active)
        return losses.detach()
