"""Random network distillation: Burda et al. (2018), arXiv:1810.12894.

A network learns what another one, random and never changed, says of observations; where it has not been, it is wrong:

    r = ‖f̂(s') - f(s')‖²,   a mean over the features here                           section 2.2

Vectors are whitened by running moments and clipped to ±5, and rewards are divided by the running standard deviation of
their discounted sums (section 2.4). Returns go on over the ends of episodes (section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space
from ..checkpoint.state import Tree
from ..experience.normalizers import ObservationNormalizer, RunningMoments
from ..experience.returns import average
from ..experience.rollout import Rollout
from .demonstrations import Examples
from .learned import Eye, Learned, perceptron
from .signal import Signal, signal_space

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner

CLIP = 5.0


def rnd_space() -> Space:
    """The hyperparameters of random network distillation."""
    return signal_space(1e-4, (1e-2, 1.0, 0.5))


class Distillation(Signal):
    """RND of P members."""

    name = "rnd"
    episodic = False

    def __init__(self, learner: ActingLearner, examples: Examples | None):
        super().__init__(learner, examples)
        width, shape = self.hp.width, learner.envs.obs_shape
        self.eyes = {name: Eye(f"rnd.{name}", learner) for name in ("target", "predictor")}
        self.nets = {
            "target": perceptron("rnd.target", self.eyes["target"].size, width, width, layers=1),
            "predictor": perceptron("rnd.predictor", self.eyes["predictor"].size, width, width),
        }
        networks = [net for name, eye in self.eyes.items() for net in (*eye.networks, self.nets[name])]
        self.learned = Learned(networks, learner.seeds, learner.device)
        self.whitening = ObservationNormalizer(learner.members, shape[0]) if len(shape) == 1 else None
        self.scale = ReturnScale(learner.members, learner.hp.num_envs, self.hp.gamma)

    def watch(self, rollout: Rollout) -> None:
        if self.whitening is not None:
            assert rollout.next_obs is not None
            self.whitening.moments.update(rollout.next_obs.flatten(1, 2).cpu().numpy())

    def _error(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """How wrong the predictor is of observations (P, B, ...), (P, B)."""
        if self.whitening is not None:
            obs = self.whitening.of_batch(obs).clamp(-CLIP, CLIP)
        with torch.no_grad():
            truth = self._say("target", self.learned.views, obs)
        return (self._say("predictor", tensors, obs) - truth).square().mean(-1)

    def _say(self, name: str, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        net = self.nets[name]
        return net(net.layers(tensors), self.eyes[name](tensors, obs))

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._error(self.learned.views, batch["next_obs"])

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        return self.scale(rewards)

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        return average(self._error(self.learned.leaves, batch["next_obs"]), batch.get("weights")), {}

    @property
    def own(self) -> dict[str, Any]:
        return {"scale": self.scale} | ({} if self.whitening is None else {"whitening": self.whitening})


class ReturnScale:
    """Rewards over the running standard deviation of their discounted sums, which no episode's end stops."""

    def __init__(self, members: int, num_envs: int, gamma: Tensor):
        """gamma: (P, 1)."""
        self.gamma = gamma.cpu().double().numpy()
        self.moments = RunningMoments(members, 1)
        self.returns = np.zeros((members, num_envs))

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        """(T, P, N), in the order of time."""
        sums = np.empty((rewards.shape[1], len(rewards), rewards.shape[2]))
        for t, reward in enumerate(rewards):
            self.returns = self.gamma * self.returns + reward
            sums[:, t] = self.returns
        self.moments.update(sums.reshape(len(sums), -1, 1))
        return (rewards / np.sqrt(self.moments.variance + 1e-8)).astype(np.float32)

    def member_state(self, member: int) -> Tree:
        return {"returns": torch.from_numpy(self.returns[member].copy()), **self.moments.member_state(member)}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.returns[member] = tree["returns"].numpy()
        self.moments.load_member(member, tree)
