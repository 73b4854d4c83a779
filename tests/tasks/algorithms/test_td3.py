"""DDPG and TD3: exactness, targets and losses by hand, delayed updates, exploration, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from rekindle import DDPG, TD3
from rekindle.spaces import unflatten
from rekindle.tasks import Task
from rekindle.tasks.algorithms.continuous.noise import THETA, CorrelatedNoise
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.rng import streams
from rekindle.tasks.rng.draws import Normals
from rekindle.tasks.testing import ExactnessSuite

SMALL: dict[str, Any] = {**tiny.REPLAY, "optimizer.lr": 0.003, "critic_lr": 0.003, "tau": 0.05}


class TestDDPG(ExactnessSuite):
    task = DDPG
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "max_grad_norm": 0.5}
    variants: ClassVar = (
        {"num_envs": 3, "buffer_size": 201, "target_update_interval": 3, "scale_reward": True, "normalize_obs": True},
        {"exploration.noise": "none", "optimizer.name": "rmsprop", "num_updates": 2},
    )


class TestTD3(ExactnessSuite):
    task = TD3
    env = "Pendulum-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"policy_delay": 2, "n_step": 3, "num_envs": 2, "max_grad_norm": 0.1},
        {"exploration.noise": "ou", "replay.name": "prioritized", "policy_delay": 1, "critic_loss": "huber",
         "model.critic_hidden": [17], "lr_schedule.name": "cosine", "lr_schedule.horizon": 600},
    )  # fmt: skip
    inert = frozenset({"max_grad_norm"})  # the gradients of the second variant have no limit


def learner_of(task: type[Task], env: str = "Pendulum-v1", **changes: Any) -> Any:
    """Return a learner of two members with a full buffer."""
    made = task(env).init(**unflatten({**SMALL, **changes}))
    learner: Any = task.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)
    while learner.filling:
        learner.iterate()
    return learner


def networks_of(learner: Any, member: int) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the layers of a member's networks and targets, by name."""
    policy, layers = learner.policy, {}
    count = policy.copies
    for i in range(count):
        for name, critics in (("critic", policy.critics), ("target", policy.targets)):
            views = critics.of(count * member + i)
            layers[f"{name}{i}"] = [(views[f"critic.{n}.weight"], views[f"critic.{n}.bias"]) for n in range(3)]
    views = policy.actor_target.of(member)
    layers["actor_target"] = [(views[f"actor.{n}.weight"], views[f"actor.{n}.bias"]) for n in range(3)]
    layers["actor"] = [(policy.actor.of(member)[f"actor.{n}.weight"], policy.actor.of(member)[f"actor.{n}.bias"])
                       for n in range(3)]  # fmt: skip
    return layers


def perceptron(layers: list[tuple[torch.Tensor, torch.Tensor]], x: torch.Tensor) -> torch.Tensor:
    for number, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        x = x.relu() if number < len(layers) - 1 else x
    return x[:, 0]  # further outputs are padding


