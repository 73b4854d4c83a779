"""DQN: exactness on three kinds of environment, what its loss must do, and what it refuses."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DQN, Cohort, EnvSpec
from rekindle.tasks.dqn import DQNLearner, huber
from rekindle.tasks.envs import EnvSpecError
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.testing import ExactnessSuite

SMALL: dict[str, Any] = {
    "epoch_steps": 128, "learning_starts": 40, "batch_size": 32, "buffer_size": 200, "num_steps": 4, "num_updates": 2,
    "exploration.horizon": 600, "target_interval": 5, "optimizer.lr": 0.01, "max_grad_norm": 0.5,
}  # fmt: skip


class TestOnCartPole(ExactnessSuite):
    task = DQN
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"tau": 0.5, "double": True, "n_step": 3, "num_envs": 3, "buffer_size": 101},
        {"replay.name": "prioritized", "replay.beta_horizon": 400, "exploration.name": "exponential"},
        {"replay.name": "prioritized", "n_step": 5, "num_envs": 2, "model.duelling": True, "model.activation": "tanh"},
        {"optimizer.name": "rmsprop", "optimizer.momentum": 0.5, "lr_schedule.name": "exponential",
         "lr_schedule.horizon": 600, "max_grad_norm": None, "eval_interval": 2},
        {"optimizer.name": "adamw", "lr_schedule.name": "cosine", "lr_schedule.horizon": 600, "target_interval": 1,
         "tau": 0.01, "model.width": 17, "model.layers": 3, "num_steps": 3, "batch_size": 33},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.5},
    )  # fmt: skip


class TestOnLunarLander(ExactnessSuite):
    task = DQN
    env = "LunarLander-v3"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 64, "exploration.horizon": 100}
    cohort_size = 3


class TestOnFrozenLake(ExactnessSuite):
    task = DQN
    env = "FrozenLake-v1"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 96, "model.duelling": True, "max_grad_norm": 0.01}
    cohort_size = 4
