"""RND: exactness, novelty, and the scale of rewards."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from rekindle import PPO2
from rekindle.tasks.signals.rnd import ReturnScale
from signal_learners import ICM, RND, SMALL, DemonstratedSuite, built, signals_of


class TestRND(DemonstratedSuite):
    task = PPO2
    hyperparameters: ClassVar = {**SMALL, **RND, "epoch_steps": 32, "num_minibatches": 4}
    variants: ClassVar = ({**ICM, "num_envs": 1},)


def test_distillation_pays_less_for_what_was_seen_more_often_and_its_target_never_learns() -> None:
    learner = built(rnd={"use": True, "lr": 1e-3}, members=1)
    signal = signals_of(learner)["rnd"]
    target = {name: x.clone() for name, x in signal.trained.views.items() if ".target." in name}
    signal.whitening.update(np.random.default_rng(0).normal(size=(1, 4096, 4)).astype(np.float32))
    generator = torch.Generator().manual_seed(0)
    often = torch.randn(1, 64, 4, generator=generator)
    never = often + torch.tensor([3.0, -3.0, 3.0, -3.0])
    for position in range(300):
        losses, _ = signal.loss({"next_obs": often}, position)
        signal.trained.descend(losses, signal.hp.lr)
    assert signal.rewards({"next_obs": often}).mean() < 0.05 * signal.rewards({"next_obs": never}).mean()
    assert len(target) == 4
    assert all(torch.equal(x, signal.trained.views[name]) for name, x in target.items())


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums() -> None:
    rewards = np.random.default_rng(0).exponential(size=(50, 2, 3)).astype(np.float32)
    scale, gamma = ReturnScale(2, 3, np.array([[0.5], [0.9]])), np.array([[0.5], [0.9]])
    first, second = scale(rewards[:20]), scale(rewards[20:])
    sums, total = [], np.zeros((2, 3))
    for reward in rewards:
        total = gamma * total + reward
        sums.append(total)
    for until, scaled in ((20, first), (50, second)):
        deviation = np.array(sums[:until]).std((0, 2))[:, None]
        np.testing.assert_allclose(scaled, rewards[until - len(scaled) : until] / deviation, rtol=1e-3)
