"""PQN: exactness, its returns and exploration by hand, layer normalization, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from rekindle import PQN
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.pqn import EpsilonChoice
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks.layer_norm import LayerNormMLP
from rekindle.tasks.networks.masked_logits import FORBIDDEN
from rekindle.tasks.networks.mlp import Parameters, initialize
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

SMALL: dict[str, Any] = {
    "num_steps": 16,
    "num_envs": 2,
    "epoch_steps": 64,
    "num_minibatches": 2,
    "update_epochs": 2,
    "optimizer.lr": 0.01,
    "max_grad_norm": 0.1,
    "exploration.horizon": 100,
    "model.width": 16,
}


class TestPQN(ExactnessSuite):
    task = PQN
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = ({"normalize_obs": True, "normalize_reward": True},)


@pytest.mark.slow
class TestOnImages(VariantSuite):
    task = PQN
    env: ClassVar = {"id": "own_envs:Square-v0", "kwargs": {"side": 6}}
    hyperparameters: ClassVar = {**SMALL, "model.encoder": "small"}


def learner_of(**changes: Any) -> Any:
    made = PQN("CartPole-v1").init(**unflatten({**SMALL, **changes}))
    return PQN.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)


def test_returns_mix_what_follows_with_the_greatest_values() -> None:
    """Against the recursion, with episodes of 5 steps that are cut off and an end by a fall."""
    learner = learner_of(num_steps=40, q_lambda=0.6, gamma=0.9)
    rollouts: list[Any] = []
    collect = learner.agent.collect
    learner.agent.collect = lambda *arguments: rollouts.append(collect(*arguments)) or rollouts[-1]
    batch = learner.collect()
    [rollout] = rollouts
    _, following = learner.agent.values(rollout)
    obs = rollout.obs[:, :-1].flatten(1, 2)
    best = learner.agent.policy.action_params(obs).amax(-1)
    torch.testing.assert_close(batch["values"], best)
    assert rollout.terminated.any()
    last, returns = following[-1], []
    for t in reversed(range(40)):
        ended, terminated = rollout.ended[t], rollout.terminated[t]
        mixed = torch.where(ended > 0, following[t], 0.4 * following[t] + 0.6 * last)
        last = rollout.rewards[t] + 0.9 * (1 - terminated) * mixed
        returns.append(last)
    torch.testing.assert_close(batch["returns"], learner.agent.flatten(torch.stack(returns[::-1])))


def test_exploration_is_uniform_among_allowed_actions() -> None:
    choice = EpsilonChoice(3)
    values = torch.tensor([5.0, 1.0, FORBIDDEN]).expand(3000, 3)
    generator = torch.Generator().manual_seed(0)
    noise = torch.cat([torch.ones(3000, 1), torch.rand(3000, 3, generator=generator)], 1)
    counts = torch.bincount(choice.sample(values, noise), minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 1500) < 4 * (3000 / 4) ** 0.5
    assert (choice.sample(values, torch.cat([torch.zeros(3000, 1), noise[:, 1:]], 1)) == 0).all()


def test_epsilon_falls_over_its_horizon() -> None:
    learner = learner_of(
        num_steps=50, **{"exploration.start": 1.0, "exploration.final": 0.0, "exploration.horizon": 100}
    )
    shares = [learner.agent.noise(rollout)[..., 0] for rollout in (0, 1)]
    assert 0.3 < shares[0].mean() < 0.7  # of 1 to 0 in 50 steps of two environments
    assert (shares[0][0] == 1).all()
    assert (shares[1] == 0).all()


def test_hidden_layers_are_normalized_as_in_torch() -> None:
    network = LayerNormMLP("q", [4, 8, 8, 2], "relu", last_gain=1.0)
    parameters = initialize([network], Parameters(network.shapes, 1), [0])
    generator = torch.Generator().manual_seed(0)
    for name in ("q.0.norm_scale", "q.1.norm_shift"):
        parameters.views[name].copy_(torch.rand(1, 1, 8, generator=generator))
    x = torch.randn(1, 5, 4, generator=generator)
    views, y = {name: view[0] for name, view in parameters.views.items()}, x[0]
    for layer in ("q.0", "q.1"):
        y = y @ views[f"{layer}.weight"] + views[f"{layer}.bias"]
        scale, shift = views[f"{layer}.norm_scale"][0], views[f"{layer}.norm_shift"][0]
        y = torch.nn.functional.layer_norm(y, (8,), scale, shift).relu()
    expected = y @ views["q.2.weight"] + views["q.2.bias"]
    torch.testing.assert_close(network(network.layers(parameters.views), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_loss() -> None:
    learner = learner_of(**{"model.activation": "tanh"})
    batch, vector = learner.collect(), learner.agent.policy.parameters.vector
    gradient = learner.agent.policy.parameters.gradient(learner.loss(batch)[0]).clone()
    before = vector.clone()
    for i in gradient[0].abs().topk(3).indices.tolist():
        values = []
        for shift in (-2e-3, 2e-3):
            vector.copy_(before)
            vector[0, i] += shift
            values.append(learner.loss(batch)[0][0].item())
        assert (values[1] - values[0]) / 4e-3 == pytest.approx(gradient[0, i].item(), rel=0.1, abs=1e-3)


def test_boxes_and_uneven_minibatches_are_refused() -> None:
    with pytest.raises(UnsupportedSpace, match=r"PQN on Pendulum-v1 chooses among the actions of a Discrete space"):
        PQN("Pendulum-v1").init()
    with pytest.raises(
        ValueError, match=r"num_steps \* num_envs \(256\) must be divisible by num_minibatches \(3\); try"
    ):
        PQN("CartPole-v1").init(num_minibatches=3)


@pytest.mark.slow
def test_cartpole_is_learned() -> None:
    made = PQN("CartPole-v1", seed=0).init(optimizer={"lr": 1e-3})
    made.fit(6)
    assert made.evaluate() > 400
