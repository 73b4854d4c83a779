"""A function that is a task and computes with JAX."""

from __future__ import annotations

from typing import Any

import rekindle
from rekindle import Space, log_real


@rekindle.task(space=Space(lr=log_real(1e-4, 1.0, default=0.1)), objective="loss:minimize")
def regress(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Take a step of least squares, with sums that XLA divides among threads."""
    import jax

    inputs = jax.random.normal(jax.random.PRNGKey(seed), (4096, 64))
    weights = jax.numpy.eye(64) if state is None else state["weights"]
    weights = weights - hp.lr * inputs.T @ (inputs @ weights) / 4096
    return {"weights": weights}, {"loss": jax.numpy.mean((inputs @ weights) ** 2)}
