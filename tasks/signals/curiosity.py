"""Curiosity: Pathak et al. (2017), arXiv:1705.05363, an intrinsic curiosity module (ICM).

Features φ are what is needed to tell which action led from one observation to the next; what these features become
is foretold from the action, and what cannot be foretold is worth seeing:

    â = g(φ(s), φ(s')),   φ̂ = f(φ(s), a),   r = ½ ‖φ̂ - φ(s')‖²                    eq. 6, with η = strength
    L = (1 - β) L_inverse(â, a) + β ½ ‖φ̂ - φ(s')‖²                                 eq. 7

L_inverse is -log π of a choice, and the squared distance in a Box. Vectors are seen by a
perceptron, images by convolutions before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...spaces import Space, real
from ..experience.returns import average
from .actions import ActionCode
from .demonstrations import Examples
from .learned import Eye, Learned, perceptron
from .signal import Signal, signal_space

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner


def icm_space() -> Space:
    """The hyperparameters of curiosity; beta weighs what is foretold against what features are made for."""
    beta = real(0.05, 0.5, default=0.2, accept=(0.0, 1.0), when={"use": True})
    return signal_space(3e-4, (1e-3, 1e-1, 1e-2), beta=beta)


class Curiosity(Signal):
    """ICM of P members."""

    name = "icm"
    episodic = False

    def __init__(self, learner: ActingLearner, examples: Examples | None):
        super().__init__(learner, examples)
        width, envs = self.hp.width, learner.envs
        self.actions = ActionCode(envs.action_space, f"ICM on {learner.env.id}", learner.device)
        self.eye = Eye("icm", learner)
        self.features = perceptron("icm.features", self.eye.size, width, width, layers=1)
        self.inverse = perceptron("icm.inverse", 2 * width, width, self.actions.outputs, layers=1)
        self.forward = perceptron("icm.forward", width + self.actions.size, width, width, layers=1)
        networks = [*self.eye.networks, self.features, self.inverse, self.forward]
        self.learned = Learned(networks, learner.seeds, learner.device)

    def _see(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        return self.features(self.features.layers(tensors), self.eye(tensors, obs))

    def _surprise(self, tensors: Mapping[str, Tensor], before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """½ of the squared error of what was foretold, (P, B)."""
        foretold = self.forward(self.forward.layers(tensors), torch.cat([before, self.actions(actions)], -1))
        return 0.5 * (foretold - after).square().sum(-1)

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        tensors = self.learned.views
        before, after = self._see(tensors, batch["obs"]), self._see(tensors, batch["next_obs"])
        return self._surprise(tensors, before, batch["actions"], after)

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, beta, weights = self.learned.leaves, self.hp.beta[:, 0], batch.get("weights")
        before, after = self._see(tensors, batch["obs"]), self._see(tensors, batch["next_obs"])
        forward = average(self._surprise(tensors, before, batch["actions"], after), weights)
        guess = self.inverse(self.inverse.layers(tensors), torch.cat([before, after], -1))
        inverse = average(self.actions.error(guess, batch["actions"]), weights)
        return (1 - beta) * inverse + beta * forward, {"forward_loss": forward, "inverse_loss": inverse}
