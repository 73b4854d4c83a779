"""Intrinsic curiosity module (ICM): Pathak et al. (2017), arXiv:1705.05363.

Features φ of observations are trained to reveal the action between two of them. The reward is the error of predicting
the next features:

    â = g(φ(s), φ(s')),   φ̂ = f(φ(s), a),   r = ½ ‖φ̂ - φ(s')‖²                    eq. 6, with η = strength
    L = (1 - β) L_inverse(â, a) + β ½ ‖φ̂ - φ(s')‖²                                 eq. 7

L_inverse is -log π for choices, and the squared distance in a Box. Images have their own convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...spaces import Space, real
from ..checkpoint.member_state import Part
from ..experience.returns import average
from ..learner import Learner
from .action_encoding import ActionEncoder
from .demonstrations import Examples
from .signal import Signal, TrainedNetworks, encoder, perceptron, signal_space


def icm_space() -> Space:
    """Return the hyperparameters of ICM; beta weighs forward against inverse loss."""
    beta = real(0.05, 0.5, default=0.2, accept=(0.0, 1.0), when={"use": True})
    return signal_space(3e-4, (1e-3, 1e-1, 1e-2), beta=beta)


class ICM(Signal):
    """ICM of P members."""

    name = "icm"
    episodic = False

    def build(self, learner: Learner, examples: Examples | None) -> dict[str, Part | None]:
        width = self.hp.width
        self.actions = ActionEncoder(learner.envs.action_space, f"ICM on {learner.env.id}", learner.device)
        self.encoder = encoder("icm", learner)
        self.features = perceptron("icm.features", self.encoder.features, width, width, layers=1)
        self.inverse = perceptron("icm.inverse", 2 * width, width, self.actions.outputs, layers=1)
        self.forward = perceptron("icm.forward", width + self.actions.size, width, width, layers=1)
        perceptrons = (self.features, self.inverse, self.forward)
        self.trained = TrainedNetworks([self.encoder, *perceptrons], learner.seeds, learner.device)
        return {"learned": self.trained}

    def _features(self, tensors: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return φ(s) and φ(s'), each (P, B, width)."""
        layers = self.features.layers(tensors)
        before, after = (self.features(layers, self.encoder(tensors, batch[name])) for name in ("obs", "next_obs"))
        return before, after

    def _error(self, tensors: Mapping[str, Tensor], before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """Return ½ ‖φ̂ - φ(s')‖², (P, B)."""
        predicted = self.forward(self.forward.layers(tensors), torch.cat([before, self.actions(actions)], -1))
        return 0.5 * (predicted - after).square().sum(-1)

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        tensors = self.trained.views
        before, after = self._features(tensors, batch)
        return self._error(tensors, before, batch["actions"], after)

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, beta, weights = self.trained.leaves, self.hp.beta[:, 0], batch.get("weights")
        before, after = self._features(tensors, batch)
        forward = average(self._error(tensors, before, batch["actions"], after), weights)
        guess = self.inverse(self.inverse.layers(tensors), torch.cat([before, after], -1))
        inverse = average(self.actions.error(guess, batch["actions"]), weights)
        return (1 - beta) * inverse + beta * forward, {"forward_loss": forward, "inverse_loss": inverse}
