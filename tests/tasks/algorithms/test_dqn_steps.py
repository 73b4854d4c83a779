"""Gradient steps of DQN by one kernel each, whether it gathers the batches or is given them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rekindle import DQN
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.dqn.dqn import DQNLearner
from rekindle.tasks.algorithms.dqn.steps import QSteps
from rekindle.tasks.algorithms.off_policy_learner import ReplaySteps
from rekindle.tasks.compiled.loading import without_kernels
from torch import Tensor

SMALL: dict[str, Any] = {"learning_starts": 40, "batch_size": 17, "buffer_size": 90, "num_envs": 2, "model.width": 16}
MOVES = {"tau": 1.0, "target_interval": 3}
COSINE = {"lr_schedule.name": "cosine", "lr_schedule.horizon": 200, "lr_schedule.warmup": 60}
CASES: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer.name": "sgd", "optimizer.momentum": 0.5},
    "defaults": {},
    "the paper's": {"double": False, "n_step": 1, **MOVES},
    "by priority": {"replay.name": "prioritized", "n_step": 5, "replay.beta_horizon": 200},
    "by priority, squares": {"replay.name": "prioritized", "critic_loss": "mse", "double": False},
    "rmsprop": {"optimizer.name": "rmsprop", "optimizer.momentum": 0.5, "max_grad_norm": None},
    "AdamW": {"optimizer.name": "adamw", "optimizer.weight_decay": 0.05, "max_grad_norm": 0.01, **COSINE},
    "tanh": {"model.hidden": [17, 5, 33], "model.activation": "tanh", "normalize_obs": True},
    "ELU": {"model.layers": 1, "model.activation": "elu", "num_updates": 1},
    "quantiles": {"distribution": "quantile", "quantiles": 7, "replay.name": "prioritized"},
    "probabilities": {"distribution": "categorical", "atoms": 11, "v_max": 20.0},
}
# In each, members differ in what may differ within a cohort.
OWN: list[dict[str, Any]] = [{}, {"gamma": 0.9, "optimizer.lr": 0.01}, {"target_interval": 2, "tau": 0.3}]


def learner_of(
    values: dict[str, Any], members: int = 3, learner_class: type[DQNLearner] = DQNLearner, env: str = "CartPole-v1"
) -> Any:
    tasks = [
        DQN(env, seed=seed).init(**unflatten({**SMALL, **values, **changes}))
        for seed, changes in enumerate(OWN[:members])
    ]
    return learner_class(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])


def trained(learner: Any) -> dict[str, Tensor]:
    """Trains for a while; returns all that the gradient steps leave behind."""
    left: dict[str, Tensor] = {}
    sampler = learner.sampler
    update = sampler.update

    def noted(rows: Any, errors: Tensor) -> None:
        left[f"errors {learner.progress.updates}"] = errors.clone()
        update(rows, errors)

    sampler.update = noted
    while learner.env_steps < 300:
        metrics = learner.iterate()
        left |= {f"{name} {learner.env_steps}": x.clone() for name, x in metrics.items()}
        learner.tally.add(metrics)
    assert learner.progress.updates > 20
    return left | learner.policy.tensors | learner.optimizer.tensors


def unequal(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, x in one.items() if not torch.equal(x, other[name])]


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_same_bits_on_batches_that_are_given(case: str, env: str) -> None:
    compiled, plain = learner_of(CASES[case], env=env), learner_of(CASES[case], env=env)
    assert compiled.steps.gathers
    plain.steps.gathers = False
    result = trained(compiled)
    assert any(name.startswith("grad_norm.q") for name in result)
    assert unequal(result, trained(plain)) == []


def test_a_members_steps_do_not_depend_on_its_cohort() -> None:
    alone, together = (trained(learner_of({}, members)) for members in (1, 3))
    assert unequal(alone, {name: x[:1] for name, x in together.items()}) == []


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("distribution", ["none", "quantile", "categorical"])
def test_values_that_are_not_numbers_spread_and_spare_other_members(compiled: bool, distribution: str) -> None:
    learner = learner_of({"distribution": distribution})
    if not compiled:
        learner.steps = ReplaySteps(learner)
    learner.policy.target.vector[1] = torch.nan
    left = trained(learner)
    assert not left["vector"][1].isfinite().any()
    assert left["vector"][::2].isfinite().all()


OTHERS: dict[str, dict[str, Any]] = {
    "dueling": {"model.dueling": True},
    "SiLU": {"model.activation": "silu"},
    "a memory": {"model.memory": "gru", "batch_size": 32, "learning_starts": 200, "buffer_size": 400},
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_steps_are_taken_operation_by_operation(case: str) -> None:
    assert type(learner_of(OTHERS[case], 1).steps) is ReplaySteps


def test_no_kernel_takes_steps_without_kernels() -> None:
    with without_kernels():
        assert type(learner_of({}, 1).steps) is ReplaySteps


def test_a_replaced_part_of_a_step_is_used() -> None:
    class Zero(DQNLearner):
        """Targets of zero."""

        def targets(self, batch: Any, values: Any) -> Tensor:
            return torch.zeros_like(super().targets(batch, values))

    learner = learner_of({}, 1, Zero)
    assert type(learner.steps) is ReplaySteps
    assert isinstance(learner_of({}, 1).steps, QSteps)
    assert unequal(trained(learner), trained(learner_of({}, 1))) != []
