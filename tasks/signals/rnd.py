"""Random network distillation (RND): Burda et al. (2018), arXiv:1810.12894.

A network f̂ learns to predict the output of a fixed random network f. The reward is its error on the next observation:

    r = ‖f̂(s') - f(s')‖²,   a mean over the features here                           section 2.2

Vectors are whitened by running moments and clipped to ±5. Rewards are divided by the running standard deviation of
their discounted sums (section 2.4). Returns do not end with episodes (section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space
from ..checkpoint.member_state import Part
from ..experience.normalizers import ObservationNormalizer, ReturnMoments
from ..experience.returns import average
from ..learner import Learner
from .demonstrations import Examples
from .signal import Signal, TrainedNetworks, encoder, perceptron, signal_space

CLIP = 5.0


def rnd_space() -> Space:
    """Return the hyperparameters of RND."""
    return signal_space(1e-4, (1e-2, 1.0, 0.5))


class RND(Signal):
    """RND of P members."""

    name = "rnd"
    episodic = False

    def build(self, learner: Learner, examples: Examples | None) -> dict[str, Part | None]:
        width, shape = self.hp.width, learner.envs.obs_shape
        encoders = {name: encoder(f"rnd.{name}", learner) for name in ("target", "predictor")}
        features = encoders["target"].features
        self.networks = {
            "target": (encoders["target"], perceptron("rnd.target", features, width, width, layers=1)),
            "predictor": (encoders["predictor"], perceptron("rnd.predictor", features, width, width)),
        }
        every = [network for pair in self.networks.values() for network in pair]
        self.trained = TrainedNetworks(every, learner.seeds, learner.device)
        self.whitening = ObservationNormalizer(learner.members, shape[0]) if len(shape) == 1 else None
        gamma = vars(self.hp).get("gamma", learner.hp.gamma)
        self.scale = ReturnScale(learner.members, learner.hp.num_envs, gamma.cpu().double().numpy())
        return {"learned": self.trained, "whitening": self.whitening, "scale": self.scale}

    def observe(self, batch: Mapping[str, Tensor], counted: np.ndarray | None = None) -> None:
        if self.whitening is not None:
            self.whitening.update(batch["next_obs"].cpu().numpy(), counted)

    def observe_rewards(self, rewards: Tensor) -> None:
        self.scale.update(rewards.unsqueeze(-1).cpu().numpy())

    def scaled(self, rewards: Tensor) -> Tensor:
        return rewards / torch.from_numpy(np.sqrt(self.scale.variance + 1e-8)).to(rewards)

    def _error(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Return the predictor's mean squared error, (P, B)."""
        if self.whitening is not None:
            obs = self.whitening.of_batch(obs).clamp(-CLIP, CLIP)
        with torch.no_grad():
            target = self._output("target", self.trained.views, obs)
        return (self._output("predictor", tensors, obs) - target).square().mean(-1)

    def _output(self, name: str, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        encode, net = self.networks[name]
        return net(net.layers(tensors), encode(tensors, obs))

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._error(self.trained.views, batch["next_obs"])

    def normalize(self, rewards: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
        return self.scale(rewards, counted)

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        return average(self._error(self.trained.leaves, batch["next_obs"]), batch.get("weights")), {}


class ReturnScale(ReturnMoments):
    """Division of rewards by the running standard deviation of their discounted sums.

    The sums do not end with episodes.
    """

    def __call__(self, rewards: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
        """Update the statistics with rewards (T, P, N), and return them scaled.

        `counted` (T, P, N) selects steps; None takes all. The others add nothing to the sums.
        """
        self.learn(rewards if counted is None else rewards * counted, np.zeros(rewards.shape, bool), counted)
        return (rewards / self.deviation).astype(np.float32)
