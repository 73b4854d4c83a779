"""Gradient steps on replayed transitions by one kernel call each.

The call also gathers the batch. Between the short operations of a step, Python takes several times as long as the
operations themselves.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import Clipping, Descent, Draw, Scaling, Transitions
from ..experience.replay_buffer import CompiledReplayBuffer
from ..networks.optimizers import Clipped, Optimizer
from ..runtime.progress import tick
from ..signals.replay_guidance import ReplayGuidance
from .off_policy_learner import OffPolicyLearner

NONE = np.empty((0, 0), np.float32)
UNSCALED = Scaling(False, NONE, NONE)


class CompiledDescent:
    """Gradients and optimizer steps of P members, as kernels take them.

    Attributes:
        gradient: last gradient, (P, D).
    """

    def __init__(self, optimizer: Optimizer, limit: Tensor | None):
        """Allocate the gradient, whose norm is clipped to the limit (P, 1)."""
        assert optimizer.rule is not None
        self.gradient, self._factors = torch.zeros_like(optimizer.vector), torch.ones(len(optimizer.vector), 1)
        limits = self._factors if limit is None else limit
        self._clipping = Clipping(limit is not None, limits.numpy(), self._factors.numpy())
        self._rule = optimizer.rule

    def at(self, lr: Tensor) -> Descent:
        """Return the steps with these learning rates, (P, 1)."""
        return Descent(lr.contiguous().numpy(), self._clipping, self._rule)

    @property
    def clipped(self) -> Clipped:
        """The last gradient, after clipping."""
        return Clipped(self.gradient, self._factors if self._clipping.active else None)


class CompiledSteps:
    """The gradient steps of P members by kernels.

    Attributes:
        learner: the learner.
        run: module of kernels.
        table: its transitions.
        errors: errors (P, B) of the last step, which become priorities.
    """

    errors: Tensor

    def __init__(self, learner: OffPolicyLearner, run: ModuleType):
        assert isinstance(learner.replay, CompiledReplayBuffer)
        hp, table = learner.hp, learner.replay.table
        self.learner, self.run = learner, run
        self.table = Transitions(*table, hp.n_step, hp.num_envs, learner.gamma.numpy())

    def __call__(self) -> dict[str, Tensor]:
        """Do what `OffPolicyLearner.learn` does."""
        learner, sampler, progress = self.learner, self.learner.sampler, self.learner.progress
        lr, moments = learner.scheduled(learner.hp.optimizer.lr), learner.obs_normalizer
        scaling = UNSCALED if moments is None else Scaling(True, *moments.of_batches())
        for _ in range(learner.hp.num_updates):
            rows = sampler.rows(progress.updates)
            weights = sampler.weights(rows, learner.env_steps)
            draw = Draw(rows, weights is not None, NONE if weights is None else weights.numpy())
            progress.updates += 1
            tick()
            self.take(draw, scaling, lr, progress.updates)
            sampler.update(rows, self.errors)
        return {**self.metrics(), "lr": lr.squeeze(1)}

    def take(self, draw: Draw, scaling: Scaling, lr: Tensor, number: int) -> None:
        """Take a step on drawn rows.

        Learning rates are (P, 1), and `number` is that of the step.
        """
        raise NotImplementedError

    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics of the last step, each (P,)."""
        raise NotImplementedError


def run_for(learner: OffPolicyLearner, *optimizers: Optimizer) -> ModuleType | None:
    """Return the kernels if they cover a learner's transitions, guidance and optimizers."""
    hp = learner.hp
    covered = isinstance(learner.replay, CompiledReplayBuffer) and type(learner.guidance) is ReplayGuidance
    if not covered or any(optimizer.rule is None for optimizer in optimizers):
        return None
    return kernels_of(hp.tau, hp.tau if hp.max_grad_norm is None else hp.max_grad_norm)
