"""Resets of networks during learning from replay, and their exactness."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from rekindle import DQN, SAC
from rekindle.spaces import unflatten
from rekindle.tasks import load
from rekindle.tasks.rng import streams
from rekindle.tasks.testing import VariantSuite

SMALL: dict[str, Any] = {
    "epoch_steps": 48,
    "learning_starts": 32,
    "batch_size": 16,
    "buffer_size": 100,
    "optimizer.lr": 0.01,
    "model.width": 16,
    "num_steps": 1,
    "num_updates": 1,
    "resets": 10,
}
RARE = frozenset({"entropy.alpha", "entropy.choice_target", "target_update_interval"})


class TestSAC(VariantSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "critic.ensemble": 3}
    inert = RARE


@pytest.mark.slow
class TestDQN(VariantSuite):
    task = DQN
    hyperparameters: ClassVar = {**SMALL, "num_updates": 4, "target_interval": 3, "tau": 0.5, "exploration.horizon": 60}
    inert = frozenset({"target_interval", "tau"})  # the epoch ends two updates after a reset


@pytest.mark.parametrize("name", ["dqn", "sac", "td3", "crossq"])
def test_a_reset_gives_new_networks_and_keeps_the_buffer(name: str) -> None:
    task, env = load(name), "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    width = {"model.critic_width": 16} if name == "crossq" else {}
    made = task(env).init(**unflatten({**SMALL, **width}))
    learner: Any = task.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)
    first = {path: tensor.clone() for path, tensor in learner.policy.tensors.items()}
    while learner.progress.updates < 9:
        learner.iterate()
    steps = learner.replay.steps
    learner.iterate()
    expected = learner.new_policy([streams.seed_of(seed, "reset", 1) for seed in (0, 1)])
    for path, tensor in learner.policy.tensors.items():
        assert torch.equal(tensor, expected.tensors[path])
    path = "vector" if name == "dqn" else "actor"
    assert not torch.equal(learner.policy.tensors[path], first[path])
    optimizer = learner.optimizer if name == "dqn" else learner.critic_optimizer
    assert all(not tensor.any() for tensor in optimizer.tensors.values())
    assert learner.replay.steps == steps + 1
    if name in ("sac", "crossq"):
        torch.testing.assert_close(learner.coefficients.alpha, torch.ones(2, 1))
    learner.iterate()
    assert any(not torch.equal(tensor, expected.tensors[path]) for path, tensor in learner.policy.tensors.items())


@pytest.mark.parametrize(("resets", "updates"), [(1, 1), (4, 4), (1, 4)])
def test_resets_before_trained_networks_act_are_refused(resets: int, updates: int) -> None:
    with pytest.raises(ValueError, match=rf"SAC: num_updates \({updates}\) must be below resets \({resets}\)"):
        SAC("Pendulum-v1").init(num_updates=updates, resets=resets)
    SAC("Pendulum-v1").init(num_updates=updates, resets=updates + 1)
    SAC("Pendulum-v1").init(num_updates=updates, resets=0)
