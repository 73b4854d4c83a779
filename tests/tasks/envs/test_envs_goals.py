"""Functions of goals: the environment's own, at once where that gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from rekindle.tasks.envs import EnvSpec, goals_of
from rekindle.tasks.networks.goal_conditioning import goal_of


def test_rewards_are_those_of_the_environment() -> None:
    goals = goals_of(EnvSpec("goal_envs:Point-v0", {"dense": True}))
    assert (goals.achieved, goals.desired) == (slice(0, 2), slice(2, 4))
    assert goals.desired == goal_of({"goal_conditioning": "hyper"}, EnvSpec("goal_envs:Point-v0"), "here")
    achieved, desired = np.array([[0, 0], [3, 4]], np.float32), np.array([[0, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(goals.reward(achieved, desired), [-1, -5])


@pytest.mark.parametrize("ends", [False, True])
def test_a_method_of_one_goal_is_called_for_each(ends: bool) -> None:
    terminated = goals_of(EnvSpec("goal_envs:Point-v0", {"ends": ends})).terminated
    assert terminated is not None
    achieved = np.array([[0, 0], [0, 1]], np.float32)
    assert terminated(achieved, np.zeros((2, 2), np.float32)).tolist() == [ends, False]


def test_bits_keep_their_type() -> None:
    goals = goals_of(EnvSpec("goal_envs:Bits-v0"))
    assert goals.terminated is None
    assert goals.reward(np.eye(4, dtype=np.float32)[:2], np.eye(4, dtype=np.float32)[[0, 2]]).tolist() == [0, -1]
