"""What soft actor-critic refuses to act in; that it acts rightly is held beside its learner."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from rekindle.tasks.algorithms.sac.actions import SoftActions
from rekindle.tasks.envs import Joined
from rekindle.tasks.errors import UnsupportedSpace

FIXED = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            FIXED,
            r"here: the numbers of an action need room between their bounds, but number 1 of Box.* is always 2.0; "
            r"leave it out with a gymnasium.ActionWrapper",
        ),
        (Joined(spaces.Dict({"a": FIXED, "b": spaces.Discrete(2)})), r"number 1 of Joined.* is always 2.0"),
        (spaces.Discrete(1), r"here needs something to decide, but in Discrete\(1\) there is one action only"),
        (spaces.Box(-1, 1, (0,)), r"there is one action only"),
    ],
)
def test_actions_that_leave_nothing_to_decide_are_refused(space: gym.Space[Any], message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message):
        SoftActions(space, "here")
