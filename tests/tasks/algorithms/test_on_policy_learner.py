"""Gradient steps by one kernel per pass over a batch: the bits of those that are taken one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rekindle import A2C, PPO, PPO2
from rekindle.tasks import Task
from rekindle.tasks.algorithms.on_policy_learner import KernelGradients, KernelSteps, TorchSteps
from rekindle.tasks.algorithms.ppo import PPOLearner

SIZE = {"num_steps": 16, "num_envs": 4, "num_minibatches": 4, "update_epochs": 3}
CASES: dict[str, tuple[type[Task], str, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", {}),
    "ppo, numbers": (PPO, "Pendulum-v1", {"clip_value": 0.2, "optimizer": {"name": "adamw", "weight_decay": 0.05}}),
    "ppo, neither limit": (PPO, "CartPole-v1", {"target_kl": None, "max_grad_norm": None, "critic_loss": "huber"}),
    "ppo, SiLU": (PPO, "Pendulum-v1", {"model": {"activation": "silu", "hidden": [17, 33], "critic_hidden": [5]}}),
    "ppo2": (PPO2, "Acrobot-v1", {"optimizer": {"name": "rmsprop", "momentum": 0.5}}),
    "a2c": (A2C, "CartPole-v1", {"normalize_advantage": True}),
    "a2c, AdamW": (A2C, "Pendulum-v1", {"optimizer": {"name": "adamw"}, "max_grad_norm": None}),
}
LIMITS = (1e-6, 3e-3, 1e3)  # target_kl of each member: stopped at once, soon, and never


def batch_of(learner: Any, number: int) -> Any:
    rollout = learner.agent.collect(learner.envs, number)
    return learner.agent.advantages(rollout, learner.hp.gamma, learner.hp.gae_lambda)


def taken(case: str, active: torch.Tensor | None, singly: bool) -> dict[str, torch.Tensor]:
    """Takes the steps of two updates; returns all that they leave behind."""
    task_class, env, values = CASES[case]
    stopping = [{} if task_class is A2C or "target_kl" in values else {"target_kl": limit} for limit in LIMITS]
    tasks = [task_class(env, seed=seed).init(**{**SIZE, **values, **more}) for seed, more in enumerate(stopping)]
    learner: Any = task_class.learner(tasks[0].env, range(len(tasks)), [task.hyperparameters or {} for task in tasks])
    left: dict[str, torch.Tensor] = {}
    rates = torch.full((len(tasks), 1), 0.01)
    assert isinstance(learner.steps, KernelSteps)
    if singly:
        learner.steps = KernelGradients(learner, learner.policy)
    for update in range(2):
        metrics, step = learner.steps(batch_of(learner, update), rates, active)
        result = {**metrics, "gradient": step.gradient, **({} if step.factor is None else {"factor": step.factor})}
        left |= {f"{name} {update}": x.clone() for name, x in result.items()}
        learner.iterations += 1
    return left | {"vector": learner.policy.parameters.vector} | learner.optimizer.tensors


@pytest.mark.parametrize("active", [None, torch.tensor([[True], [False], [True]])], ids=["all", "some"])
@pytest.mark.parametrize("case", CASES)
def test_a_pass_by_kernels_has_the_bits_of_single_steps(case: str, active: torch.Tensor | None) -> None:
    together, singly = (taken(case, active, singly) for singly in (False, True))
    assert together.keys() == singly.keys()
    assert [name for name, x in together.items() if not torch.equal(x, singly[name])] == []
    steps, most = together["steps"][:, 0].tolist(), 2 * 3 * 4
    assert steps[2] == most
    assert (steps[1] == 0) == (active is not None)
    if case in ("ppo", "ppo, numbers", "ppo, SiLU", "ppo2"):
        assert 0 < steps[0] < most, "target_kl stopped it"


class Flat:
    """A loss that is flat."""

    def loss(self, batch: Any) -> Any:
        losses, metrics = super().loss(batch)  # type: ignore[misc]  # of the learner that it is mixed into
        return 0.0 * losses, metrics


class Frozen(Flat, PPOLearner):
    """PPO whose loss a mixin overrides."""


class Stated(PPOLearner):
    """PPO with another loss, and the kernel of it."""

    def policy_loss(self, log_probs: Any, advantages: Any, batch: Any) -> Any:
        return super().policy_loss(log_probs, advantages, batch)

    def kernel(self) -> Any:
        return super().kernel()


def test_kernels_take_no_steps_for_a_loss_that_a_subclass_has_replaced() -> None:
    task = PPO("CartPole-v1", seed=0).init(**SIZE, target_kl=None)
    moved = []
    for learner_class in (PPOLearner, Frozen):
        learner: Any = learner_class(task.env, [0], [task.hyperparameters or {}])
        before = learner.policy.parameters.vector.clone()
        learner.iterate()
        moved.append(not torch.equal(before, learner.policy.parameters.vector))
    assert moved == [True, False]


def test_a_class_that_overrides_the_loss_has_no_kernel_unless_it_gives_one() -> None:
    task = PPO("CartPole-v1", seed=0).init(**SIZE)
    learners: list[Any] = [
        learner_class(task.env, [0], [task.hyperparameters or {}]) for learner_class in (PPOLearner, Frozen, Stated)
    ]
    assert [learner.kernel() is not None for learner in learners] == [True, False, True]


def test_a_loss_that_is_not_a_number_is_found_and_not_stopped_at() -> None:
    """Without target_kl nothing stops a member, so its numbers end the training; with it they stay as they were."""
    for limit, finite in ((None, False), (0.02, True)):
        task = PPO("CartPole-v1", seed=0).init(**SIZE, target_kl=limit)
        for steps in (KernelSteps, KernelGradients, TorchSteps):
            learner: Any = PPOLearner(task.env, [0], [task.hyperparameters or {}])
            learner.steps = steps(learner) if steps is TorchSteps else steps(learner, learner.policy)
            batch = batch_of(learner, 0)
            batch["log_probs"][:] = torch.nan
            learner.steps(batch, torch.full((1, 1), 0.01), None)
            assert bool(learner.policy.parameters.vector.isfinite().all()) is finite
