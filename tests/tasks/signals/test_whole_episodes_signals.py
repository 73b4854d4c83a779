"""Signals and cloning with updates on whole episodes: the same steps at the same times."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import A2C, Cohort
from rekindle.spaces import unflatten
from rekindle.tasks.experience.returns import gae
from rekindle.tasks.experience.rollout import evaluate_values
from signal_learners import CLONING, GAIL, ICM, RND, VAIL, DemonstratedSuite, shown, signals_of

WHOLE: dict[str, Any] = {
    "epoch_steps": 480,
    "num_envs": 4,
    "num_steps": 20,
    "optimizer.lr": 0.01,
    "max_grad_norm": 0.1,
    "min_rollouts": 4,
    "max_rollout_steps": 60,
}


@pytest.mark.slow
class TestWithSignals(DemonstratedSuite):
    task = A2C
    hyperparameters: ClassVar = {**WHOLE, **RND, **VAIL}
    variants: ClassVar = ({"model.memory": "gru", "num_envs": 3, "epoch_steps": 360},)


@pytest.mark.slow
class TestWithMoreOfThem(DemonstratedSuite):
    task = A2C
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**WHOLE, "epoch_steps": 900, "num_steps": 75, "num_envs": 2, **ICM, **GAIL}
    variants: ClassVar = (
        {**CLONING, "normalize_obs": True, "min_rollouts": 6, "max_rollout_steps": 150},
        {**RND, "extrinsic.strength": 0.0, "normalize_advantage": True, "min_rollouts": 2, "max_rollout_steps": 300},
    )


EVERY = {**ICM, **RND, **VAIL, **CLONING}


def learner_of(members: int = 3, **changes: Any) -> Any:
    options = {"num_envs": 4, "num_steps": 16, "min_rollouts": 8, "max_rollout_steps": 96, **EVERY, **changes}
    options = {name: x for name, x in options.items() if x is not None}
    examples = shown() if "gail.use" in options else None
    tasks = [
        A2C("CartPole-v1", seed=seed, demonstrations=examples).init(**unflatten(options)) for seed in range(members)
    ]
    return tasks[0].build_learner(tasks)


def learned(learner: Any) -> dict[str, torch.Tensor]:
    """All that signals and cloning learn, copied."""
    parts = {"policy": learner.policy.parameters.vector, "cloning": learner.guidance.cloning.optimizer.tensors["mean"]}
    for name, signal in signals_of(learner).items():
        parts |= {name: signal.trained.parameters.vector, f"{name}.critic": signal.critic.trained.parameters.vector}
    parts["beta"] = signals_of(learner)["gail"].bottleneck.tensors["beta"]
    return {name: x.clone() for name, x in parts.items()}


def test_signals_learn_when_the_policy_does() -> None:
    learner = learner_of()
    updates, waiting = 0, 0
    for _ in range(10):
        before = learned(learner)
        metrics = learner.iterate()
        due = getattr(metrics, "members", np.zeros(learner.members, np.bool_)).tolist()
        for name, x in learned(learner).items():
            assert (x != before[name]).any(1).tolist() == due, name
        updates, waiting = updates + sum(due), waiting + len(due) - sum(due)
    assert updates > 3
    assert waiting > 3


@pytest.mark.slow
def test_members_with_signals_are_updated_at_different_times_and_as_if_alone() -> None:
    def make(seed: int) -> A2C:
        options = {
            "num_envs": 4,
            "num_steps": 10,
            "epoch_steps": 200,
            "max_rollout_steps": 60,
            **EVERY,
            "min_rollouts": 4 * (seed + 1),
            "rnd.strength": 0.1 * (seed + 1),
        }
        return A2C("CartPole-v1", seed=seed, demonstrations=shown()).init(**unflatten(options))

    together = [make(seed) for seed in range(3)]
    Cohort(together).fit(3)
    for seed in range(3):
        alone = make(seed)
        alone.fit(3)
        assert alone.digest == together[seed].digest
        assert alone.history == together[seed].history


def updated_once(learner: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The rows in the room and the batch of the first update of a lone member."""
    kept: dict[str, Any] = {}
    update, mix = learner.update, learner.guidance.combine_advantages

    def remember(batch: Any, lr: Any, active: Any) -> Any:
        kept["batch"] = {name: x.clone() for name, x in batch.items()}
        return update(batch, lr, active)

    def mixed(batch: Any, rows: Any) -> Any:
        kept["rows"] = {name: x.clone() for name, x in rows.items()}
        kept["own"] = batch["advantages"].clone()
        return mix(batch, rows)

    learner.update, learner.guidance.combine_advantages = remember, mixed
    while "batch" not in kept:
        learner.iterate()
    return kept, kept["batch"]


