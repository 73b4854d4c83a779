"""Signals and cloning in DQN and SAC: exactness, added rewards, gradients, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DQN, SAC, Task
from rekindle.spaces import flatten, unflatten
from rekindle.tasks.algorithms.dqn.networks import QImitator
from rekindle.tasks.signals.demonstrations import Demonstrations
from rekindle.tasks.testing import ExactnessSuite
from signal_learners import GAIL, ICM, RND, VAIL, DemonstratedSuite

REPLAY: dict[str, Any] = {
    "epoch_steps": 48,
    "learning_starts": 24,
    "batch_size": 16,
    "buffer_size": 60,
    "num_steps": 4,
    "num_updates": 1,
    "num_envs": 2,
    "n_step": 1,
    "model.width": 16,
    "optimizer.lr": 0.01,
    "max_grad_norm": 0.1,
}
CLONING = {"cloning.use": True, "cloning.batch_size": 8, "cloning.samples_per_update": 16}


class TestDQN(DemonstratedSuite, ExactnessSuite):
    task = DQN
    hyperparameters: ClassVar = {**REPLAY, **ICM, **GAIL, **CLONING, "exploration.horizon": 100}
    variants: ClassVar = ({"extrinsic.strength": 0.5, "normalize_obs": True, "cloning.steps": 500},)
    inert = frozenset({"target_interval", "cloning.steps"})


class TestSAC(DemonstratedSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**REPLAY, **RND, **VAIL, **CLONING, "entropy.learn": False}
    variants: ClassVar = ({"scale_reward": True, "use_sde": True},)
    inert = frozenset({"target_update_interval", "entropy.alpha", "gail.beta_lr", "gail.information"})


def simple(env: str) -> Demonstrations:
    """Demonstrations in which the first number of an observation says what to do."""
    choices = env == "CartPole-v1"
    obs = np.random.default_rng(0).normal(size=(48, 4 if choices else 3)).astype(np.float32)
    actions = (obs[:, 0] > 0).astype(np.int64) if choices else np.tanh(obs[:, :1])
    return Demonstrations(obs, actions, np.arange(48) == 0)


def learner_of(task: type[Task], env: str = "CartPole-v1", **changes: Any) -> Any:
    values = unflatten({**REPLAY, **flatten(changes)})
    examples = simple(env) if {"gail", "cloning"} & values.keys() else None
    tasks = [task(env, seed=seed, demonstrations=examples).init(**values) for seed in range(2)]
    learner: Any = tasks[0].build_learner(tasks)
    while learner.filling:
        learner.iterate()
    return learner


@pytest.mark.parametrize("task", [DQN, SAC])
def test_the_total_is_every_reward_times_its_strength(task: type[Task]) -> None:
    learner = learner_of(task, **ICM, **{"extrinsic.strength": 0.5})
    _, batch = learner.draw()
    [icm] = learner.guidance.signals
    steps = {"obs": batch["obs"], "actions": batch["action"], "next_obs": batch["next_obs"]}
    expected = 0.5 * batch["reward"] + 0.1 * icm.rewards(steps)
    torch.testing.assert_close(learner.guidance.total(batch["reward"], batch), expected)
    assert float(icm.rewards(steps).min()) > 0


@pytest.mark.parametrize("task", [DQN, SAC])
def test_rewards_of_sequences_have_a_strength_too(task: type[Task]) -> None:
    """Once is what they are without it."""
    memory = {"model.memory": "gru", "model.sequence_length": 4, "model.burn_in": 2}
    histories = []
    for strength in (None, 1.0, 3.0):
        made = task("CartPole-v1", seed=1).init(**unflatten({**REPLAY, **memory, "extrinsic.strength": strength}))
        made.fit(2)
        histories.append(made.history)
    assert histories[0] == histories[1] != histories[2]


@pytest.mark.parametrize("encoder", ["small", "flat"])
def test_signals_see_the_images_that_sac_encodes(encoder: str) -> None:
    values = {**REPLAY, "num_envs": 1, "model.encoder": encoder, **ICM, **RND, "normalize_obs": True}
    learner = learner_of(SAC, "own_envs:CameraWalk-v0", **values)
    metrics = [learner.iterate() for _ in range(30)][-1]
    assert {"icm_reward", "rnd_reward", "critic_loss"} <= metrics.keys()


def test_rnd_pays_less_for_what_it_saw_often() -> None:
    learner = learner_of(SAC, "Pendulum-v1", **RND, **{"rnd.lr": 0.01})
    _, batch = learner.draw()
    before = learner.guidance.total(torch.zeros(2, 16), batch)
    for number in range(60):
        metrics = learner.guide(batch, number)
    after = learner.guidance.signals[0].rewards(
        {"obs": batch["obs"], "actions": batch["action"], "next_obs": batch["next_obs"]}
    )
    assert (after.mean(1) < 0.5 * before.mean(1)).all()
    assert set(metrics) == {"rnd_reward", "rnd_loss"}


@pytest.mark.parametrize(("task", "env"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1"), (SAC, "CartPole-v1")])
def test_cloning_learns_the_demonstrated_actions(task: type[Task], env: str) -> None:
    learner = learner_of(task, env, **{"cloning.use": True, "cloning.batch_size": 48})
    _, batch = learner.draw()
    critics = {name: x.clone() for name, x in learner.policy.tensors.items() if name in ("critic", "target")}
    first = learner.guide(batch, 0)["cloning_loss"]
    for number in range(1, 25):
        last = learner.guide(batch, number)["cloning_loss"]
    assert (last < 0.6 * first).all()
    assert all(torch.equal(learner.policy.tensors[name], x) for name, x in critics.items())


def test_the_margin_is_that_of_demonstrated_actions_over_others() -> None:
    q = torch.tensor([[[1.0, 0.5], [2.0, 0.0]]])
    loss = QImitator.imitation_loss(learner_of(DQN, **CLONING).guidance.cloning.policy, q, torch.tensor([[0, 1]]))
    torch.testing.assert_close(loss, torch.tensor([[0.3, 2.8]]))  # 0.5 + 0.8 - 1, and 2 + 0.8 - 0


def test_without_them_nothing_changes() -> None:
    plain = DQN("CartPole-v1").init()
    assert plain.uid == DQN("CartPole-v1").init(icm={"use": False}).uid
    assert not {"icm.gamma", "rnd.gamma", "gail.gamma"} & set(DQN.learner.hyperparameters.flat())
    assert learner_of(DQN).live_parts.keys() == {"policy", "optimizer", "replay", "progress"}


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (
            DQN,
            {"icm.use": True, "n_step": 3},
            "DQN: rewards of icm are for single steps, but n_step is 3; try n_step=1",
        ),
        (SAC, {"rnd.use": True, "model.memory": "gru", "batch_size": 64}, "SAC: batches of rnd are single steps, but"),
        (SAC, {"cloning.use": True}, "SAC: cloning needs demonstrations, but there are none"),
    ],
)
def test_contradicting_values_are_refused(task: type[Task], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task("CartPole-v1").init(**unflatten(values))
