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
