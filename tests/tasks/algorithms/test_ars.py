"""ARS: exactness, its step by hand, directions and episodes, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import ARS
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.ars import REST, Generations
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.rng import streams
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

SMALL: dict[str, Any] = {"deltas": 2, "num_envs": 3, "num_steps": 16, "epoch_steps": 192}


class TestARS(ExactnessSuite):
    task = ARS
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"normalize_obs": True, "zero_policy": False},
        {"num_envs": 1, "model.layers": 1, "model.width": 8, "deltas": 3, "top_fraction": 0.7},
    )


@pytest.mark.slow
class TestInBoxes(VariantSuite):
    task = ARS
    env: ClassVar = {"id": "Pendulum-v1", "max_episode_steps": 20}
    hyperparameters: ClassVar = {**SMALL, "alive_bonus_offset": -1.0}


def generations(directions: int = 2, num_envs: int = 3, members: int = 1) -> Generations:
    return Generations(streams.keys(range(members), "directions"), directions, num_envs, 5)


def rewards(*values: float) -> np.ndarray:
    return np.array([values], np.float64)


def test_each_direction_is_played_once_on_both_sides() -> None:
    result = generations()
    assert result.direction.tolist() == [[0, 1, 2]]
    assert result.record(rewards(1, 2, 3), rewards(0, 1, 0) > 0) == []
    assert result.direction.tolist() == [[0, 3, 2]]  # the second environment takes what is left
    assert result.record(rewards(1, 2, 3), rewards(1, 0, 1) > 0) == []
    assert result.direction.tolist() == [[REST, 3, REST]]
    assert result.record(rewards(9, 2, 9), rewards(1, 1, 0) > 0) == [0]
    assert result.returns.tolist() == [[2, 2, 6, 4]]  # no step of those that rest
    result.begin(0)
    assert (result.numbers[0], result.mean[0], result.direction.tolist()) == (1, 3.5, [[0, 1, 2]])


def test_policies_lie_on_both_sides_of_the_unperturbed_one() -> None:
    result = generations(num_envs=6)
    vectors = result.vectors(torch.full((1, 5), 2.0), torch.tensor([[0.5]])).numpy()
    first, second = result.deltas(0)
    np.testing.assert_allclose(vectors[:4] - 2, 0.5 * np.stack([first, second, -first, -second]), atol=1e-6)
    assert (vectors[4:] == 2).all()  # there are only four sides
    result.begin(0)
    assert not np.isclose(result.deltas(0), [first, second]).any()


def test_directions_are_standard_normal() -> None:
    many = Generations(streams.keys((0,), "directions"), 400, 1, 50).deltas(0)
    assert abs(many.mean()) < 4 / 20000**0.5
    assert abs(many.std() - 1) < 4 / 40000**0.5


def test_the_step_is_that_of_the_paper() -> None:
    """Of three directions the best two are followed: σ is that of their returns 1, 5, 2, 2, which is √3."""
    made = ARS("CartPole-v1").init(deltas=3, top_fraction=0.6, lr=0.1)
    learner: Any = ARS.learner(made.env, (0,), [made.hyperparameters or {}])
    learner.generations.returns[0] = [1, 0, 2, 5, 1, 2]
    deltas = learner.generations.deltas(0)
    learner.follow(0)
    expected = 0.1 / (2 * 3**0.5) * ((1 - 5) * deltas[0] + (2 - 2) * deltas[2])
    np.testing.assert_allclose(learner.policy.parameters.vector[0, : len(expected)].numpy(), expected, rtol=1e-5)


def test_one_environment_spends_no_step_on_resting() -> None:
    made = ARS("CartPole-v1").init(**unflatten({**SMALL, "num_envs": 1}))
    learner: Any = ARS.learner(made.env, (0,), [made.hyperparameters or {}])
    for _ in range(20):
        learner.iterate()
        assert (learner.generations.direction != REST).all()
    assert learner.updates()[0] > 1


def test_episodes_that_rest_are_abandoned_with_the_generation() -> None:
    made = ARS("CartPole-v1").init(**unflatten({**SMALL, "num_steps": 1}))
    learner: Any = ARS.learner(made.env, (0,), [made.hyperparameters or {}])
    while not learner.updates()[0]:
        learner.iterate()
    assert (learner.generations.running == 0).all()
    assert learner.generations.direction.tolist() == [[0, 1, 2]]
    assert abs(learner.envs.obs).max() <= 0.05  # the first observations of new episodes


def test_images_are_refused() -> None:
    with pytest.raises(UnsupportedSpace, match=r"ARS on own_envs:ImageWalk-v0: its policy has no encoder"):
        ARS("own_envs:ImageWalk-v0").init()


@pytest.mark.slow
def test_cartpole_is_learned() -> None:
    made = ARS("CartPole-v1", seed=0).init()
    made.fit(20)
    assert made.evaluate() > 450
