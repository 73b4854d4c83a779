"""Gradient steps on replayed transitions by one kernel call each.

The call also gathers the batch. Between the short operations of a step, Python takes several times as long as the
operations themselves.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import Draw, Scaling, Transitions
from ..experience.replay_buffer import CompiledReplayBuffer
from ..runtime.progress import tick
from ..signals.replay_guidance import ReplayGuidance
from .off_policy_learner import OffPolicyLearner

NONE = np.empty((0, 0), np.float32)
UNSCALED = Scaling(False, NONE, NONE)


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


def run_for(learner: OffPolicyLearner) -> ModuleType | None:
    """Return the kernels if they cover a learner's transitions and guidance."""
    hp = learner.hp
    if not isinstance(learner.replay, CompiledReplayBuffer) or type(learner.guidance) is not ReplayGuidance:
        return None
    return kernels_of(hp.tau, hp.tau if hp.max_grad_norm is None else hp.max_grad_norm)
