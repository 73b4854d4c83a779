"""Behavioral cloning: supervised steps towards demonstrated actions.

    L = mean (μ(s) - a)²  in a Box,   L = -mean log π(a|s)  where actions are choices

The steps are taken on demonstrated (s, a) after each update of the policy, as in ML-Agents (Pomerleau 1991,
doi:10.1162/neco.1991.3.1.88). A Box's standard deviation is left to the policy's own loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, ordinal
from ..experience.normalizers import ObservationNormalizer
from ..experience.rollout import permutations
from ..learner import Learner
from ..networks.optimizers import adam
from .demonstrations import Examples


def cloning_space(samples: int = 0) -> Space:
    """Return the hyperparameters of cloning.

    The learning rate is `strength` times the policy's, schedules included. It falls linearly to 0 over `steps`
    environment steps (0: it does not fall). An update learns from samples_per_update demonstrated steps (0: all),
    rounded down to whole batches of batch_size, but at least one batch.

    Args:
        samples: default of samples_per_update.
    """
    on: dict[str, Any] = {"when": {"use": True}}
    return Space(
        use=categorical(False, True, default=False, structural=True, search=False, silent=True),
        strength=log_real(0.1, 1.0, default=1.0, accept=(0.0, 1e6), **on),
        steps=integer(0, 10**12, default=0, search=False, **on),
        samples_per_update=integer(0, 10**9, default=samples, structural=True, search=False, **on),
        batch_size=ordinal(32, 64, 128, 256, default=64, accept=(1, 10**6), structural=True, search=False, **on),
    )


class Imitator(Protocol):
    """Networks that can be cloned: an `ActorCritic`, or others in its form."""

    parameters: Any
    state_size: int
    distribution: Any  # see `Distribution.imitation_loss`

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the input of `distribution`, with gradients; the second is not used."""


class Cloning:
    """Cloning by P members, with its own Adam for the policy's parameters.

    A policy without a memory learns from single steps in random order. A policy with a memory learns from sequences of
    num_steps steps, each starting with an empty memory. Particles clone independently of each other.
    """

    def __init__(
        self, learner: Learner, examples: Examples, policy: Imitator, obs_normalizer: ObservationNormalizer | None
    ):
        self.hp, self.keys, self.examples = learner.hp.cloning, learner.keys("cloning"), examples
        self.policy, self.obs_normalizer = policy, obs_normalizer
        self.optimizer = adam(policy.parameters.vector)
        steps = self.examples.steps
        self.length = min(learner.hp.num_steps, steps) if policy.state_size else 1
        self.sequences = steps // self.length
        self.batch_size = max(1, min(self.hp.batch_size // self.length, self.sequences))  # in sequences
        wanted = (self.hp.samples_per_update or steps) // (self.batch_size * self.length)
        self.batches = max(1, min(wanted, self.sequences // self.batch_size))

    def learning_rate(self, env_steps: int, lr: Tensor) -> Tensor:
        """Return the learning rates (P, 1) after this many environment steps.

        lr are the policies' learning rates, (P, 1).
        """
        steps = self.hp.steps
        left = (1 - env_steps / steps.clamp(min=1)).clamp(min=0)
        return self.hp.strength * lr * torch.where(steps > 0, left, 1.0)

    def update(self, number: int, env_steps: int, lr: Tensor, active: Tensor | None = None) -> dict[str, Tensor]:
        """Learn from demonstrations once, and return the last batch's metrics.

        Args:
            number: number of the update, which selects the order of the demonstrations.
            env_steps: environment steps so far.
            lr: the policies' learning rates, (P, 1).
            active: members whose policies were updated, (P, 1); None for all.
        """
        lr = self.learning_rate(env_steps, lr)
        active = lr > 0 if active is None else (lr > 0) & active
        [order] = permutations(self.keys, number, 1, self.sequences)
        parts = order[:, : self.batches * self.batch_size].split(self.batch_size, 1)
        for part in parts if bool(active.any()) else parts[-1:]:  # if nobody learns, only the last loss is reported
            losses = self.loss(part)
            self.optimizer.step(self.policy.parameters.gradient(losses), lr, active)
        return {"cloning_loss": losses.detach()}

    def loss(self, part: Tensor) -> Tensor:
        """Return each member's loss on the sequences with these indices, (P, S)."""
        rows = (part.unsqueeze(-1) * self.length + torch.arange(self.length)).flatten(1)
        batch = self.examples.batch(rows.numpy(), self.obs_normalizer)
        batch["memory"] = batch["begins"].new_zeros(*part.shape, self.policy.state_size)
        params, _ = self.policy(batch)
        loss: Tensor = self.policy.distribution.imitation_loss(params, batch["actions"])
        return loss.mean(1)
