"""PPO2: exactness, and its differences from PPO."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from fakes import batch_of
from rekindle import PPO, PPO2, Cohort
from rekindle.spaces import UnknownParameter
from rekindle.tasks.algorithms.ppo2 import clipped_value_loss
from rekindle.tasks.testing import ExactnessSuite
from torch import Tensor

SMALL: dict[str, Any] = {
    "epoch_steps": 128,
    "num_steps": 16,
    "num_envs": 4,
    "update_epochs": 2,
    "num_minibatches": 4,
    "target_kl": None,
    "optimizer.lr": 0.03,
    "clip_coef": 0.1,
    "max_grad_norm": 0.1,
}


class TestOnCartPole(ExactnessSuite):
    task = PPO2
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"target_kl": 0.002, "normalize_reward": True, "stats_window_size": 7, "num_steps": 35, "num_minibatches": 5},
        {
            "clip_coef_schedule.name": "cosine",
            "clip_coef_schedule.horizon": 300,
            "clip_value": 0.05,
            "clip_value_schedule.name": "linear",
            "clip_value_schedule.horizon": 300,
            "ent_coef_schedule.name": "exponential",
            "ent_coef_schedule.horizon": 300,
        },
    )
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions


def test_the_value_loss_is_the_worse_of_the_two() -> None:
    old, returns = torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.tensor([[3.0, 3.0, 1.0, 1.0]])
    values = torch.tensor([[3.0, 0.0, 1.1, 5.0]])
    #   moved beyond the range towards the return: judged as if it had stopped at 1.2; away from it: as it is
    expected = 0.5 * torch.tensor([1.8**2, 3.0**2, 0.1**2, 4.0**2]).mean()
    torch.testing.assert_close(clipped_value_loss(values, old, returns, torch.tensor([0.2]))[0], expected)


def test_a_value_that_has_moved_far_enough_is_pulled_no_further() -> None:
    values = torch.tensor([[1.5, 0.5]], requires_grad=True)
    old, returns = torch.tensor([[1.0, 1.0]]), torch.tensor([[3.0, 3.0]])
    clipped_value_loss(values, old, returns, torch.tensor([0.2])).sum().backward()
    assert values.grad is not None
    assert values.grad[0, 0] == 0
    assert values.grad[0, 1] != 0  # one that went the wrong way is pulled back


def test_values_are_clipped_by_the_clip_range_unless_they_have_their_own() -> None:
    default, batch = learner_and_batch(PPO2, clip_coef=0.3)
    same, _ = learner_and_batch(PPO2, clip_coef=0.3, clip_value=0.3)
    other, _ = learner_and_batch(PPO2, clip_coef=0.3, clip_value=0.1)
    batch["values"] = batch["values"] - 0.5  # they have moved towards the returns since
    assert torch.equal(default.loss(batch)[1]["value_loss"], same.loss(batch)[1]["value_loss"])
    assert not torch.equal(default.loss(batch)[1]["value_loss"], other.loss(batch)[1]["value_loss"])


def learner_and_batch(task: Any, **hyperparameters: Any) -> tuple[Any, dict[str, Tensor]]:
    tasks = [task("CartPole-v1", seed=seed).init(num_steps=16, **hyperparameters) for seed in range(2)]
    learner = tasks[0].build_learner(tasks)
    return learner, batch_of(learner)


def test_before_the_first_step_its_loss_is_that_of_ppo() -> None:
    ppo2, batch = learner_and_batch(PPO2)
    ppo, _ = learner_and_batch(PPO)
    torch.testing.assert_close(ppo2.loss(batch)[0], ppo.loss(batch)[0])


def test_the_ratio_is_of_the_actions_that_were_taken() -> None:
    # Olympus' PPO sampled new actions in its update, so that the ratio compared two different actions.
    learner, batch = learner_and_batch(PPO2)
    _, report = learner.loss(batch)
    assert report["approx_kl"].abs().max() < 1e-6
    assert report["clip_fraction"].tolist() == [0, 0]


def test_advantages_are_always_standardized() -> None:
    learner, batch = learner_and_batch(PPO2)
    scaled = {**batch, "advantages": 100 * batch["advantages"] + 7}
    torch.testing.assert_close(learner.loss(scaled)[0], learner.loss(batch)[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(UnknownParameter, match="normalize_advantage"):
        PPO2("CartPole-v1").init(normalize_advantage=False)


def test_every_transition_is_used_and_none_left_over() -> None:
    # Olympus' sampler dropped the last minibatch: with fewer than 32 steps nothing was learned at all.
    with pytest.raises(ValueError, match=r"PPO2: num_steps \* num_envs \(40\) must be divisible by"):
        PPO2("CartPole-v1").init(num_steps=5, num_minibatches=3)
    learner, batch = learner_and_batch(PPO2)
    parts = list(learner.agent.minibatches(batch, learner.order, 0, 4, 4))
    seen = torch.cat([part["returns"] for part in parts[:4]], 1)
    assert torch.equal(seen.sort(1).values, batch["returns"].sort(1).values)


@pytest.mark.slow
def test_the_defaults_learn_cartpole() -> None:
    tasks = [PPO2("CartPole-v1", seed=seed).init() for seed in range(4)]
    Cohort(tasks).fit(25)
    returns = sorted(task.evaluate() for task in tasks)
    assert returns[1] > 400, returns
