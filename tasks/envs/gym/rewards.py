"""Results of steps, and vector rewards, weighed into one number.

Environments of several objectives, such as MO-Gymnasium's, return a vector as reward. Its weighted sum is what an
algorithm learns from. Its parts are entries of `info`: the sum of each over an episode is reported as ``return.0``,
``return.1``, ..., like the returns of behaviours, so a study can optimize them, too.
"""

from __future__ import annotations

import reprlib
from typing import Any

import gymnasium as gym
import numpy as np

from ...errors import text_of
from ..agents.adapter import RETURN
from ..base.arrays import Array, other_type
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


def check_step(result: Any, spec: EnvSpec) -> None:
    """Raise EnvSpecError unless a step has returned what Gymnasium's do."""
    try:
        if not isinstance(result, tuple | list):
            raise TypeError("no tuple")
        _, reward, terminated, truncated, _ = result
        float(reward)
        for value, allowed in ((reward, "buif"), (terminated, "bui"), (truncated, "bui")):
            if words := other_type(value, allowed):
                raise TypeError(words)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise EnvSpecError(
            f"{spec.id}: step returns (observation, reward, terminated, truncated, info), as Gymnasium's does, with a "
            f"number, two booleans and a dict, but it returned {reprlib.repr(result)} ({text_of(error)})"
            f"{_cure(result)}"
        ) from None


def _cure(result: Any) -> str:
    if not isinstance(result, tuple) or len(result) != 5:
        old = isinstance(result, tuple) and len(result) == 4
        return "; old Gym's done is terminated, or truncated at a time limit; give both" if old else "; fix it"
    try:
        reward = np.asarray(result[1])
    except (ValueError, RuntimeError):  # of lists of several lengths, or a tensor with a gradient
        return "; return the number itself, such as reward.item()"
    if reward.ndim and reward.size == 1:
        cure = 'if the code is not yours, write "reward_weights": [1] in the environment\'s JSON'
        return (
            f"; return the number itself, such as reward{'.item()' if hasattr(result[1], 'item') else '[0]'}, or {cure}"
        )
    return unweighed(reward) or "; fix it"
