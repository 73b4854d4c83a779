"""TRPO: exactness, its step by hand and beside exact solutions, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from rekindle import TRPO
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.trpo import conjugate_gradients
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

SMALL: dict[str, Any] = {
    "num_steps": 16,
    "num_envs": 2,
    "epoch_steps": 64,
    "num_minibatches": 2,
    "update_epochs": 2,
    "cg_steps": 3,
    "model.width": 8,
}


WHOLE: dict[str, Any] = {
    "model.shared_critic": True,
    "num_minibatches": 1,
    "normalize_advantage": True,
    "min_steps": 40,
}  # updates from whole episodes


class TestTRPO(ExactnessSuite):
    task = TRPO
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = ({"normalize_obs": True},)
    inert = frozenset({"model.std_init"})


@pytest.mark.slow
class TestInBoxes(VariantSuite):
    task = TRPO
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "normalize_advantage": "running"}
    variants: ClassVar = ({"use_sde": True, "optimizer.name": "adamw"}, WHOLE)
    inert = frozenset({"model.std_init"})


def prepared(env: str = "CartPole-v1", **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a learner of two members and a batch."""
    made = TRPO(env).init(**unflatten({**SMALL, "num_steps": 64, **changes}))
    learner: Any = TRPO.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)
    for _ in range(3):
        learner.iterate()
    rollout = learner.agent.collect(learner.envs, 3)
    return learner, learner.agent.advantages(rollout, learner.hp.gamma, learner.hp.gae_lambda)


def divergence(learner: Any, batch: dict[str, torch.Tensor], old: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = learner.policy.distribution.kl(old, learner.policy.action_params(batch["obs"])).mean(1)
    return result


def test_conjugate_gradients_solve_linear_systems() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(2, 5, 5, generator=generator)
    matrix = root @ root.mT + torch.eye(5)
    b = torch.randn(2, 5, generator=generator)
    x = conjugate_gradients(lambda v: (matrix @ v.unsqueeze(-1)).squeeze(-1), b, 20)
    torch.testing.assert_close(x, torch.linalg.solve(matrix, b), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_curvature_is_that_of_the_divergence(env: str) -> None:
    """KL(θ, θ + ε v) = ε² vᵀ F v / 2 for small ε."""
    learner, batch = prepared(env, cg_damping=0.0)
    old = learner.policy.action_params(batch["obs"]).clone()
    vector = learner.policy.parameters.vector
    v = torch.randn(vector.shape, generator=torch.Generator().manual_seed(0)) * (1 - learner.critics)
    curvature = (v * learner.fisher(batch, old)(v)).sum(1)
    vector.add_(3e-2 * v)
    torch.testing.assert_close(2 * divergence(learner, batch, old) / 9e-4, curvature, rtol=0.1, atol=1e-3)


def test_a_step_improves_the_objective_within_the_trust_region() -> None:
    learner, batch = prepared(target_kl=0.02)
    old = learner.policy.action_params(batch["obs"]).clone()
    critic = (learner.policy.parameters.vector * learner.critics).clone()
    metrics, _ = learner.improve_policy(batch, torch.tensor([[True], [False]]))
    moved = divergence(learner, batch, old)
    assert 0.005 < moved[0] < 0.02
    assert moved[1] == 0
    assert metrics["stepped"].tolist() == [1, 0]
    torch.testing.assert_close(metrics["approx_kl"], moved)
    assert torch.equal(learner.policy.parameters.vector * learner.critics, critic)


def test_a_step_that_only_leaves_the_trust_region_is_not_taken() -> None:
    learner, batch = prepared(line_search_steps=1)
    learner.hp.target_kl[0] = 1e-6
    learner.hp.cg_damping[0] = 0
    direct = learner.fisher(batch, learner.policy.action_params(batch["obs"]).clone())
    learner.fisher = lambda *_: lambda v: direct(v) * torch.tensor([[0.01], [1.0]])  # a step ten times too long
    before = learner.policy.parameters.vector.clone()
    metrics, _ = learner.improve_policy(batch, None)
    assert metrics["stepped"][0] == 0
    assert torch.equal(learner.policy.parameters.vector[0], before[0])


def test_only_the_critic_learns_from_values() -> None:
    learner, batch = prepared(**{"optimizer.name": "adamw"})
    before = learner.policy.parameters.vector.clone()
    learner.fit_critic(batch, learner.hp.optimizer.lr, None)
    changed = learner.policy.parameters.vector != before
    assert not changed[:, learner.critics[0] == 0].any()
    assert changed[:, learner.critics[0] == 1].float().mean() > 0.9


def test_the_optimizers_rate_is_not_searched_beside_the_critics() -> None:
    assert "optimizer.lr" in TRPO("CartPole-v1").get_space().unfixed()
    assert "optimizer.lr" not in TRPO("CartPole-v1", critic_lr=1e-3).get_space().unfixed()


def test_a_memory_and_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match=r"TRPO: its curvature needs second derivatives, .* model.memory is gru"):
        TRPO("CartPole-v1").init(model={"memory": "gru"})
    with pytest.raises(ValueError, match=r"TRPO: its trust region lies around the policy that acted, but overlap"):
        TRPO("CartPole-v1").init(overlap=True)


@pytest.mark.slow
def test_cartpole_is_learned() -> None:
    made = TRPO("CartPole-v1", seed=0).init()
    made.fit(8)
    assert made.evaluate() > 450
