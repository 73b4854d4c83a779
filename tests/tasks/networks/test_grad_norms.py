"""Norms of gradients: values, reports of each algorithm, and numbers of gradient steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes import batch_of
from rekindle import A2C, DQN, PPO, PPO2, SAC, SVPG, Cohort
from rekindle.tasks import Task
from rekindle.tasks.networks.optimizers import LARGEST, Clipped, adam, learning_rates, network_spans, norms

SMALL: dict[str, Any] = {"num_steps": 8, "num_envs": 4, "epoch_steps": 64}
REPLAY: dict[str, Any] = {"learning_starts": 64, "buffer_size": 200, "batch_size": 8, "epoch_steps": 200, "num_envs": 2}
SOFT: dict[str, Any] = {**REPLAY, "model": {"width": 16}}


def test_the_numbers_of_a_network_may_lie_apart() -> None:
    shapes = {
        "features.0": (2,),
        "actor.0.weight": (2, 3),
        "actor.0.bias": (3,),
        "critic.0": (4,),
        "actor.log_std": (1,),
    }
    assert network_spans(shapes) == {"features": [(0, 2)], "actor": [(2, 11), (15, 16)], "critic": [(11, 15)]}


def test_norms_are_those_before_and_after_clipping() -> None:
    gradient = torch.tensor([[3.0, 12.0, 4.0], [0.3, 0.0, 0.4]])
    step = adam(gradient).clip(gradient.clone(), torch.tensor([[6.5], [6.5]]))
    result = norms(step, {"actor": [(0, 1), (2, 3)], "critic": [(1, 2)]})
    torch.testing.assert_close(result["grad_norm.actor"], torch.tensor([5.0, 0.5]))
    torch.testing.assert_close(result["grad_norm.critic"], torch.tensor([12.0, 0.0]))
    torch.testing.assert_close(result["grad_norm_clipped.actor"], torch.tensor([2.5, 0.5]))
    torch.testing.assert_close(result["grad_norm_clipped.critic"], torch.tensor([6.0, 0.0]))


def test_without_a_limit_there_is_one_norm() -> None:
    gradient = torch.tensor([[3.0, 4.0]])
    result = norms(adam(gradient).clip(gradient, None), "q")
    assert {name: norm.tolist() for name, norm in result.items()} == {"grad_norm.q": [5.0]}


def test_a_norm_that_no_float_holds_is_still_a_number() -> None:
    gradient = torch.tensor([[1e30, 1e30]])
    step = adam(gradient).clip(gradient, torch.tensor([[0.5]]))
    assert norms(step, "q")["grad_norm.q"].tolist() == [LARGEST]
    assert norms(Clipped(torch.tensor([[1e30]]), None), "q")["grad_norm.q"].tolist() == [LARGEST]


@pytest.mark.parametrize(
    ("task", "env", "values", "networks"),
    [
        (A2C, "CartPole-v1", SMALL, ["actor", "critic"]),
        (PPO, "CartPole-v1", {**SMALL, "model.memory": "gru"}, ["actor", "critic", "memory"]),
        (PPO, "Pendulum-v1", {**SMALL, "critic.name": "separate", "critic.max_grad_norm": 0.5}, ["actor", "critic"]),
        (PPO2, "CartPole-v1", {**SMALL, "update_epochs": 1}, ["actor", "critic"]),
        (SVPG, "CartPole-v1", {**SMALL, "num_particles": 2}, ["actor", "critic"]),
        (DQN, "CartPole-v1", REPLAY, ["q"]),
        (SAC, "Pendulum-v1", {**SOFT, "max_grad_norm": 0.5}, ["actor", "critic"]),
    ],
)
def test_every_algorithm_reports_its_networks(task: type[Task], env: str, values: Any, networks: list[str]) -> None:
    made = task(env).init(**values)
    made.fit(1)
    for prefix in ("grad_norm", "grad_norm_clipped"):
        result = sorted(name.partition(".")[2] for name in made.metrics if name.startswith(prefix + "."))
        assert result == networks
    for name in networks:
        before, after = made.metrics[f"grad_norm.{name}"], made.metrics[f"grad_norm_clipped.{name}"]
        assert 0 < after <= before * (1 + 1e-6)


def test_a_critic_that_is_fitted_alone_reports_its_own() -> None:
    task = PPO("CartPole-v1").init(**SMALL, critic={"name": "separate", "lr": 1e-4})
    task.fit(1)
    assert "grad_norm_clipped.critic" not in task.metrics  # its own limit is none, the policy's is another
    assert task.metrics["grad_norm.critic"] > 0
    assert task.metrics["critic_lr"] == pytest.approx(1e-4)


def test_the_reported_gradient_is_that_of_the_loss() -> None:
    task = A2C("CartPole-v1").init(**SMALL, max_grad_norm=None)
    learner = task.build_learner([task])
    assert isinstance(learner, A2C.learner)
    batch = batch_of(learner)
    gradient = learner.policy.parameters.gradient(learner.loss(batch)[0])
    metrics = learner.update(batch, learning_rates(learner.hp, 0, learner.policy.parameters))
    total = torch.stack([x.square() for name, x in metrics.items() if name.startswith("grad_norm.")]).sum().sqrt()
    torch.testing.assert_close(total, gradient.square().sum().sqrt())


def test_updates_are_gradient_steps_beside_environment_steps() -> None:
    on, off = PPO("CartPole-v1").init(**SMALL, update_epochs=3, num_minibatches=2), DQN("CartPole-v1").init(**REPLAY)
    on.fit(2)
    off.fit(1)
    assert (on.metrics["env_steps"], on.metrics["updates"]) == (128, 4 * 3 * 2)
    steps = off.hyperparameters["num_steps"] * REPLAY["num_envs"]
    expected = (200 - 64) // steps * off.hyperparameters["num_updates"]
    assert (off.metrics["env_steps"], off.metrics["updates"]) == (200, expected)


def test_updates_that_a_member_left_out_are_not_counted() -> None:
    def make(seed: int, target_kl: float) -> PPO:
        values = {**SMALL, "update_epochs": 4, "num_minibatches": 4, "optimizer": {"lr": 0.03}}
        return PPO("CartPole-v1", seed=seed).init(**values, target_kl=target_kl)

    free, bound = make(1, 1000.0), make(2, 0.003)
    Cohort([free, bound]).fit(2)
    assert free.metrics["updates"] == 4 * 4 * 4
    assert bound.metrics["updates"] < free.metrics["updates"]


def test_occasional_measurements_do_not_depend_on_interruptions() -> None:
    def make() -> DQN:
        return DQN("CartPole-v1").init(**REPLAY)

    whole, first, second = make(), make(), make()
    whole.fit(2)
    learner = first.build_learner([first])
    for _ in range(7):
        learner.run_epoch(stop=lambda: True)
    second.load_state_dict(first.state_dict())
    second.fit(2)
    assert second.metrics == whole.metrics
    assert second.history[0] == whole.history[0]
