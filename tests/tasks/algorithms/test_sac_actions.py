"""Action spaces that SAC refuses; its actions are tested beside its learner."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle.tasks.algorithms.continuous.actions import SoftActions
from rekindle.tasks.envs import Joined
from rekindle.tasks.errors import UnsupportedSpace

FIXED = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))


def test_a_choice_of_one_is_made_beside_numbers() -> None:
    space = spaces.Dict({"a": spaces.Box(-3, 1, (2,), np.float32), "b": spaces.Discrete(1)})
    actions = SoftActions(Joined(space), "here")
    outputs = torch.tensor([[[0.5, -2.0, 0.0, 0.0]]])  # means and log standard deviations, and no logits
    rows = actions.greedy(outputs)
    np.testing.assert_allclose(rows[0, 0], [2 * math.tanh(0.5) - 1, 2 * math.tanh(-2.0) - 1, 0], rtol=1e-6)
    assert torch.equal(actions.act(outputs, torch.zeros(1, 1, 2), None), rows)
    numbers, choices = actions.normalize(rows)
    assert choices is None
    np.testing.assert_allclose(numbers[0, 0], np.tanh([0.5, -2.0]), rtol=1e-6)


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
