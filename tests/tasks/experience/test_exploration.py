"""Exploration: schedules, frequencies, bounds, and independence of members."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.experience.exploration import Epsilon, EpsilonGreedy, UniformActions, epsilon_space
from rekindle.tasks.rng import streams

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))


def keys(*seeds: int) -> streams.Bits:
    return streams.keys(seeds, "explore")


def epsilon(name: str, **columns: Any) -> Epsilon:
    values = {"start": [1.0], "final": [0.05], "horizon": [1000.0], **columns}
    return Epsilon(SimpleNamespace(name=name, **{k: torch.tensor(v).unsqueeze(1) for k, v in values.items()}))


def test_linear_epsilon_falls_to_its_final_value_and_stays() -> None:
    schedule = epsilon("linear")
    assert [schedule(t)[0, 0] for t in (0, 500, 1000, 10**9)] == pytest.approx([1, 0.525, 0.05, 0.05])


def test_exponential_epsilon_nears_its_final_value() -> None:
    schedule = epsilon("exponential")
    expected = [1, 0.05 + 0.95 / math.e, 0.05]
    assert [schedule(t)[0, 0] for t in (0, 1000, 10**6)] == pytest.approx(expected)


def test_every_member_has_its_own_epsilon() -> None:
    for name in ("linear", "exponential"):
        two = epsilon(name, start=[1.0, 0.5], final=[0.1, 0.2], horizon=[100.0, 1000.0])
        second = epsilon(name, start=[0.5], final=[0.2], horizon=[1000.0])
        assert two(50)[1, 0] == second(50)[0, 0]
        assert two(50)[0, 0] != two(50)[1, 0]


def test_the_defaults_of_epsilon_are_in_their_space() -> None:
    assert epsilon_space().defaults() == {"name": "linear", "start": 1.0, "final": 0.05, "horizon": 10_000}


def test_epsilon_is_the_frequency_of_uniform_actions() -> None:
    exploration, none = EpsilonGreedy(keys(1, 2), 3, num_envs=50), np.full((2, 50), -1)
    chance = np.array([[0.3], [0.0]])
    explores = np.stack([exploration(t, chance, lambda: none) for t in range(200)]) >= 0
    assert explores[:, 0].mean() == pytest.approx(0.3, abs=0.02)
    assert not explores[:, 1].any()
    actions = np.stack([exploration(t, np.ones((2, 1)), lambda: none) for t in range(200)])
    assert actions.dtype == np.int64
    assert np.bincount(actions.reshape(-1)) / actions.size == pytest.approx([1 / 3] * 3, abs=0.02)


def test_whether_and_how_to_explore_are_independent() -> None:
    actions = EpsilonGreedy(keys(1), 2, num_envs=1000)(0, np.array([[0.5]]), lambda: np.full((1, 1000), -1))
    assert actions[actions >= 0].mean() == pytest.approx(0.5, abs=0.07)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary(4),
        BOX,
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 0], np.float32)),
    ],
)
def test_uniform_actions_are_inside_their_space_and_the_members_own(space: gym.Space[Any]) -> None:
    together = UniformActions(keys(1, 2, 3), space, 4, "here")
    alone = UniformActions(keys(2), space, 4, "here")
    taken = []
    for position in (0, 1, 5000, 2):
        actions = together(position)
        assert actions.shape == (3, 4, *(space.shape or ()))
        for one in actions.reshape(12, *(space.shape or ())):
            assert space.contains(one) or space.contains(one.astype(space.dtype))
        assert actions[1].tobytes() == alone(position)[0].tobytes()
        taken.append(actions)
    assert not np.array_equal(taken[0], taken[1])


def test_uniform_actions_fill_their_box() -> None:
    actions = UniformActions(keys(1), BOX, 1000, "here")(0)[0]
    assert actions.mean(0) == pytest.approx([0, 0.5], abs=0.15)
    assert (actions.min(0) < [-1.9, 0.1]).all()
    assert (actions.max(0) > [1.9, 0.9]).all()


def test_random_actions_of_an_unknown_space_are_refused() -> None:
    with pytest.raises(UnsupportedSpace, match=r"here: random actions are known for Discrete, .* not for Text"):
        UniformActions(keys(1), spaces.Text(3), 1, "here")
