"""Behavioural cloning: the policy moves towards what was demonstrated, after each of its own updates.

    L = mean (μ(s) - a)²  in a Box,   L = -mean log π(a|s)  where actions are choices

on steps (s, a) of demonstrations, as ML-Agents does it (Pomerleau 1991, doi:10.1162/neco.1991.3.1.88). A Box's standard
deviation is left to the policy's own loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, ordinal
from ..checkpoint.state import Tree
from ..experience.rollout import permutations
from .demonstrations import Examples
from .learned import adam

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner


def cloning_space() -> Space:
    """The hyperparameters of cloning.

    strength: of its learning rate, over the policy's, which schedules change too. steps: the learning rate falls
    linearly to 0 over so many environment steps; 0: it stays. samples_per_update: how many demonstrated steps an update
    learns from; 0: all. Both are rounded down to whole batches of batch_size, or to the only one if there are fewer.
    """
    on: dict[str, Any] = {"when": {"use": True}}
    return Space(
        use=categorical(False, True, default=False, structural=True, search=False, silent=True),
        strength=log_real(0.1, 1.0, default=1.0, accept=(0.0, 1e6), **on),
        steps=integer(0, 10**12, default=0, search=False, **on),
        samples_per_update=integer(0, 10**9, default=0, structural=True, search=False, **on),
        batch_size=ordinal(32, 64, 128, 256, default=64, accept=(1, 10**6), structural=True, search=False, **on),
    )


class Cloning:
    """Cloning by P members, with Adam of its own on the policy's parameters.

    A policy without a memory learns from single steps in random order. One with a memory learns from sequences of
    num_steps steps in a row, each begun with an empty memory. Particles clone each for itself, uncoupled.
    """

    def __init__(self, learner: ActingLearner, examples: Examples):
        self.hp, self.keys, self.examples = learner.hp.cloning, learner.keys("cloning"), examples
        self.optimizer = adam(learner.policy.parameters.vector)
        steps = self.examples.steps
        self.length = 1 if learner.memory is None else min(learner.hp.num_steps, steps)
        self.sequences = steps // self.length
        self.at_once = max(1, min(self.hp.batch_size // self.length, self.sequences))
        wanted = (self.hp.samples_per_update or steps) // (self.at_once * self.length)
        self.batches = max(1, min(wanted, self.sequences // self.at_once))

    def learning_rate(self, learner: ActingLearner, lr: Tensor) -> Tensor:
        """The members' learning rates (P, 1) at this moment; lr: those of their policies."""
        steps = self.hp.steps
        left = (1 - learner.env_steps / steps.clamp(min=1)).clamp(min=0)
        return self.hp.strength * lr * torch.where(steps > 0, left, 1.0)

    def learn(self, learner: ActingLearner, lr: Tensor, updated: Tensor | None) -> dict[str, Tensor]:
        """One pass over the demonstrations, or over a part; what to report, of the last batch.

        updated: the members whose policies were, (P, 1); None: all.
        """
        lr = self.learning_rate(learner, lr)
        active = lr > 0 if updated is None else (lr > 0) & updated
        [order] = permutations(self.keys, learner.iterations, 1, self.sequences)
        parts = torch.from_numpy(order)[:, : self.batches * self.at_once].split(self.at_once, 1)
        for part in parts if bool(active.any()) else parts[-1:]:  # of a member that is done the last loss is the same
            losses = self.loss(learner, part)
            self.optimizer.step(learner.policy.parameters.gradient(losses), lr, active)
        return {"cloning_loss": losses.detach()}

    def loss(self, learner: ActingLearner, part: Tensor) -> Tensor:
        """Each member's loss (P,) on the sequences (P, S) with these numbers."""
        rows = (part.unsqueeze(-1) * self.length + torch.arange(self.length)).flatten(1)
        batch = self.examples.batch(rows.numpy(), learner.obs_normalizer)
        if learner.memory is not None:
            size = learner.memory.tensors["state"].shape[-1]
            batch["memory"] = batch["begins"].new_zeros(*part.shape, size)
        params, _ = learner.forward(batch)
        distribution, actions = learner.policy.distribution, batch["actions"]
        if actions.is_floating_point():
            return (distribution.mode(params) - actions).flatten(2).square().mean(-1).mean(1)
        return -distribution.log_prob_and_entropy(params, actions)[0].mean(1)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that must stay finite."""
        return self.optimizer.tensors

    def member_state(self, member: int) -> Tree:
        return self.optimizer.member_state(member)

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.optimizer.load_member(member, tree)
