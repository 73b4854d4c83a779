"""PPO with a separate critic: exactness, targets, and updated parameters."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from fakes import batch_of
from rekindle import A2C, PPO, PPO2, Cohort
from rekindle.spaces import SpaceError
from rekindle.tasks.networks.optimizers import learning_rates, network_mask
from rekindle.tasks.testing import VariantSuite

SEPARATE: dict[str, Any] = {"critic.name": "separate", "critic.update_epochs": 2}
SMALL: dict[str, Any] = {
    "epoch_steps": 128,
    "num_steps": 16,
    "num_envs": 4,
    "update_epochs": 2,
    "optimizer.lr": 0.03,
    "clip_coef": 0.1,
    "max_grad_norm": 0.1,
}


class TestOnCartPole(VariantSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **SEPARATE}
    variants: ClassVar = (
        {
            "critic.max_grad_norm": 0.5,
            "critic.targets": "empirical",
            "normalize_advantage": "running",
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 300,
        },
        {
            "critic.lr_schedule.name": "linear",
            "critic.lr_schedule.horizon": 600,
            "critic.lr_schedule.warmup": 100,
            "lr_schedule.name": "cosine",
            "lr_schedule.horizon": 600,
        },
    )
    inert = frozenset({"model.std_init", "vf_coef"})  # nothing is weighed against the critic's loss here


class TestItsOwnRate(VariantSuite):
    task = PPO2
    env = "CartPole-v1"
    hyperparameters: ClassVar = {"epoch_steps": 128, "num_steps": 16, "num_envs": 4, "critic_lr": 0.01}
    variants: ClassVar = ({"lr_schedule.name": "linear", "lr_schedule.horizon": 600, "optimizer.name": "adamw"},)
    inert = frozenset({"model.std_init"})
    cohort_size = 3


def built(**changes: Any) -> Any:
    tasks = [PPO("CartPole-v1", seed=seed).init(num_steps=32, **changes) for seed in range(2)]
    return tasks[0].build_learner(tasks)


def evaluated(learner: Any, rollout: Any) -> dict[str, torch.Tensor]:
    batch: dict[str, torch.Tensor] = learner.agent.advantages(rollout, learner.hp.gamma, learner.hp.gae_lambda)
    return batch


def critic_of(learner: Any) -> torch.Tensor:
    return torch.cat([v.flatten(1) for n, v in learner.policy.parameters.views.items() if n.startswith("critic.")], 1)


def actor_of(learner: Any) -> torch.Tensor:
    return torch.cat([v.flatten(1) for n, v in learner.policy.parameters.views.items() if n.startswith("actor.")], 1)


@pytest.mark.parametrize("targets", ["td_lambda", "empirical"])
def test_fitting_moves_the_critic_only_and_towards_the_returns(targets: str) -> None:
    learner = built(critic={"name": "separate", "targets": targets, "lr": 3e-3})
    rollout = learner.agent.collect(learner.envs, 0)
    actor, critic = actor_of(learner).clone(), critic_of(learner).clone()
    batch = evaluated(learner, rollout)
    if targets == "empirical":
        batch["returns"] = learner.critic.empirical(rollout)
    error = (learner.policy.value(batch["obs"]) - batch["returns"]).square().mean(1)
    learner.critic.fit(rollout, 0, 0)
    assert torch.equal(actor_of(learner), actor)
    assert not torch.equal(critic_of(learner), critic)
    after = (learner.policy.value(batch["obs"]) - batch["returns"]).square().mean(1)
    assert (after < 0.7 * error).all()


def test_the_policys_steps_leave_the_critic_alone() -> None:
    learner = built(critic={"name": "separate"})
    learner.critic.fit = lambda *_: {}
    critic, actor = critic_of(learner).clone(), actor_of(learner).clone()
    learner.iterate()
    assert torch.equal(critic_of(learner), critic)
    assert not torch.equal(actor_of(learner), actor)


def test_advantages_come_from_the_fitted_critic() -> None:
    learner = built(critic={"name": "separate", "lr": 3e-3})
    rollout = learner.agent.collect(learner.envs, 0)
    before = evaluated(learner, rollout)
    learner.critic.fit(rollout, 0, 0)
    after = evaluated(learner, rollout)
    assert not torch.equal(before["advantages"], after["advantages"])
    assert torch.equal(after["values"], evaluated(learner, rollout)["values"])


def test_the_policy_learns_from_advantages_of_the_critic_that_was_fitted_before() -> None:
    learner, kept = built(critic={"name": "separate", "lr": 3e-3}), {}
    collect, minibatches, fit = learner.agent.collect, learner.agent.minibatches, learner.critic.fit

    def collecting(*args: Any) -> Any:
        kept["rollout"] = collect(*args)
        kept["before"] = evaluated(learner, kept["rollout"])["advantages"]
        return kept["rollout"]

    def fitting(*args: Any) -> Any:
        metrics = fit(*args)
        kept["after"] = evaluated(learner, kept["rollout"])["advantages"]
        return metrics

    def splitting(batch: Any, *args: Any) -> Any:
        kept["batch"] = batch  # the policy's, after the critic's
        return minibatches(batch, *args)

    learner.agent.collect, learner.agent.minibatches, learner.critic.fit = collecting, splitting, fitting
    learner.iterate()
    assert torch.equal(kept["batch"]["advantages"], kept["after"])
    assert not torch.equal(kept["batch"]["advantages"], kept["before"])


def test_the_critics_gradient_is_clipped_by_a_norm_of_its_own() -> None:
    learner = built(critic={"name": "separate", "max_grad_norm": 1e-3}, max_grad_norm=None)
    report = learner.critic.fit(learner.agent.collect(learner.envs, 0), 0, 0)
    assert (report["grad_norm.critic"] > 0.1).all()
    torch.testing.assert_close(report["grad_norm_clipped.critic"], torch.full((2,), 1e-3), rtol=1e-3, atol=0)
    followed = learner.critic.optimizer.tensors["mean"].square().sum(1).sqrt()  # a mean of what was followed
    assert (followed <= 1e-3).all()


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({}, [0.75, 0.5]),  # the policy's
        ({"name": "constant"}, [1, 1]),
        ({"name": "linear", "horizon": 2048}, [0.875, 0.75]),
        ({"name": "constant", "warmup": 1023}, [257 / 1024, 513 / 1024]),
        ({"name": "piecewise", "points": [[0, 0], [512, 2]]}, [1, 2]),
    ],
)
def test_the_critics_learning_rate_has_a_schedule_of_its_own(schedule: dict[str, Any], factors: list[float]) -> None:
    plan = {"name": "linear", "horizon": 1024}
    learner = built(critic={"name": "separate", "lr": 1e-3, "lr_schedule": schedule}, lr_schedule=plan)
    for factor in factors:  # after 256 environment steps each
        learner.iterate()
        torch.testing.assert_close(learner.critic.learning_rate(learner.env_steps), torch.full((2, 1), 1e-3 * factor))


def test_options_of_a_separate_critic_are_refused_where_there_is_none() -> None:
    with pytest.raises(SpaceError, match=r"critic\.lr"):
        PPO("CartPole-v1").init(critic={"lr": 1e-3})
    with pytest.raises(SpaceError, match=r"critic\.lr_schedule\.name applies only when critic\.name is 'separate'"):
        PPO("CartPole-v1").init(critic={"lr_schedule": {"name": "linear"}})
    with pytest.raises(SpaceError, match=r"critic\.lr_schedule\.warmup applies only when critic\.lr_schedule\.name is"):
        PPO("CartPole-v1").init(critic={"name": "separate", "lr_schedule": {"warmup": 9}})


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["td_lambda", "empirical"])
def test_ppo_with_a_separate_critic_learns_cartpole(targets: str) -> None:
    tasks = [PPO("CartPole-v1", seed=seed).init(critic={"name": "separate", "targets": targets}) for seed in range(4)]
    Cohort(tasks).fit(25)
    returns = sorted(task.evaluate() for task in tasks)
    assert returns[1] > 400, returns


@pytest.mark.parametrize("task", [A2C, PPO, PPO2])
def test_a_critic_in_a_joint_loss_can_have_a_learning_rate_of_its_own(task: Any) -> None:
    def stepped(**rates: Any) -> Any:
        made = task("CartPole-v1").init(num_steps=8, optimizer={"name": "sgd", "lr": 1e-2}, max_grad_norm=None, **rates)
        learner = made.build_learner([made])
        before = learner.policy.parameters.vector.clone()
        lr = learning_rates(learner.hp, 0, learner.policy.parameters)
        losses, _ = learner.loss(batch_of(learner))
        learner.optimizer.step(learner.policy.parameters.gradient(losses), lr.parameters)
        moved = learner.policy.parameters.vector - before
        of_critic = network_mask(learner.policy.parameters, "critic")[0]
        return moved[:, ~of_critic], moved[:, of_critic]

    actor, critic = stepped()
    same, faster = stepped(critic_lr=0.04)
    assert torch.equal(actor, same)
    torch.testing.assert_close(faster, 4 * critic, rtol=1e-4, atol=1e-6)
    assert torch.equal(stepped(critic_lr=0.0)[1], torch.zeros_like(critic))
    torch.testing.assert_close(stepped(critic_lr=1e-2)[1], critic)


def test_its_rate_follows_the_schedule_and_is_reported() -> None:
    lr_schedule = {"name": "linear", "horizon": 2048}
    task = PPO("CartPole-v1").init(critic_lr=0.1, epoch_steps=1024, lr_schedule=lr_schedule)
    task.fit(2)
    assert [row["critic_lr"] for _, row in task.history] == pytest.approx([0.1, 0.05])


def test_the_same_task_is_meant_by_none_and_by_nothing() -> None:
    assert PPO("CartPole-v1").init(critic_lr=None).uid == PPO("CartPole-v1").init().uid
    assert PPO("CartPole-v1").init(critic_lr=1e-3).uid != PPO("CartPole-v1").init().uid


def test_two_rates_for_one_critic_are_refused() -> None:
    with pytest.raises(ValueError, match=r"PPO: critic_lr is of a critic that shares .* give critic\.lr instead"):
        PPO("CartPole-v1").init(critic_lr=1e-3, critic={"name": "separate"})
