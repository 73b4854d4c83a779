"""Kernels of replay learning, against torch and exact on both paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DQN, SAC
from rekindle.spaces import unflatten
from rekindle.tasks import Task
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.evaluation import one_thread
from rekindle.tasks.experience.prioritized import sum_tree
from rekindle.tasks.experience.replay_buffer import Field, ReplayBuffer, replay_buffer, transition_fields
from rekindle.tasks.networks.fused.losses import SoftSample, huber, soft_samples, soft_value, twins
from rekindle.tasks.networks.fused.mlp import ActingMLP
from rekindle.tasks.networks.mlp import ACTIVATIONS, MLP, Parameters, initialize
from rekindle.tasks.testing import VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {"learning_starts": 40, "batch_size": 16, "epoch_steps": 96, "buffer_size": 200}
SMALL |= {"model.width": 16, "num_envs": 2}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(function: Callable[..., list[Tensor]], *inputs: Tensor) -> None:
    """Compare results, and gradients in the inputs, with kernels and without."""
    found = []
    for plain in (False, True):
        given = [x.clone().requires_grad_() for x in inputs]
        if plain:
            with without_kernels():
                results = function(*given)
        else:
            results = function(*given)
        losses = sum((x * draw(*x.shape, seed=i)).sum() for i, x in enumerate(results) if x.requires_grad)
        found.append([*results, *torch.autograd.grad(losses, given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("limit", [1.0, float("inf")])
def test_hubers_loss(weighted: bool, limit: float) -> None:
    weight, choices = draw(3, 33, seed=1).abs() if weighted else None, torch.arange(99).view(3, 33) % 4
    both(lambda q: list(huber(q, choices, 3 * draw(3, 33, seed=2), weight, limit)), draw(3, 33, 4))


@pytest.mark.parametrize("limit", [1.0, float("inf")])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_losses_of_twins(limit: float, weighted: bool) -> None:
    weight = draw(3, 33, seed=1).abs() if weighted else None
    both(lambda q: list(twins(q, None, 3 * draw(3, 33, seed=2), weight, 33, limit)), draw(3, 2, 33, 1))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_soft_value(sign: int) -> None:
    alpha = draw(3, 1).abs()
    both(lambda q, h: [soft_value(q, SoftSample(q, None, h), alpha, sign)], draw(3, 2, 33, 1), draw(3, 33, 1, seed=1))


@pytest.mark.parametrize("numbers", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_samples_of_squashed_numbers(numbers: int, weighted: bool) -> None:
    noise, weight = draw(3, 66, numbers, seed=1), draw(3, 33, seed=2).abs() if weighted else None
    following, outputs = draw(3, 33, 2 * numbers, seed=3), 2 * draw(3, 33, 2 * numbers)
    outputs[0, 0, numbers] = 9.0  # a log standard deviation beyond its limits

    def sampled(outputs: Tensor) -> list[Tensor]:
        samples = soft_samples(outputs, following, noise, numbers, 33, weight)
        return [x for sample in samples for x in (sample.continuous, sample.entropies)]

    both(sampled, outputs)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_rows_through_a_perceptron(activation: str, rows: int) -> None:
    net = MLP("q", [3, 17, 8, 2], activation, last_gain=1.0)
    parameters = initialize([net], Parameters(net.shapes, 3), [1, 2, 3])
    parameters.vector.add_(0.1 * draw(*parameters.vector.shape))
    acting, x = ActingMLP.of(net.sizes, ACTIVATIONS[activation], parameters.vector), draw(3, rows, 3)
    assert acting is not None
    layers = net.layers(parameters.views)
    outputs, hidden = map(torch.from_numpy, acting(x))
    torch.testing.assert_close(outputs, net(layers, x))
    torch.testing.assert_close(hidden, net.hidden(layers, x))
    for p in range(3):
        alone = ActingMLP.of(net.sizes, ACTIVATIONS[activation], parameters.vector[p : p + 1].clone())
        assert alone is not None
        assert np.array_equal(alone(x[p : p + 1])[0][0], outputs[p])


def filled(plain: bool, action: Field) -> ReplayBuffer:
    """A memory of random transitions, which began anew once."""
    random = np.random.default_rng(0)
    fields = transition_fields(Field((3,)), action)
    if plain:
        with without_kernels():
            replay = replay_buffer(2, 40, 2, fields)
    else:
        replay = replay_buffer(2, 40, 2, fields)
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
    own, plain = filled(False, action), filled(True, action)
    assert np.array_equal(own.numbers, plain.numbers)
    rows = own.row(np.stack([np.arange(30), np.arange(29, -1, -1)]))
    result, expected = (x.returns(rows, torch.tensor([[0.9], [0.99]]), n_step) for x in (own, plain))
    assert result.keys() == expected.keys()
    for name, x in expected.items():
        assert result[name].dtype == x.dtype
        assert torch.equal(result[name], x), name


@pytest.mark.parametrize("leaves", [5, 40, 50_000])
def test_a_sum_tree_has_every_bit_of_the_plain_one(leaves: int) -> None:
    random, own = np.random.default_rng(0), sum_tree(3, leaves)
    with without_kernels():
        plain = sum_tree(3, leaves)
    for _ in range(50):
        index, values = random.integers(0, leaves, (3, 33)), np.exp(5 * random.standard_normal((3, 33)))
        before = values.copy()
        for tree in (own, plain):
            tree.set(index, values)
        assert np.array_equal(values, before)
        assert all(map(np.array_equal, own.levels, plain.levels))
        targets = random.random((3, 33)) * plain.total
        targets[:, 0] = 2 * plain.total[:, 0]
        assert np.array_equal(own.find(targets), plain.find(targets))
    for tree in (own, plain):
        tree.set(np.zeros((3, 1), np.int64), np.array([[np.nan], [np.inf], [1.0]]))
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(own.levels, plain.levels, strict=True))
    assert np.array_equal(own.find(plain.total * 0.5), plain.find(plain.total * 0.5))


CASES: dict[str, tuple[type[Task], str, dict[str, Any]]] = {
    "dqn": (DQN, "CartPole-v1", {}),
    "dqn, by priority": (DQN, "CartPole-v1", {"replay.name": "prioritized", "critic_loss": "mse", "double": False}),
    "dqn, odd sizes": (DQN, "Acrobot-v1", {"model.hidden": [17, 5], "model.activation": "tanh", "target_interval": 2}),
    "dqn, ELU": (DQN, "CartPole-v1", {"model.activation": "elu"}),
    "sac": (SAC, "Pendulum-v1", {}),
    "sac, by priority": (SAC, "Pendulum-v1", {"replay.name": "prioritized", "critic_loss": "huber"}),
    "sac, odd sizes": (SAC, "MountainCarContinuous-v0", {"model.hidden": [17, 5], "model.critic_hidden": [7]}),
    "sac, ELU": (SAC, "Pendulum-v1", {"model.activation": "elu", "model.layers": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_step_is_that_of_torch(case: str) -> None:
    kind, env, changes = CASES[case]

    def learner() -> Any:
        task = kind(env, seed=0).init(**unflatten({**SMALL, **changes}))
        made: Any = kind.learner(task.env, (0, 1), [task.hyperparameters or {}] * 2)
        while made.filling:
            made.iterate()
        return made

    with one_thread():
        own = learner()
        with without_kernels():
            plain = learner()
            _, batch = plain.draw()
            expected, theirs = plain.update(batch)
        result, errors = own.update(own.draw()[1])
    torch.testing.assert_close(errors, theirs, rtol=1e-4, atol=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=1e-4, atol=1e-5)
    for name, tensor in own.policy.tensors.items():
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
