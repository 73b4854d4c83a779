"""GAIL: exactness, and rewards for demonstrated behavior."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from fakes import batch_of
from signal_learners import CLONING, GAIL, ICM, RND, SMALL, VAIL, DemonstratedSuite, built, signals_of


class TestGAIL(DemonstratedSuite):
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **GAIL}


@pytest.mark.slow
class TestVariationalGAIL(DemonstratedSuite):
    hyperparameters: ClassVar = {**SMALL, **VAIL, "target_kl": None}
    variants: ClassVar = ({"gail.use_actions": False, "num_envs": 3},)


@pytest.mark.slow
class TestMoreOfGAIL(DemonstratedSuite):
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **GAIL}
    variants: ClassVar = (
        {"gail.use_actions": False, "normalize_obs": True, **ICM},
        {"model.memory": "gru", "num_minibatches": 2},
        {"use_sde": True, **CLONING},
        {"gail.variational": True, "model.memory": "lstm", "num_minibatches": 2, "normalize_obs": True, **RND},
    )


def test_a_discriminator_learns_to_reward_demonstrated_behavior() -> None:
    learner = built(gail={"use": True, "lr": 3e-3}, members=1)
    signal, batch = signals_of(learner)["gail"], batch_of(learner)
    batch["actions"] = torch.zeros_like(batch["actions"])
    signal.examples.tensors["actions"].fill_(1)  # the demonstrator pushes to the right, and the policy to the left
    for position in range(100):
        losses, report = signal.loss(batch, position)
        signal.trained.descend(losses, signal.hp.lr)
    assert report["expert_estimate"] > 0.6 > 0.4 > report["policy_estimate"]
    right = {**batch, "actions": torch.ones_like(batch["actions"])}
    assert signal.rewards(right).mean() > 1.5 * signal.rewards(batch).mean()
    assert (signal.rewards(batch) > 0).all()
