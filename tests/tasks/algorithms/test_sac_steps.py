"""Gradient steps of actor-critics by one kernel each, whether it gathers the batches or is given them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rekindle import SAC, EnvSpec
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.continuous.sac import SACLearner
from rekindle.tasks.algorithms.off_policy_learner import ReplaySteps
from rekindle.tasks.compiled.loading import without_kernels
from test_dqn_steps import unequal
from torch import Tensor


class SpeedAlone(gym.ObservationWrapper[Any, Any, Any]):
    """Pendulum's speed, the last of its three numbers."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-8.0, 8.0, (1,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[2:]


SMALL: dict[str, Any] = {"learning_starts": 40, "batch_size": 17, "buffer_size": 90, "num_envs": 2, "model.width": 16}
COSINE = {"lr_schedule.name": "cosine", "lr_schedule.horizon": 200, "lr_schedule.warmup": 60}
CASES: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer.name": "sgd", "optimizer.momentum": 0.5},
    "defaults": {},
    "by priority, n steps": {"replay.name": "prioritized", "n_step": 3, "replay.beta_horizon": 200},
    "Huber's loss, scaled observations": {"critic_loss": "huber", "normalize_obs": True, "max_grad_norm": 0.1},
    "constant entropy": {"entropy.learn": False, "entropy.alpha": 0.2, "target_update_interval": 3, "num_updates": 2},
    "a delayed policy that follows the mean": {"policy_delay": 3, "critic.mean": True},
    "AdamW": {"optimizer.name": "adamw", "critic_lr": 0.01, "entropy.lr": 0.02, **COSINE},
    "rmsprop": {"optimizer.name": "rmsprop", "optimizer.momentum": 0.5, "model.activation": "elu"},
    "state-dependent noise": {"use_sde": True, "sde_sample_freq": 3, "sde_clip_mean": 0.5},
    "sizes": {"model.hidden": [17, 5, 33], "model.critic_hidden": [9, 20], "model.activation": "tanh"},
}
# In each, members differ in what may differ within a cohort.
OWN: list[dict[str, Any]] = [{}, {"gamma": 0.9, "optimizer.lr": 0.01}, {"tau": 0.3, "target_update_interval": 2}]


def learner_of(
    values: dict[str, Any],
    members: int = 3,
    learner_class: type[SACLearner] = SACLearner,
    env: str | EnvSpec = "Pendulum-v1",
) -> Any:
    tasks = [
        SAC(env, seed=seed).init(**unflatten({**SMALL, **values, **changes}))
        for seed, changes in enumerate(OWN[:members])
    ]
    return learner_class(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])


def trained(learner: Any) -> dict[str, Tensor]:
    """Trains for a while; returns all that the gradient steps leave behind."""
    left: dict[str, Tensor] = {}
    update = learner.sampler.update

    def noted(rows: Any, errors: Tensor) -> None:
        left[f"errors {learner.progress.updates}"] = errors.clone()
        update(rows, errors)

    learner.sampler.update = noted
    while learner.env_steps < 100:
        metrics = learner.iterate()
        left |= {f"{name} {learner.env_steps}": x.clone() for name, x in metrics.items()}
        learner.tally.add(metrics)
    assert learner.progress.updates > 20
    parts = (learner.policy, learner.actor_optimizer, learner.critic_optimizer, learner.coefficients)
    tensors = [getattr(part, "tensors", {}) for part in parts]
    return left | {f"{i} {name}": x for i, part in enumerate(tensors) for name, x in part.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_step_has_the_same_bits_on_batches_that_are_given(case: str) -> None:
    compiled, plain = learner_of(CASES[case]), learner_of(CASES[case])
    assert compiled.steps.gathers
    plain.steps.gathers = False
    result = trained(compiled)
    assert any(name.startswith("grad_norm.critic") for name in result)
    assert unequal(result, trained(plain)) == []


def test_a_soft_step_takes_observations_of_one_number() -> None:
    env = EnvSpec.of({"id": "Pendulum-v1", "wrappers": [{"entry_point": "test_sac_steps:SpeedAlone"}]})
    compiled, plain = learner_of({}, env=env), learner_of({}, env=env)
    plain.steps.gathers = False
    assert unequal(trained(compiled), trained(plain)) == []


def test_a_members_soft_steps_do_not_depend_on_its_cohort() -> None:
    alone, together = (trained(learner_of({}, members)) for members in (1, 3))
    single = {name: x[:1] for name, x in together.items() if not name.startswith(("0 critic", "0 target"))}
    assert unequal({name: alone[name] for name in single}, single) == []


OTHERS: dict[str, dict[str, Any]] = {"a memory": {"model.memory": "gru", "learning_starts": 80, "batch_size": 32}}


@pytest.mark.parametrize("case", OTHERS)
def test_other_soft_steps_are_taken_operation_by_operation(case: str) -> None:
    assert type(learner_of(OTHERS[case], 1).steps) is ReplaySteps


def test_steps_without_kernels_are_taken_operation_by_operation() -> None:
    with without_kernels():
        assert type(learner_of({}, 1).steps) is ReplaySteps


def test_a_replaced_loss_of_the_critics_is_used() -> None:
    class Half(SACLearner):
        """Half the rewards."""

        def total_reward(self, batch: Any) -> Tensor:
            return super().total_reward(batch) / 2

    learner = learner_of({}, 1, Half)
    assert type(learner.steps) is ReplaySteps
    assert unequal(trained(learner), trained(learner_of({}, 1))) != []
