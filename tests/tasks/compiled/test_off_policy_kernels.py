"""Kernels of replay learning, against torch and exact on both paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DDPG, DQN, QRDQN, SAC, TD3, TQC, CrossQ
from rekindle.spaces import unflatten
from rekindle.tasks import Task
from rekindle.tasks.algorithms.off_policy_learner import ReplaySteps
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.experience.prioritized import sum_tree
from rekindle.tasks.experience.replay_buffer import Field, ReplayBuffer, RingForm, replay_buffer, transition_fields
from rekindle.tasks.networks import renorm
from rekindle.tasks.networks.acting import acting_mlp
from rekindle.tasks.networks.mlp import MLP, Parameters, initialize
from rekindle.tasks.runtime.threads import one_thread
from rekindle.tasks.testing import VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {"learning_starts": 40, "batch_size": 16, "epoch_steps": 96, "buffer_size": 200}
SMALL |= {"model.width": 16, "num_envs": 2}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_rows_through_a_perceptron(activation: str, rows: int) -> None:
    net = MLP("q", [3, 17, 8, 2], activation, last_gain=1.0)
    parameters = initialize([net], Parameters(net.shapes, 3), [1, 2, 3])
    parameters.vector.add_(0.1 * draw(*parameters.vector.shape))
    acting, x, layers = acting_mlp(net, parameters), draw(3, rows, 3), net.layers(parameters.views)
    outputs, hidden = acting(x)
    with without_kernels():
        for one, other in zip(acting_mlp(net, parameters)(x), (outputs, hidden), strict=True):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(outputs, net(layers, x))
    torch.testing.assert_close(hidden, net.hidden(layers, x))
    for p in range(3):
        parameters_of_member = Parameters(net.shapes, 1)
        parameters_of_member.vector.copy_(parameters.vector[p : p + 1])
        assert torch.equal(acting_mlp(net, parameters_of_member)(x[p : p + 1])[0][0], outputs[p])
    for wrong in (draw(4, rows, 3), draw(3, rows, 4)):
        with pytest.raises(ValueError, match="no room"):
            acting(wrong)


def filled(plain: bool, action: Field) -> ReplayBuffer:
    """A memory of random transitions, which began anew once."""
    random = np.random.default_rng(0)
    fields = transition_fields(Field((3,)), action)
    if plain:
        with without_kernels():
            replay = replay_buffer(RingForm(2, 40, 2, fields))
    else:
        replay = replay_buffer(RingForm(2, 40, 2, fields))
    for _ in range(33):
        obs, following = random.standard_normal((2, 2, 2, 3))
        numbers = random.standard_normal((2, 2, *action.shape)) * 3
        reward, ends = random.standard_normal((2, 2)).astype(np.float32), random.random((2, 2, 2)) < 0.2
        actions = numbers.astype(np.int64 if action.type is torch.int64 else np.float32)
        replay.add(obs=obs, next_obs=following, action=actions, reward=reward, terminated=ends[0], truncated=ends[1])
    return replay


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("action", [Field((), torch.int64), Field((2,))], ids=str)
def test_batches_have_every_bit_of_the_plain_ones(n_step: int, action: Field) -> None:
    compiled, plain = filled(False, action), filled(True, action)
    assert np.array_equal(compiled.numbers, plain.numbers)
    rows = compiled.row(np.stack([np.arange(30), np.arange(29, -1, -1)]))
    result, expected = (x.returns(rows, torch.tensor([[0.9], [0.99]]), n_step) for x in (compiled, plain))
    assert result.keys() == expected.keys()
    for name, x in expected.items():
        assert result[name].dtype == x.dtype
        assert torch.equal(result[name], x), name


@pytest.mark.parametrize("leaves", [5, 40, 50_000])
def test_a_sum_tree_has_every_bit_of_the_plain_one(leaves: int) -> None:
    random, compiled = np.random.default_rng(0), sum_tree(3, leaves)
    with without_kernels():
        plain = sum_tree(3, leaves)
    for _ in range(50):
        index, values = random.integers(0, leaves, (3, 33)), np.exp(5 * random.standard_normal((3, 33)))
        before = values.copy()
        for tree in (compiled, plain):
            tree.set(index, values)
        assert np.array_equal(values, before)
        assert all(map(np.array_equal, compiled.levels, plain.levels))
        targets = random.random((3, 33)) * plain.total
        targets[:, 0] = 2 * plain.total[:, 0]
        assert np.array_equal(compiled.find(targets), plain.find(targets))
    for tree in (compiled, plain):
        tree.set(np.zeros((3, 1), np.int64), np.array([[np.nan], [np.inf], [1.0]]))
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(compiled.levels, plain.levels, strict=True))
    assert np.array_equal(compiled.find(plain.total * 0.5), plain.find(plain.total * 0.5))


PRIORITIES = {"replay.name": "prioritized", "critic_loss": "huber"}
QUANTILES = {"quantiles": 7, "replay.name": "prioritized"}
CASES: dict[str, tuple[type[Task], str, dict[str, Any]]] = {
    "dqn": (DQN, "CartPole-v1", {}),
    "dqn, by priority": (DQN, "CartPole-v1", {"replay.name": "prioritized", "critic_loss": "mse", "double": False}),
    "dqn, odd sizes": (DQN, "Acrobot-v1", {"model.hidden": [17, 5], "model.activation": "tanh", "target_interval": 2}),
    "dqn, ELU": (DQN, "CartPole-v1", {"model.activation": "elu"}),
    "dqn, scaled rewards": (DQN, "CartPole-v1", {"extrinsic.strength": 2.0}),
    "dqn, quantiles": (DQN, "CartPole-v1", {"distribution": "quantile", **QUANTILES}),
    "dqn, probabilities": (DQN, "CartPole-v1", {"distribution": "categorical", "v_max": 3.0, "double": False}),
    "qrdqn": (QRDQN, "CartPole-v1", {"quantiles": 5}),
    "sac": (SAC, "Pendulum-v1", {}),
    "sac, by priority": (SAC, "Pendulum-v1", PRIORITIES),
    "sac, odd sizes": (SAC, "MountainCarContinuous-v0", {"model.hidden": [17, 5], "model.critic_hidden": [7]}),
    "sac, ELU": (SAC, "Pendulum-v1", {"model.activation": "elu", "model.layers": 3}),
    "sac, choices": (SAC, "CartPole-v1", PRIORITIES),
    "sac, numbers and choices": (SAC, "own_envs:HybridWalk-v0", {}),
    "sac, an ensemble": (SAC, "Pendulum-v1", {"critic.ensemble": 4}),
    "sac, an ensemble of choices": (SAC, "CartPole-v1", {"critic.ensemble": 3, "critic.subset": 1}),
    "sac, scaled rewards": (SAC, "Pendulum-v1", {"scale_reward": True, "normalize_obs": True}),
    "sac, state-dependent noise": (SAC, "Pendulum-v1", {"use_sde": True, "sde_clip_mean": 0.5}),
    "sac, state-dependent noise of numbers and choices": (SAC, "own_envs:HybridWalk-v0", {"use_sde": True}),
    "tqc, state-dependent noise": (TQC, "Pendulum-v1", {"use_sde": True}),
    "td3": (TD3, "Pendulum-v1", {"policy_delay": 1}),
    "td3, by priority": (TD3, "Pendulum-v1", {**PRIORITIES, "policy_delay": 1, "n_step": 3}),
    "ddpg": (DDPG, "Pendulum-v1", {}),
    "tqc": (TQC, "Pendulum-v1", {}),
    "tqc, by priority": (TQC, "Pendulum-v1", {**QUANTILES, "critics": 3}),
    "crossq": (CrossQ, "Pendulum-v1", {"model.critic_width": 24, "policy_delay": 1}),
    "crossq, the critics alone": (CrossQ, "Pendulum-v1", {"model.critic_width": 24}),
    # A unit that is active in all rows has a bias without effect, so Adam would follow what rounding leaves.
    "crossq, corrected": (CrossQ, "Pendulum-v1", {"model.critic_width": 24, "policy_delay": 1, "optimizer.eps": 0.1}),
    "crossq, by priority": (CrossQ, "Pendulum-v1", {**PRIORITIES, "model.critic_width": 24, "policy_delay": 1}),
    "crossq, odd sizes": (
        CrossQ,
        "MountainCarContinuous-v0",
        {"model.hidden": [17, 5], "model.critic_hidden": [7], "model.activation": "tanh", "policy_delay": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_step_is_that_of_torch(case: str) -> None:
    task_class, env, changes = CASES[case]

    def learner() -> Any:
        task = task_class(env, seed=0).init(**unflatten({**SMALL, **changes}))
        made: Any = task_class.learner(task.env, (0, 1), [task.hyperparameters or {}] * 2)
        while made.filling:
            made.iterate()
        if "corrected" in case:
            for net in (made.policy.pi, made.policy.critic_form):
                net.moments.vector.copy_(0.2 + draw(*net.moments.vector.shape).square())
                net.moments.steps.fill_(renorm.WARMUP + 1)
        return made

    with one_thread():
        compiled = learner()
        with without_kernels():
            plain = learner()
            assert type(plain.steps) is ReplaySteps
            plain.tally.count = compiled.tally.count = 0  # norms are measured in some steps only
            expected, theirs = plain.update(plain.draw()[1])
        result, errors = compiled.steps.update(compiled.draw()[1])
    assert result.keys() == expected.keys()
    torch.testing.assert_close(errors, theirs, rtol=1e-4, atol=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=1e-4, atol=1e-5)
    for name, tensor in compiled.policy.tensors.items():
        torch.testing.assert_close(tensor, plain.policy.tensors[name], rtol=1e-3, atol=1e-4)


class Plain(VariantSuite):
    @pytest.fixture(autouse=True)
    def _plain(self) -> Iterator[None]:
        with without_kernels():
            yield


class TestThePlainPathOfDQN(Plain):
    task = DQN
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, "optimizer.lr": 0.01, "exploration.horizon": 600, "tau": 0.5}
    inert = frozenset({"exploration.final", "max_grad_norm", "target_interval"})


class TestThePlainPathOfSAC(Plain):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "optimizer.lr": 0.003, "tau": 0.05, "entropy.alpha": 0.2}
    inert = frozenset({"entropy.alpha", "entropy.choice_target"})
