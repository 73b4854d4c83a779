"""Cloning: exactness of its variants, and of finished members."""

from __future__ import annotations

from typing import ClassVar

import pytest
from rekindle import PPO, Cohort
from rekindle.spaces import unflatten
from rekindle.tasks.checkpoint.state import difference
from signal_learners import CLONING, SMALL, DemonstratedSuite, shown


class TestCloning(DemonstratedSuite):
    hyperparameters: ClassVar = {**SMALL, **CLONING}
    variants: ClassVar = ({"normalize_obs": True, "cloning.steps": 600},)


@pytest.mark.slow
class TestMoreOfCloning(DemonstratedSuite):
    hyperparameters: ClassVar = {**SMALL, **CLONING}
    variants: ClassVar = (
        {"cloning.steps": 200, "extrinsic.strength": 0.0},
        {"model.memory": "lstm", "num_minibatches": 2, "num_steps": 12, "epoch_steps": 96},
        {"cloning.samples_per_update": 0, "cloning.batch_size": 1000},
    )


def test_a_member_whose_cloning_is_over_reports_and_is_what_it_is_alone() -> None:
    def make(seed: int) -> PPO:
        values = {**SMALL, **CLONING, "cloning.steps": 100 if seed == 1 else 0, "cloning.strength": 0.1 * (seed + 1)}
        return PPO("CartPole-v1", seed=seed, demonstrations=shown()).init(**unflatten(values))

    together, alone = [make(seed) for seed in range(3)], make(1)
    Cohort(together).fit(3)
    alone.fit(3)
    assert difference(alone.state_dict(), together[1].state_dict()) == []
    assert alone.history == together[1].history
    learner = alone.build_learner([alone])
    steps = learner.guidance.cloning.optimizer.tensors["steps"]
    assert steps.item() == 1  # after 64 environment steps; after 128 it was over
