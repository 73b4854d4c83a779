"""Vector rewards, weighed into one number; their parts are entries of `info`.

Environments of several objectives, such as MO-Gymnasium's, return a vector as reward. Its weighted sum is what an
algorithm learns from. The sum of each part over an episode is reported as ``return.0``, ``return.1``, ..., like the
returns of behaviours, so a study can optimize them, too.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from ..agents.adapter import RETURN
from ..base.arrays import Array
from ..base.info import as_dict
from ..base.spec import EnvSpec, EnvSpecError

Env = gym.Env[Any, Any]


class WeightedReward(gym.Wrapper[Any, Any, Any, Any]):
    """A stateless wrapper that weighs the parts of a reward."""

    def __init__(self, env: Env, spec: EnvSpec) -> None:
        super().__init__(env)
        self.name, self.weights = spec.id, np.array(spec.reward_weights, np.float64)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, with the weighted sum as reward.

        Raises:
            EnvSpecError: the reward is no vector with as many parts as there are weights.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        parts = np.asarray(reward, np.float64)
        if parts.shape != self.weights.shape:
            cure = f"give {parts.size}" if parts.ndim == 1 else "leave them out"
            raise EnvSpecError(
                f"{self.name}: reward_weights has a number for each part of a reward, but there are "
                f"{len(self.weights)}, and a reward has the shape {parts.shape}; {cure}"
            )
        sums = {f"{RETURN}.{k}": float(part) for k, part in enumerate(parts)}
        return observation, float(self.weights @ parts), terminated, truncated, {**as_dict(info, self.name), **sums}


def unweighed(reward: Array) -> str:
    """Return the cure for a vector as reward, or ""."""
    if (parts := reward.size) < 2:
        return ""
    equal = ", ".join(f"{1 / parts:.3g}" for _ in range(parts))
    return (
        f'; weigh the {parts} parts of its reward: "reward_weights": [{equal}] in the environment\'s JSON, or '
        f"--reward-weights {equal.replace(' ', '')}"
    )
