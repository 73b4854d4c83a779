"""Vector rewards: weighed into one number, with their parts as entries of info."""

from __future__ import annotations

from typing import Any

import numpy as np
import own_envs  # noqa: F401  # registers its environments
import pytest
from rekindle import PPO
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs

VECTOR = "own_envs:VectorReward-v0"
SMALL = {"num_steps": 16, "num_envs": 2, "num_minibatches": 1, "update_epochs": 1, "epoch_steps": 32}


def test_a_reward_is_the_weighted_sum_of_its_parts() -> None:
    envs = make_envs(EnvSpec(VECTOR, reward_weights=[2, 0.5]), [1], 1)
    total = 0.0
    for _ in range(40):
        step = envs.step(np.array([[1]]))
        position = step.next_obs[0, 0, 0]
        assert step.reward[0, 0] == pytest.approx(2 * position - 0.5, abs=1e-6)
        total += step.reward[0, 0]
        if step.terminated[0, 0] or step.truncated[0, 0]:
            break
    metrics = envs.info.take_metrics()[0]
    assert 2 * metrics["info.return.0"] + 0.5 * metrics["info.return.1"] == pytest.approx(total)


def test_the_weights_are_part_of_the_identity_and_its_json() -> None:
    spec = EnvSpec(VECTOR, reward_weights=(1, 0))
    assert spec.to_json()["reward_weights"] == [1.0, 0.0]
    assert spec.info == {"return.0": "sum", "return.1": "sum"}
    assert EnvSpec.from_json(spec.to_json()) == spec != EnvSpec(VECTOR, reward_weights=[0, 1])
    assert "reward_weights" not in EnvSpec("CartPole-v1").to_json()


def test_resuming_with_vector_rewards_equals_not_stopping() -> None:
    spec = EnvSpec(VECTOR, reward_weights=[1, 0.1])
    whole = PPO(spec, seed=1).init(**SMALL)
    whole.fit(1)
    state = whole.state_dict()
    whole.fit(2)
    resumed = PPO(spec, seed=1).init(**SMALL)
    resumed.load_state_dict(state)
    resumed.fit(2)
    assert resumed.digest == whole.digest
    assert not whole.inexact


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"id": VECTOR},
            r'weigh the 2 parts of its reward: "reward_weights": \[0.5, 0.5\] .* --reward-weights 0.5,0.5',
        ),
        ({"id": VECTOR, "reward_weights": [1]}, r"there are 1, and a reward has the shape \(2,\); give 2"),
        (
            {"id": "CartPole-v1", "reward_weights": [1, 2]},
            r"there are 2, and a reward has the shape \(\); leave them out",
        ),
        ({"id": VECTOR, "reward_weights": [1, "x"]}, "must be a list of finite numbers, one for each part"),
        ({"id": VECTOR, "reward_weights": [float("nan")]}, "must be a list of finite numbers"),
    ],
)
def test_rewards_and_weights_that_do_not_fit_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(EnvSpecError, match=message):
        make_envs(EnvSpec.from_json(spec), [1], 1)
