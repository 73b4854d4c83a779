"""Gradient steps on replayed transitions by one kernel call each.

Where it can, the call also gathers the batch. Between the short operations of a step, Python takes several times as
long as the operations themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Self

import numpy as np
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import Draw, GivenBatch, Scaling, Transitions
from ..experience.replay_buffer import CompiledReplayBuffer
from ..networks.acting import is_replayed
from ..networks.mlp import MLP
from ..runtime.progress import tick
from .off_policy_learner import Batch, OffPolicyLearner, ReplaySteps

NONE, NO_ROWS = np.empty((0, 0), np.float32), np.empty((0, 0, 0), np.float32)
UNSCALED = Scaling(False, NONE, NONE)
NO_BATCH = GivenBatch(False, NO_ROWS, NO_ROWS, NO_ROWS, NONE, NONE)
NO_TABLE = Transitions(NO_ROWS, np.empty((0, 0), np.int64), 0, 0, NONE)


class CompiledSteps(ReplaySteps):
    """The gradient steps of P members by kernels.

    Attributes:
        run: module of kernels.
        gathers: whether the kernel also gathers the batches.
        table: its transitions.
        errors: errors (P, B) of the last step, which become priorities.
    """

    errors: Tensor

    def __init__(self, learner: OffPolicyLearner, run: ModuleType):
        super().__init__(learner)
        hp, replay = learner.hp, learner.replay
        self.run, self.table = run, NO_TABLE
        if isinstance(replay, CompiledReplayBuffer):
            self.table = Transitions(*replay.table, hp.n_step, hp.num_envs, learner.gamma.numpy())
        self.gathers = self.table is not NO_TABLE and learner.is_plain
        self._rows = np.zeros((learner.members, hp.batch_size), np.int64)

    @classmethod
    def covering(cls, learner: Any, networks: Sequence[MLP | None], **form: Any) -> Self | None:
        """Return a learner's steps; None if kernels do not cover its networks.

        `form` are the further arguments of `__init__`.
        """
        hp = learner.hp
        run = kernels_of(hp.gamma, hp.gamma if hp.max_grad_norm is None else hp.max_grad_norm)
        return cls(learner, run, **form) if run is not None and all(map(is_replayed, networks)) else None

    def __call__(self) -> dict[str, Tensor]:
        if not self.gathers:
            return super().__call__()
        learner, sampler, progress = self.learner, self.learner.sampler, self.learner.progress
        lr, moments = learner.scheduled(learner.hp.optimizer.lr), learner.obs_normalizer
        scaling = UNSCALED if moments is None else Scaling(True, *moments.of_batches())
        for _ in range(learner.hp.num_updates):
            rows = sampler.rows(progress.updates)
            weights = sampler.weights(rows, learner.env_steps)
            draw = Draw(rows, weights is not None, NONE if weights is None else weights.numpy())
            progress.updates += 1
            tick()
            self.take(draw, scaling, NO_BATCH, lr, progress.updates)
            sampler.update(rows, self.errors)
        return {**self.metrics(), "lr": lr.squeeze(1)}

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        learner, weight = self.learner, batch.get("weight")
        draw = Draw(self._rows, weight is not None, NONE if weight is None else weight.contiguous().numpy())
        action = batch["action"].reshape(*self._rows.shape, -1).float()
        rows = (batch["obs"], batch["next_obs"], action, learner.total_reward(batch), batch["discount"])
        tick()
        arrays = GivenBatch(True, *(x.contiguous().numpy() for x in rows))
        lr = learner.scheduled(learner.hp.optimizer.lr)
        self.take(draw, UNSCALED, arrays, lr, learner.progress.updates)
        return dict(self.metrics()), self.errors

    def take(self, draw: Draw, scaling: Scaling, batch: GivenBatch, lr: Tensor, number: int) -> None:
        """Take a step on drawn rows, or on a given batch.

        Learning rates are (P, 1), and `number` is that of the step.
        """
        raise NotImplementedError

    def metrics(self) -> Mapping[str, Tensor]:
        """Return the metrics of the last step, each (P,)."""
        raise NotImplementedError
