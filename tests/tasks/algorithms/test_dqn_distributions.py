"""Distributions of returns and noisy networks: losses by hand and beside sb3-contrib, exactness, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DQN, QRDQN
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.dqn.distributions import Probabilities, Quantiles
from rekindle.tasks.networks.mlp import Parameters, initialize
from rekindle.tasks.networks.noisy import NoisyMLP
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from sb3_contrib.common.utils import quantile_huber_loss

SMALL: dict[str, Any] = {
    "epoch_steps": 64,
    "learning_starts": 32,
    "batch_size": 16,
    "buffer_size": 100,
    "optimizer.lr": 0.01,
    "target_interval": 5,
    "exploration.horizon": 100,
    "max_grad_norm": 0.1,
}
C51: dict[str, Any] = {"distribution": "categorical", "atoms": 7, "v_max": 20.0}


class TestQRDQN(ExactnessSuite):
    task = QRDQN
    hyperparameters: ClassVar = {**SMALL, "quantiles": 5, "tau": 0.5}
    variants: ClassVar = ({}, {"double": True, "model.dueling": True, "n_step": 3, "num_envs": 2})


class TestRainbow(VariantSuite):
    task = DQN
    hyperparameters: ClassVar = {
        **SMALL,
        **C51,
        **{"model.noisy": True, "model.dueling": True, "n_step": 3, "replay.name": "prioritized", "tau": 0.5},
    }
    inert = frozenset({"exploration.final", "exploration.horizon"})  # noise takes their place


@pytest.mark.slow
class TestDistributionsOfSequences(VariantSuite):
    task = DQN
    hyperparameters: ClassVar = {
        **{name: value for name, value in SMALL.items() if name != "batch_size"},
        **{"distribution": "quantile", "quantiles": 3, "model.noisy": True, "model.memory": "gru"},
        **{"model.sequence_length": 4, "model.burn_in": 2, "batch_size": 8, "model.width": 16, "tau": 0.5},
    }
    inert = frozenset({"exploration.final", "exploration.horizon"})


def numbers(*values: Any) -> SimpleNamespace:
    return SimpleNamespace(gamma=torch.zeros(1, 1), **dict(values))


def test_the_loss_of_quantiles_is_that_of_sb3_contrib() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms, target, reward = (torch.randn(1, 6, n, generator=generator) for n in (5, 5, 1))
    quantiles = Quantiles(numbers(("quantiles", 5)))
    losses, errors = quantiles.losses(atoms, reward[..., 0], torch.full((1, 6), 0.5), target)
    targets = reward + 0.5 * target
    expected = quantile_huber_loss(atoms[0], targets[0], sum_over_quantiles=True)
    torch.testing.assert_close(losses.mean(), expected)
    torch.testing.assert_close(errors, targets.mean(-1) - atoms.mean(-1))


def test_probabilities_move_to_the_neighboring_returns() -> None:
    """By hand: of the returns -1, 0, 1, the next state has 0 for sure; 0.25 + 0.9 * 0 is a quarter of the way to 1."""
    form = Probabilities(numbers(("atoms", 3), ("v_min", torch.tensor([[-1.0]])), ("v_max", torch.tensor([[1.0]]))))
    sure = torch.tensor([[[-100.0, 0.0, -100.0]]])
    logits = torch.tensor([[[0.1, 0.2, 0.3]]])
    losses, errors = form.losses(logits, torch.tensor([[0.25]]), torch.tensor([[0.9]]), sure)
    log_p = logits.log_softmax(-1)[0, 0]
    torch.testing.assert_close(losses[0, 0], -(0.75 * log_p[1] + 0.25 * log_p[2]))
    assert torch.equal(errors, losses)
    beyond, _ = form.losses(logits, torch.tensor([[5.0]]), torch.tensor([[0.9]]), sure)
    torch.testing.assert_close(beyond[0, 0], -log_p[2])
    torch.testing.assert_close(form.mean(logits)[0, 0], (log_p.exp() * torch.tensor([-1.0, 0.0, 1.0])).sum())


def learner_of(task: Any = DQN, env: str = "CartPole-v1", **changes: Any) -> Any:
    made = task(env).init(**unflatten({**SMALL, **changes}))
    return task.learner(made.env, (0, 1), [made.hyperparameters] * 2)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_are_means_of_the_distributions(dueling: bool) -> None:
    learner = learner_of(**C51, **{"model.dueling": dueling})
    obs = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0))
    outputs = learner.policy(obs)
    assert outputs.shape == (2, 16, 2, 7)
    returns = torch.linspace(-10, 20, 7)
    values = (outputs.softmax(-1) * returns).sum(-1).detach()
    torch.testing.assert_close(torch.from_numpy(learner.policy.quick_values(obs)), values, rtol=1e-4, atol=1e-4)
    assert (learner.greedy(obs, None)[0] == values.argmax(-1)).all()


def test_double_learning_lets_the_online_network_choose() -> None:
    learner = learner_of(QRDQN, double=True, quantiles=3)
    learner.policy.target.vector.neg_()
    batch = {"next_obs": torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1))}
    batch = {**batch, "obs": batch["next_obs"], "action": torch.zeros(2, 16, dtype=torch.int64)}
    chosen = learner.next_actions(batch, learner.policy.of_batch(batch, True))
    assert (chosen == learner.policy.values(batch["next_obs"]).mean(-1).argmax(-1)).all()
    learner.hp.double = False
    judged = learner.next_actions(batch, learner.policy.of_batch(batch, False))
    assert (judged == learner.policy.target_values(batch["next_obs"]).mean(-1).argmax(-1)).all()


def test_gradients_are_those_of_the_mean_loss() -> None:
    learner = learner_of(QRDQN, quantiles=3)
    while learner.filling:
        learner.iterate()
    _, batch = learner.draw()
    policy, vector = learner.policy, learner.policy.parameters.vector

    def loss() -> torch.Tensor:
        result: torch.Tensor = learner.losses(batch, policy.of_batch(batch, False))[0]
        return result

    gradient = policy.parameters.gradient(loss())
    before = vector.clone()
    for i in gradient[0].abs().topk(3).indices.tolist():
        values = []
        for shift in (-1e-2, 1e-2):
            vector.copy_(before)
            vector[0, i] += shift
            values.append(loss()[0].detach().clone())
        torch.testing.assert_close((values[1] - values[0]) / 2e-2, gradient[0, i], rtol=0.05, atol=1e-3)


def test_noise_enters_weights_and_biases() -> None:
    """Fortunato et al. (2018), eq. 9 to 11, for one layer of two inputs and one output."""
    head = NoisyMLP("q", [2, 1], "relu", 0.5)
    parameters = initialize([head], Parameters(head.shapes, 1), [0])
    assert head.noise_size == 3
    assert parameters.views["q.0.weight_std"].unique().item() == pytest.approx(0.5 / 2**0.5)
    assert parameters.views["q.0.weight"].abs().max() <= 2**-0.5
    x, noise = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[4.0, -9.0, 0.25]])
    plain, noisy = head.layers(parameters.views), head.noisy_layers(parameters.views, noise)
    std = 0.5 / 2**0.5
    # f(u) = (2, -3), f(v) = 1/2: the weights move by std (1, -1.5), the bias by std / 2
    torch.testing.assert_close(head(noisy, x) - head(plain, x), torch.tensor([[[std * (1 - 3 + 0.5)]]]))


def test_noise_explores_in_place_of_epsilon_and_rests_in_evaluation() -> None:
    learner = learner_of(**{"model.noisy": True, "num_envs": 20, "buffer_size": 400, "n_step": 1})
    obs = learner.tensor(np.repeat(learner.envs.obs[:, :1], 20, 1))
    actions = [learner.explore(obs, step) for step in range(40)]
    assert all((row == row[:, :1]).all() for row in actions)  # all environments of a step have one noise
    assert len(np.unique(np.concatenate(actions))) == 2
    greedy = learner.actor(20)(obs.numpy())
    assert (greedy == learner.policy.acting_values(obs).argmax(-1).numpy()).all()
    space = DQN.learner.open_space(learner.env, {"model": {"noisy": True}})
    assert not [name for name, entry in space.flat().items() if name.startswith("exploration") and entry.search]


def test_returns_without_a_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DQN: v_min must be below v_max, but they are 3\.0 and 2\.0"):
        DQN("CartPole-v1").init(distribution="categorical", v_min=3.0, v_max=2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"distribution": "quantile", "quantiles": 25}, {**C51, "v_max": 100.0, "atoms": 51}]
)
def test_cartpole_is_learned(changes: dict[str, Any]) -> None:
    made = DQN("CartPole-v1", seed=0).init(**changes)
    made.fit(8)
    assert made.evaluate() > 300
