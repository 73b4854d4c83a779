"""Hyperparameters of trainings that take a moment, by dotted name."""

from __future__ import annotations

from typing import Any

ROLLOUTS: dict[str, Any] = {
    **{"num_steps": 16, "num_envs": 3, "num_minibatches": 2, "update_epochs": 2, "epoch_steps": 96},
    **{"model.width": 16, "model.layers": 1},
}
REPLAY: dict[str, Any] = {
    **{"epoch_steps": 64, "learning_starts": 40, "batch_size": 16, "buffer_size": 200, "model.width": 16}
}
DQN: dict[str, Any] = {
    **{"epoch_steps": 128, "learning_starts": 40, "batch_size": 32, "buffer_size": 200, "num_steps": 4},
    **{"num_updates": 2, "exploration.horizon": 600, "target_interval": 5, "optimizer.lr": 0.01, "max_grad_norm": 0.5},
}
SAC: dict[str, Any] = {
    **{"epoch_steps": 96, "learning_starts": 40, "batch_size": 32, "buffer_size": 200, "num_updates": 1},
    **{"optimizer.lr": 0.003, "tau": 0.05, "max_grad_norm": 0.5, "model.width": 32, "entropy.alpha": 0.2},
}
