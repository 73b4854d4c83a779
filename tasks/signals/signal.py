"""Base of signals: rewards with their own networks, critic and discount.

Notation used for tensor shapes: P members, T steps, N environments, B batch, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...spaces import Dimension, Space, categorical, log_real, near_one, ordinal
from ..checkpoint.member_state import Composite, Part, Stacked
from ..experience.returns import average
from ..learner import Learner
from ..networks.encoders import Encoder, encoder_for
from ..networks.mlp import MLP, Parameters
from ..networks.optimizers import adam
from .demonstrations import Examples

HIDDEN_LAYERS = 2


class TrainedNetworks(Stacked):
    """Parameters of some networks, trained by Adam.

    Kingma and Ba (2015), arXiv:1412.6980.

    Attributes:
        views: parameters by name, without gradients.
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
        """Take one step down the losses.

        Args:
            losses: losses of the members, (P,).
            lr: learning rates, (P, 1).
            active: members to update, (P, 1); None for all.
        """
        self.optimizer.step(self.parameters.gradient(losses), lr, active)


def encoder(prefix: str, learner: Learner) -> Encoder:
    """Return an encoder of observations of the same kind as the policy's."""
    return encoder_for(learner.hp.model, f"{prefix}.eye", learner.envs.obs_shape)


def perceptron(
    prefix: str, inputs: int, width: int, outputs: int, last_gain: float = 1.0, layers: int = HIDDEN_LAYERS
) -> MLP:
    """Return a perceptron with `layers` hidden layers of tanh."""
    return MLP(prefix, [inputs, *[width] * layers, outputs], "tanh", last_gain)


class SignalCritic:
    """Critic v(s) of one signal's rewards, for P members."""

    def __init__(self, prefix: str, learner: Learner, width: int):
        self.encoder = encoder(prefix, learner)
        # Signals' rewards are small: a critic with larger initial values would drown them.
        self.net = perceptron(prefix, self.encoder.features, width, 1, last_gain=0.01)
        self.trained = TrainedNetworks([self.encoder, self.net], learner.seeds, learner.device)

    def __call__(self, obs: Tensor, learning: bool = False) -> Tensor:
        """Return v (P, B) of observations (P, B, ...)."""
        tensors = self.trained.leaves if learning else self.trained.views
        return self.net(self.net.layers(tensors), self.encoder(tensors, obs)).squeeze(-1)

    def update(self, batch: Mapping[str, Tensor], returns: Tensor, lr: Tensor, active: Tensor | None) -> Tensor:
        """Take one step of active members towards returns (P, B).

        Returns:
            Half of the mean squared error before the step, (P,).
        """
        losses = 0.5 * average((self(batch["obs"], learning=True) - returns).square(), batch.get("weights"))
        self.trained.descend(losses, lr, active)
        return losses.detach()


def signal_space(lr: float, strength: tuple[float, float, float], **more: Dimension) -> Space:
    """Return the hyperparameters of a signal.

    Args:
        lr: default learning rate.
        strength: (low, high, default) of the factor of its rewards; low and high are the searched range.
        more: the signal's own hyperparameters, with when={"use": True}.
    """
    on: dict[str, Any] = {"when": {"use": True}}
    low, high, default = strength
    return Space(
        use=categorical(False, True, default=False, structural=True, search=False, silent=True),
        strength=log_real(low, high, default=default, accept=(0.0, 1e6), **on),
        gamma=near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0), **on),
        lr=log_real(3e-5, 3e-3, default=lr, accept=(0.0, 100.0), **on),
        width=ordinal(16, 32, 64, 128, 256, default=64, accept=(2, 65536), structural=True, search=False, **on),
        **more,
    )


class Signal(Composite):
    """A reward that P members compute themselves.

    Attributes:
        name: name of its group of hyperparameters; its metrics start with it.
        episodic: whether its return ends with an episode. If not, an agent gains nothing by dying to see the first
            steps again (Burda et al. 2018, section 2.3).
        trained: its networks.
        critic: critic of its returns.
    """

    name: ClassVar[str]
    episodic: ClassVar[bool]
    trained: TrainedNetworks

    def __init__(self, learner: Learner, examples: Examples | None, discounted: bool = True):
        """Build the critic and the parts.

        Args:
            learner: the learner.
            examples: demonstrations, if any.
            discounted: whether returns have their own critic and discount; off-policy ones do not, see
                `replay_guidance`.
        """
        self.hp = getattr(learner.hp, self.name)
        of_critic: dict[str, Part | None] = {}
        if discounted:
            self.critic = SignalCritic(f"{self.name}.critic", learner, self.hp.width)
            of_critic["critic"] = self.critic.trained
        super().__init__(**of_critic, **self.build(learner, examples))

    def build(self, learner: Learner, examples: Examples | None) -> dict[str, Part | None]:
        """Build `trained`, and return the parts of the state besides the critic."""
        raise NotImplementedError

    def observe(self, batch: Mapping[str, Tensor], counted: np.ndarray | None = None) -> None:
        """Update the running statistics of observations with new steps, as in `rewards`.

        `counted` (P, B) selects steps; None takes all.
        """

    def observe_rewards(self, rewards: Tensor) -> None:
        """Update the statistics of rewards with those (P, B) of replayed steps."""

    def scaled(self, rewards: Tensor) -> Tensor:
        """Scale rewards (P, B) of replayed steps by these statistics."""
        return rewards

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the rewards of a rollout's steps, (P, T * N).

        Args:
            batch: obs, actions and next_obs, each (P, T * N, ...), in order of time.
        """
        raise NotImplementedError

    def normalize(self, rewards: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
        """Update the statistics with rewards (T, P, N), and return them scaled.

        `counted` (T, P, N) selects steps; None takes all.
        """
        return rewards

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss and its metrics, each (P,).

        Args:
            batch: minibatch (P, B, ...), possibly with weights.
            position: number of minibatches before this one, which selects random numbers.
        """
        raise NotImplementedError

    def update_multiplier(self, metrics: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Update the loss's Lagrange multiplier after a step, if it has one.

        Args:
            metrics: metrics of that step's loss.
            active: members to update, (P, 1); None for all.
        """
