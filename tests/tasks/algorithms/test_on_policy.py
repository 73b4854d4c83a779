"""Common parts of PPO, PPO2 and A2C: scheduled coefficients, and hyperparameters' names elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes import batch_of
from rekindle import A2C, PPO, PPO2, SVPG, Cohort, EnvSpec, Task
from rekindle.spaces import SpaceError, UnknownParameter

SMALL: dict[str, Any] = {"num_steps": 16, "num_envs": 4, "epoch_steps": 128}
HALF = {"name": "piecewise", "points": [[0, 1.0], [64, 0.5], [192, 0.25]]}


def learner_of(task: type[Task], **hyperparameters: Any) -> Any:
    tasks = [task("CartPole-v1", seed=seed).init(**SMALL, **hyperparameters) for seed in range(2)]
    return tasks[0].build_learner(tasks)


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [
        (PPO, "clip_coef", 0.2),
        (PPO, "clip_value", 0.4),
        (PPO, "ent_coef", 0.01),
        (PPO2, "clip_coef", 0.2),
        (PPO2, "clip_value", 0.4),
        (PPO2, "ent_coef", 0.01),
        (A2C, "ent_coef", 0.01),
    ],
)
def test_a_coefficient_follows_its_points_and_is_reported(task: type[Task], name: str, value: float) -> None:
    learner = learner_of(task, **{name: value, f"{name}_schedule": HALF})
    seen = [learner.iterate()[name] for _ in range(4)]  # of 64 environment steps each
    factors = torch.tensor([0.5, 0.375, 0.25, 0.25])
    torch.testing.assert_close(torch.stack(seen), (value * factors)[:, None].expand(4, 2))


@pytest.mark.parametrize("name", ["clip_coef", "ent_coef"])
def test_a_coefficient_that_is_constant_is_the_hyperparameter_itself(name: str) -> None:
    learner = learner_of(PPO)
    assert name not in learner.iterate()
    assert torch.equal(learner.coefficient(name), getattr(learner.hp, name)[:, 0])


@pytest.mark.parametrize("task", [PPO, PPO2, A2C])
def test_a_loss_sees_the_coefficients_of_its_moment(task: type[Task]) -> None:
    names = {name: 0.3 for name in ("clip_coef", "clip_value", "ent_coef") if name in task.learner.hyperparameters}
    scheduled = learner_of(task, **names, **{f"{name}_schedule": HALF for name in names})
    constant = learner_of(task, **{name: value / 2 for name, value in names.items()})
    batch = batch_of(constant)
    batch["log_probs"] = batch["log_probs"] + 0.2  # so that the ratios lie outside of one clip range
    batch["values"] = batch["values"] + 0.2
    before = scheduled.loss(batch)[0]
    scheduled.env_steps = 64
    assert torch.equal(scheduled.loss(batch)[0], constant.loss(batch)[0])
    assert not torch.equal(before, constant.loss(batch)[0])


def test_training_further_than_planned_bends_no_schedule() -> None:
    # ML-Agents' schedules ran over the budget of this call: extending it changed what had been.
    plan = {f"{name}_schedule": {"name": "linear", "horizon": 256} for name in ("lr", "clip_coef", "ent_coef")}
    short, long = (PPO("CartPole-v1").init(**SMALL, **plan) for _ in range(2))
    short.fit(1)
    short.fit(4)
    long.fit(4)
    assert short.digest == long.digest
    assert long.metrics["clip_coef"] == pytest.approx(0.02)


def test_members_of_a_cohort_follow_their_own_schedules() -> None:
    def make(seed: int) -> Task:
        plan = {"name": "linear", "horizon": 100 * (seed + 1), "final": 0.1 * (seed + 1)}
        return PPO2("CartPole-v1", seed=seed).init(**SMALL, clip_coef_schedule=plan, ent_coef_schedule=plan)

    together = [make(seed) for seed in range(4)]
    Cohort(together).fit(2)
    for seed in (0, 3):
        alone = make(seed)
        alone.fit(2)
        assert alone.digest == together[seed].digest
        assert alone.metrics == together[seed].metrics


def test_a_schedule_of_what_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PPO: clip_value_schedule needs a clip_value to act on"):
        PPO("CartPole-v1").init(clip_value_schedule={"name": "linear"})


@pytest.mark.parametrize("module", [torch.nn.Linear, torch.nn.Linear(2, 2)], ids=["class", "object"])
def test_a_network_in_place_of_its_name_is_refused_with_the_cure(module: Any) -> None:
    cure = r"an object can be neither stored nor compared; name its class instead: model.encoder='package.module:Class"
    for model in (module, {"encoder": module}):
        with pytest.raises(SpaceError, match=cure):
            PPO("CartPole-v1").init(model=model)
    with pytest.raises(SpaceError, match=r"gamma must be data.*compared$"):
        PPO("CartPole-v1").init(gamma=module)


@pytest.mark.parametrize("name", ["clip_coef", "ent_coef", "clip_value"])
def test_a_function_for_a_coefficient_is_refused_with_the_cure(name: str) -> None:
    law = rf"{name} must be data, not <function .*: a function can be neither stored nor compared"
    with pytest.raises(SpaceError, match=rf"{law}.* such as {name}_schedule=\{{'name': 'piecewise', 'points': \[\["):
        PPO("CartPole-v1").init(**{name: lambda progress: 0.2 * progress})
    with pytest.raises(SpaceError, match=r"optimizer.lr must be data.* such as lr_schedule=\{'name': 'piecewise'"):
        PPO("CartPole-v1").init(optimizer={"lr": lambda progress: 1e-3 * progress})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("n_steps", "num_steps"),
        ("n_epochs", "update_epochs"),
        ("clip_range", "clip_coef"),
        ("n_envs", "num_envs"),
        ("clip_range_vf", "clip_value"),
        ("learning_rate", "optimizer.lr"),
        ("batch_size", "num_minibatches"),
        ("policy_kwargs.log_std_init", "model.std_init"),
        ("policy_kwargs.net_arch", "model.hidden"),
        ("eps_clip", "clip_coef"),
        ("lamda", "gae_lambda"),
        ("vfcn_coeff", "vf_coef"),
        ("num_epoch", "update_epochs"),
        ("hyperparameters.lambd", "gae_lambda"),
        ("time_horizon", "num_steps"),
        ("normalize", "normalize_obs"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(theirs: str, ours: str) -> None:
    with pytest.raises(UnknownParameter, match=rf"'{theirs}'; did you mean {ours}\?"):
        PPO("CartPole-v1").init(**{theirs: 1})


def test_rebuilt_environments_reset_the_memory() -> None:
    env = EnvSpec("fakes:Remembering-v0", {"length": 90})  # restored at the ends of epochs only
    task = PPO(env).init(**SMALL, num_minibatches=2, model={"memory": "gru"}, normalize_reward=True)
    learner = task.build_learner([task])
    learner.iterate()
    assert learner.agent.memory.tensors["state"].any()
    assert learner.agent.reward_normalizer.returns.any()
    learner.run_epoch()
    assert not learner.agent.memory.tensors["state"].any()
    assert not learner.agent.reward_normalizer.returns.any()


@pytest.mark.parametrize("task", [PPO, PPO2, A2C, SVPG])
def test_the_first_deviation_is_searched_only_where_actions_have_one(task: type[Task]) -> None:
    assert "model.std_init" in searched(task("Pendulum-v1"))
    assert "model.std_init" not in searched(task("CartPole-v1"))
    here, there = (task("CartPole-v1").init(**values).uid for values in ({}, {"model": {"std_init": 1.0}}))
    assert here == there == task("CartPole-v1").init(**task("CartPole-v1").get_space().defaults()).uid


def test_hyperparameters_without_effect_beside_a_separate_critic_are_not_searched() -> None:
    idle = {"vf_coef", "clip_value"}
    assert idle <= searched(PPO("CartPole-v1"))
    assert not idle & searched(PPO("CartPole-v1", critic={"name": "separate"}))


def searched(task: Task) -> set[str]:
    """Return the names of what a study would vary."""
    return {*task.get_space().unfixed()}