def test_the_policy_follows_the_mean_of_all_advantages_in_the_room() -> None:
    learner = learner_of(members=1, **{"gail.gamma": 0.7, "icm.gamma": 0.9, "rnd.use": None, "rnd.width": None})
    rollouts = []
    collect = learner.agent.collect

    def collecting(*args: Any) -> Any:
        rollouts.append(collect(*args))
        return rollouts[-1]

    learner.agent.collect = collecting
    critics = {name: signal.critic for name, signal in signals_of(learner).items()}
    expected = {}
    update = learner.update

    def valued(batch: Any, *args: Any) -> Any:  # before anything is learned
        values = [{name: evaluate_values(r, critic) for name, critic in critics.items()} for r in rollouts]
        last = {name: critic(rollouts[-1].obs[:, -1]) for name, critic in critics.items()}
        expected.update(values=values, last=last)
        return update(batch, *args)

    learner.update = valued
    kept, batch = updated_once(learner)
    steps, rows = 16 * len(rollouts), kept["rows"]
    assert len(rollouts) > 1
    assert torch.equal(batch["next_obs"].unflatten(1, (-1, 4))[:, :steps], torch.cat([r.next_obs for r in rollouts], 1))
    ended, terminated = (torch.cat([getattr(r, name) for r in rollouts]) for name in ("ended", "terminated"))
    assert ended.sum() > 4
    total = kept["own"].unflatten(1, (-1, 4))[:, :steps].transpose(0, 1)
    for name in ("icm", "gail"):
        values = torch.cat([v[name][0] for v in expected["values"]])
        following = torch.cat([v[name][1] for v in expected["values"]])
        over, stop = terminated, ended
        if name == "icm":  # which goes on over the ends of episodes, and of rollouts
            following = torch.cat([values[1:], expected["last"][name][None]])
            over, stop = 0 * ended, 0 * ended
        rewards = rows[f"{name}.rewards"][:steps]
        gamma = getattr(learner.hp, name).gamma
        advantages = gae(rewards, values, following, over, stop, gamma, learner.hp.gae_lambda)
        torch.testing.assert_close(
            batch[f"{name}.returns"].unflatten(1, (-1, 4))[:, :steps].transpose(0, 1), advantages + values
        )
        total = total + advantages
    torch.testing.assert_close(batch["advantages"].unflatten(1, (-1, 4))[:, :steps], (total / 3).transpose(0, 1))
    assert rewards.abs().min() > 0


def test_losses_of_signals_are_those_of_the_used_steps_alone() -> None:
    learner = learner_of(members=1)
    _, batch = updated_once(learner)
    weights = batch["weights"]
    assert 0 < weights.mean() < 1
    other = dict(batch)
    generator = torch.Generator().manual_seed(0)
    for name in ("obs", "next_obs"):  # whatever was seen where nothing is used
        noise = torch.randn(batch[name].shape, generator=generator)
        other[name] = torch.where(weights.unsqueeze(-1) > 0, batch[name], noise)
    for name, signal in signals_of(learner).items():
        losses, report = signal.loss(batch, 3)
        again, reported = signal.loss(other, 3)
        torch.testing.assert_close(losses, again)
        torch.testing.assert_close(report, reported)
        assert not torch.equal(signal.rewards(batch), signal.rewards(other)), name
    alone = {name: x[:, weights[0] > 0] for name, x in batch.items() if name in ("obs", "next_obs", "actions")}
    for name in ("icm", "rnd"):
        signal = signals_of(learner)[name]
        torch.testing.assert_close(signal.loss(batch, 3)[0], signal.loss(alone, 3)[0])
