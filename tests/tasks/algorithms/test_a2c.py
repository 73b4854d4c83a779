"""A2C: exactness in several kinds of environment, its loss, and learning."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from fakes import batch_of
from rekindle import A2C, Cohort
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {"epoch_steps": 128, "num_envs": 4, "optimizer.lr": 0.01, "max_grad_norm": 0.1}


class TestOnCartPole(ExactnessSuite):
    task = A2C
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"normalize_obs": True, "normalize_reward": True, "optimizer.momentum": 0.5, "stats_window_size": 100},
        {"optimizer.name": "adam", "update_epochs": 2, "num_minibatches": 4, "normalize_advantage": True},
        {
            "num_envs": 1,
            "num_steps": 5,
            "max_grad_norm": None,
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 300,
            "ent_coef_schedule.name": "linear",
            "ent_coef_schedule.horizon": 300,
        },
    )
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions


@pytest.mark.slow
class TestOnPendulum(VariantSuite):
    task = A2C
    env = "Pendulum-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = ({"normalize_advantage": "running", "num_envs": 3}, {"use_sde": True, "sde_sample_freq": 3})
    inert = frozenset({"model.std_init"})  # acts on the first state only


def learner_and_batch(**hyperparameters: Any) -> tuple[Any, dict[str, Tensor]]:
    """A learner of two members, and a rollout of its."""
    tasks = [A2C("CartPole-v1", seed=seed).init(num_steps=16, **hyperparameters) for seed in range(2)]
    learner = tasks[0].build_learner(tasks)
    return learner, batch_of(learner)


def test_nothing_is_differentiated_through_advantages_and_returns() -> None:
    # Olympus' A2C detached neither, so that the critic was pulled towards whatever made the policy's loss small.
    learner, batch = learner_and_batch(vf_coef=0.0, ent_coef=0.0)
    assert not batch["advantages"].requires_grad
    assert not batch["returns"].requires_grad
    losses, _ = learner.loss(batch)
    gradients = torch.autograd.grad(losses.sum(), list(learner.policy.parameters.leaves.values()), allow_unused=True)
    for name, gradient in zip(learner.policy.parameters.shapes, gradients, strict=True):
        if name.startswith("critic."):
            assert gradient is None or not gradient.any(), f"the policy's loss moves {name}"
        else:
            assert gradient is not None and gradient.any(), f"the policy's loss does not move {name}"  # noqa: PT018


def test_the_gradient_is_that_of_the_paper() -> None:
    learner, batch = learner_and_batch(vf_coef=0.7, ent_coef=0.03)
    losses, _ = learner.loss(batch)
    logits, values = learner.policy(batch)
    distribution = torch.distributions.Categorical(logits=logits)
    expected = -(distribution.log_prob(batch["actions"]) * batch["advantages"]).mean(1)
    expected = expected + 0.7 * 0.5 * ((values - batch["returns"]) ** 2).mean(1) - 0.03 * distribution.entropy().mean(1)
    torch.testing.assert_close(losses, expected)
    gradient = learner.policy.parameters.gradient
    torch.testing.assert_close(gradient(losses), gradient(expected))


def test_one_rollout_is_one_step_unless_more_are_asked_for() -> None:
    for changes, steps in (({}, 1), ({"update_epochs": 3, "num_minibatches": 2}, 6)):
        learner, _ = learner_and_batch(**changes)
        learner.iterate()
        assert learner.optimizer.tensors["steps"].tolist() == [[steps]] * 2


def test_returns_stay_on_the_scale_of_the_rewards_when_advantages_are_standardized() -> None:
    _, raw = learner_and_batch(normalize_advantage=False)
    for how in (True, "running"):
        _, standardized = learner_and_batch(normalize_advantage=how)
        assert torch.equal(raw["returns"], standardized["returns"])


def test_advantages_are_standardized_once_or_not_at_all() -> None:
    def policy_loss(learner: Any, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = learner.loss(batch)[1]["policy_loss"]
        return loss

    plain, raw = learner_and_batch(normalize_advantage=False)
    by_batch, batch = learner_and_batch(normalize_advantage=True)
    running, scaled = learner_and_batch(normalize_advantage="running")
    assert torch.equal(batch["advantages"], raw["advantages"])
    mean, std = raw["advantages"].mean(1, keepdim=True), raw["advantages"].std(1, correction=0, keepdim=True)
    standardized = (raw["advantages"] - mean) / std
    torch.testing.assert_close(scaled["advantages"], standardized, rtol=1e-3, atol=1e-3)
    expected = policy_loss(plain, {**raw, "advantages": standardized})
    torch.testing.assert_close(policy_loss(by_batch, raw), expected, rtol=1e-4, atol=1e-4)
    part = {name: x[:, :7].contiguous() for name, x in scaled.items()}
    assert torch.equal(policy_loss(running, part), policy_loss(plain, part))  # not by this minibatch too


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"num_minibatches": 3}, r"A2C: num_steps \* num_envs \(64\) must be divisible by num_minibatches \(3\); try "),
        ({"num_steps": 0}, "num_steps"),
        ({"vf_coef": float("nan")}, "vf_coef"),
        ({"vf_coeff": 0.5}, "vf_coef"),
    ],
)
def test_bad_hyperparameters_are_refused_before_any_training(hyperparameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        A2C("CartPole-v1").init(**hyperparameters)


def test_an_action_space_without_a_distribution_is_refused_before_any_training() -> None:
    with pytest.raises(UnsupportedSpace, match="A2C on own_envs:GraphActionWalk-v0 acts in Discrete"):
        A2C("own_envs:GraphActionWalk-v0").init()


@pytest.mark.slow
def test_the_defaults_learn_cartpole() -> None:
    tasks = [A2C("CartPole-v1", seed=seed).init() for seed in range(4)]
    Cohort(tasks).fit(30)
    returns = sorted(task.evaluate() for task in tasks)
    assert returns[1] > 400, returns