def actor_losses_of(learner: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    sample = learner.actions.sample(learner.policy.outputs_of(batch)[0], learner.update_noise(1))
    losses: torch.Tensor = learner.actor_loss(batch, sample, learner.alpha())
    return losses


@pytest.mark.parametrize("task", [DDPG, TD3])
def test_the_losses_are_those_of_the_paper(task: type[Task]) -> None:
    learner = learner_of(task)
    _, batch = learner.draw()
    noise = learner.update_noise(7)
    next_sample = learner.next_sample(learner.policy.outputs_of(batch)[1], noise)
    losses, errors, _ = learner.critic_loss(batch, learner.total_reward(batch), next_sample, learner.alpha())
    actor_losses = actor_losses_of(learner, batch)
    for member in range(2):
        networks = networks_of(learner, member)
        obs, next_obs, action = (batch[name][member] for name in ("obs", "next_obs", "action"))
        next_action = perceptron(networks["actor_target"], next_obs).tanh()
        if task is TD3:
            next_action = (next_action + (0.2 * noise[member, :, 0]).clamp(-0.5, 0.5)).clamp(-1, 1)
        pairs = torch.cat([next_obs, next_action[:, None]], 1), torch.cat([obs, action / 2], 1)  # torques are within ±2
        count = 2 if task is TD3 else 1
        next_q = torch.stack([perceptron(networks[f"target{i}"], pairs[0]) for i in range(count)]).amin(0)
        targets = batch["reward"][member] + batch["discount"][member] * next_q
        expected = torch.stack([targets - perceptron(networks[f"critic{i}"], pairs[1]) for i in range(count)])
        torch.testing.assert_close(errors[member], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(losses[member], 0.5 * expected.square().sum(0), rtol=1e-4, atol=1e-4)
        action = perceptron(networks["actor"], obs).tanh()
        q = perceptron(networks["critic0"], torch.cat([obs, action[:, None]], 1))
        torch.testing.assert_close(actor_losses[member], -q, rtol=1e-4, atol=1e-4)


def test_actor_and_targets_move_once_in_policy_delay_steps() -> None:
    learner = learner_of(TD3, policy_delay=3)
    learner.progress.updates, moved = 0, []
    for number in range(1, 7):
        before = {name: x.clone() for name, x in learner.policy.tensors.items()}
        learner.progress.updates = number
        metrics, _ = learner.update(learner.draw()[1])
        moved.append([name for name, x in before.items() if not torch.equal(x, learner.policy.tensors[name])])
        assert ("actor_loss" in metrics) == (number % 3 == 0)
    assert moved == [["critic"], ["critic"], ["actor", "critic", "target", "actor_target"]] * 2


def test_gradients_are_those_of_means_over_the_batch() -> None:
    learner = learner_of(DDPG)
    _, batch = learner.draw()
    before = learner.policy.actor_vector.clone()
    gradient = learner.descend_actor(actor_losses_of(learner, batch)).gradient
    index = torch.arange(before.shape[1])[before[0] != 0][:3]
    for i in index.tolist():
        values = []
        for shift in (-1e-2, 1e-2):
            learner.policy.actor_vector.copy_(before)
            learner.policy.actor_vector[:, i] += shift
            values.append(actor_losses_of(learner, batch).mean(1).detach().clone())
        torch.testing.assert_close((values[1] - values[0]) / 2e-2, gradient[:, i], rtol=0.05, atol=1e-3)


def test_correlated_noise_is_a_process_that_begins_at_0_in_every_episode() -> None:
    keys, std = streams.keys([1, 2], "action"), torch.tensor([[0.2], [0.5]])
    noise, normals = CorrelatedNoise(std, keys, (3, 2), torch.device("cpu")), Normals(keys, (3, 2), torch.device("cpu"))
    expected = torch.zeros(2, 3, 2)
    nothing = torch.empty(0)
    for step in range(4):
        expected = (1 - THETA) * expected + std[:, None] * normals(step)
        torch.testing.assert_close(noise(step, nothing, nothing)[0], expected)
        if step == 1:
            noise.reset(np.array([[True, False, False], [False, False, True]]))
            expected[0, 0], expected[1, 2] = 0, 0


def test_exploration_stays_within_the_bounds() -> None:
    learner = learner_of(TD3, **{"exploration.std": 5.0})
    actions = learner.explore(learner.tensor(learner.envs.obs), 7)
    assert actions.shape == (2, 1, 1)
    assert np.abs(actions).max() <= 2
    bounded = [learner.explore(learner.tensor(learner.envs.obs), position) for position in range(50)]
    assert (np.abs(bounded) == 2).any(), "noise of 5 reaches them"
    greedy = learner.actor(1)(learner.envs.obs)
    assert np.array_equal(greedy, learner.actor(1)(learner.envs.obs))


@pytest.mark.parametrize("task", [DDPG, TD3])
def test_choices_memories_and_images_are_refused_by_name(task: type[Task]) -> None:
    name = task.learner.algorithm()
    with pytest.raises(UnsupportedSpace, match=rf"{name} on CartPole-v1 acts in Boxes that .* use SAC, or DQN"):
        task("CartPole-v1").init()
    reason = "its target policy has neither memory nor encoder"
    with pytest.raises(UnsupportedSpace, match=rf"{name} on Pendulum-v1: {reason}, but model.memory is 'gru'"):
        task("Pendulum-v1").init(model={"memory": "gru"})
    with pytest.raises(UnsupportedSpace, match=rf"{name} on .*: {reason}, .* 'small' .* \(6, 6, 1\); use SAC or TQC"):
        task({"id": "own_envs:Square-v0", "kwargs": {"side": 6, "box": True}}).init(model={"encoder": "small"})


@pytest.mark.slow
@pytest.mark.parametrize(("task", "values"), [(TD3, {}), (DDPG, {"tau": 0.005, "optimizer": {"lr": 1e-3}})])
def test_pendulum_is_learned(task: type[Task], values: dict[str, Any]) -> None:
    made = task("Pendulum-v1", seed=0).init(**{"optimizer": {"lr": 1e-3}, "model": {"width": 64}, **values})
    made.fit(4)  # five of six seeds need three epochs, this one of TD3 four
    assert made.evaluate() > -250
