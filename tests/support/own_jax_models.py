"""Classes that a user of sbx writes."""

from __future__ import annotations

from typing import Any

import jax
from sbx import SAC


class Averaged(SAC):
    """SAC that keeps a running mean of its actor's parameters, and begins each rollout from it."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.mean = self.policy.actor_state.params

    def train(self, *arguments: Any, **options: Any) -> None:
        super().train(*arguments, **options)
        state = self.policy.actor_state
        self.mean = jax.tree.map(lambda mean, new: 0.9 * mean + 0.1 * new, self.mean, state.params)
        self.policy.actor_state = state.replace(params=self.mean)
