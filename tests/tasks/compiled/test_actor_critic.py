"""Actor-critics by kernels, against torch and autograd, and exact on both paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from rekindle import A2C, PPO, PPO2
from rekindle.tasks import Task
from rekindle.tasks.algorithms.on_policy_learner import KernelGradients, TorchSteps
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.networks.actor_critic import ActorCritic
from rekindle.tasks.networks.compiled_actor_critic import CompiledActorCritic
from rekindle.tasks.testing import VariantSuite

MEMBERS = 3
CASES: dict[str, tuple[type[Task], str, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", {}),
    "ppo, values clipped": (PPO, "Pendulum-v1", {"clip_value": 0.5, "model": {"activation": "relu", "layers": 3}}),
    "ppo, odd sizes": (
        PPO,
        "Pendulum-v1",
        {"normalize_advantage": False, "model": {"hidden": [17, 33], "critic_hidden": [5]}},
    ),
    "ppo2": (PPO2, "Acrobot-v1", {}),
    "ppo2, Huber's loss": (PPO2, "Acrobot-v1", {"critic_loss": "huber", "clip_value": 0.3}),
    "ppo, SiLU": (PPO, "Pendulum-v1", {"model": {"activation": "silu", "layers": 3}}),
    "ppo, ELU": (PPO, "CartPole-v1", {"model": {"activation": "elu"}}),
    "a2c": (A2C, "CartPole-v1", {}),
    "a2c, standardized": (A2C, "Pendulum-v1", {"normalize_advantage": True, "critic_loss": "huber"}),
}


def learner_of(task_class: type[Task], env: str, hyperparameters: dict[str, Any]) -> Any:
    tasks = [task_class(env, seed=seed).init(num_steps=8, **hyperparameters) for seed in range(MEMBERS)]
    learner = task_class.learner(tasks[0].env, range(MEMBERS), [task.hyperparameters or {} for task in tasks])
    noise = torch.randn(learner.policy.parameters.vector.shape, generator=torch.Generator().manual_seed(0))
    learner.policy.parameters.vector.add_(0.05 * noise)
    return learner


WEIGHTED = ("ppo, values clipped", "ppo2", "a2c, standardized")


@pytest.mark.parametrize(
    ("case", "weighted"), [*((case, False) for case in CASES), *((case, True) for case in WEIGHTED)]
)
def test_kernels_give_what_torch_and_autograd_give(case: str, weighted: bool) -> None:
    compiled = learner_of(*CASES[case])
    with without_kernels():
        plain = learner_of(*CASES[case])
    assert isinstance(compiled.policy, CompiledActorCritic)
    assert type(plain.policy) is ActorCritic
    rollout, theirs = (x.agent.collect(x.envs, 0) for x in (compiled, plain))
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(rollout.actions, theirs.actions, **close)
    batch, expected = (x.agent.advantages(rollout, x.hp.gamma, x.hp.gae_lambda) for x in (compiled, plain))
    for name, tensor in batch.items():
        torch.testing.assert_close(tensor, expected[name], **close)
    generator = torch.Generator().manual_seed(1)
    batch["log_probs"] += 0.3 * torch.randn(batch["log_probs"].shape, generator=generator)  # as of an older policy
    batch["values"] += torch.randn(batch["values"].shape, generator=generator)
    if weighted:  # no row of the last member counts
        batch["weights"] = (torch.rand(batch["values"].shape, generator=generator) < 0.6).float()
        batch["weights"][-1] = 0
    minibatch = next(iter(compiled.agent.minibatches(batch, compiled.order, 0, 1, compiled.hp.num_minibatches)))
    metrics, result = KernelGradients(compiled, compiled.policy).differentiate(minibatch)
    known, gradient = TorchSteps(plain).differentiate(minibatch)
    assert weighted == bool((result[-1] == 0).all())
    torch.testing.assert_close(result, gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()))
    assert metrics.keys() == known.keys()
    for name, value in metrics.items():
        torch.testing.assert_close(value, known[name].detach(), **close)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_passes_over_rows_that_count_take_the_steps_of_their_minibatches(env: str) -> None:
    compiled, single, plain = (learner_of(PPO, env, {"num_minibatches": 8, "update_epochs": 2}) for _ in range(3))
    batch = compiled.agent.advantages(
        compiled.agent.collect(compiled.envs, 0), compiled.hp.gamma, compiled.hp.gae_lambda
    )
    weights = (torch.rand(batch["values"].shape, generator=torch.Generator().manual_seed(1)) < 0.6).float()
    lr = torch.full((MEMBERS, 1), 1e-2)
    compiled.steps({**batch, "weights": weights}, lr, None)
    single.steps = KernelGradients(single, single.policy)
    single.steps({**batch, "weights": weights}, lr, None)
    assert torch.equal(compiled.policy.parameters.vector, single.policy.parameters.vector)
    batch["advantages"] = torch.where(weights > 0, batch["advantages"], torch.nan)  # rows that are never read
    plain.steps({**batch, "weights": weights}, lr, None)
    assert torch.equal(compiled.policy.parameters.vector, plain.policy.parameters.vector)


@pytest.mark.parametrize(
    "hyperparameters", [{"model": {"memory": "gru"}}, {"model": {"shared_critic": True}}, {"use_sde": True}], ids=str
)
def test_torch_computes_cases_that_kernels_do_not_cover(hyperparameters: dict[str, Any]) -> None:
    learner = learner_of(PPO, "Pendulum-v1", hyperparameters)
    assert not isinstance(learner.policy, CompiledActorCritic)
    assert isinstance(learner.steps, TorchSteps)


class TestManyMembers(VariantSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {"epoch_steps": 128, "num_steps": 16, "num_envs": 4}
    inert = frozenset({"clip_coef", "max_grad_norm", "model.std_init"})
    cohort_size = 32


class TestThePlainPath(VariantSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {"epoch_steps": 128, "num_steps": 16, "num_envs": 4}
    inert = frozenset({"clip_coef", "max_grad_norm", "model.std_init"})

    @pytest.fixture(autouse=True)
    def _plain(self) -> Iterator[None]:
        with without_kernels():
            yield
