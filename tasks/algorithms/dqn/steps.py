"""Gradient steps of deep Q-learning by one kernel call each.

The call also gathers the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.actor_critic import CompiledOptimizer
from ...compiled.loading import kernels_of
from ...networks.encoders import Unlearned
from ...networks.optimizers import Clipped, FlushedDenormals, Optimizer, norms
from ...runtime.progress import tick
from ...signals.replay_guidance import ReplayGuidance
from ..off_policy_learner import OffPolicyLearner
from .networks import QNetwork

NONE = np.empty((0, 0), np.float32)


class CompiledSteps:
    """The gradient steps of P members by `descent.descend_q`.

    Between the short operations of a step, Python takes several times as long as the operations themselves.
    """

    def __init__(
        self,
        learner: OffPolicyLearner,
        policy: QNetwork,
        table: tuple[Any, ...],
        network: tuple[Any, ...],
        optimizer: CompiledOptimizer,
        limit: float,
        interval: NDArray[np.int64],
    ):
        """Allocate the results of a step.

        Args:
            learner: the learner.
            policy: its networks.
            table: its transitions, as kernels take them.
            network: form of its networks, as kernels take it.
            optimizer: its optimizer, as kernels take it.
            limit: error beyond which the loss is linear.
            interval: gradient steps between two moves of a target network, (P, 1).
        """
        hp = learner.hp
        self.learner, self.interval, self._run = learner, interval, optimizer.run
        vector, rows = policy.parameters.vector, (len(hp.tau), hp.batch_size)
        self.gradient, self.factors = torch.zeros_like(vector), torch.ones_like(hp.tau)
        self.losses, self.errors, self.values = torch.zeros(rows[0]), torch.zeros(rows), torch.zeros(rows)
        self.clips = hp.max_grad_norm is not None
        limits = hp.max_grad_norm if self.clips else self.factors
        vectors = (x.numpy() for x in (vector, policy.target.vector, self.gradient))
        results = (x.numpy() for x in (self.losses, self.errors, self.values))
        gathering = (*table, hp.n_step, hp.num_envs, learner.gamma.numpy())
        learning = (*vectors, *network, hp.double, limit, *results)
        moving = (self.clips, limits.numpy(), self.factors.numpy(), hp.tau.numpy(), *optimizer[1:])
        self._fixed = (*gathering, *learning, *moving)  # arguments that are the same in every step

    @classmethod
    def covering(
        cls,
        learner: OffPolicyLearner,
        policy: QNetwork,
        optimizer: Optimizer,
        limit: float,
        interval: NDArray[np.int64],
    ) -> CompiledSteps | None:
        """Return a learner's steps; None if the kernel does not cover them.

        The arguments are those of `__init__`.
        """
        hp, table = learner.hp, learner.replay.table
        network = None if policy.fused is None else policy.fused.compiled
        if table is None or network is None or optimizer.compiled is None:
            return None
        plain = type(policy) is QNetwork and type(policy.encoder) is Unlearned
        tensors = (policy.target.vector, hp.tau, hp.tau if hp.max_grad_norm is None else hp.max_grad_norm)
        if not plain or type(learner.guidance) is not ReplayGuidance or kernels_of(*tensors) is None:
            return None
        return cls(learner, policy, table, network, optimizer.compiled, limit, interval)

    def __call__(self) -> dict[str, Tensor]:
        """Do what `OffPolicyLearner.learn` does."""
        learner, sampler, progress = self.learner, self.learner.sampler, self.learner.progress
        lr, scaling = learner.scheduled(learner.hp.optimizer.lr), learner.obs_normalizer
        moments = (False, NONE, NONE) if scaling is None else (True, *scaling.of_batches())
        rates = lr.contiguous().numpy()
        for _ in range(learner.hp.num_updates):
            rows = sampler.rows(progress.updates)
            weights = sampler.weights(rows, learner.env_steps)
            weighting = (False, NONE) if weights is None else (True, weights.numpy())
            progress.updates += 1
            due = progress.updates % self.interval == 0
            tick()
            with FlushedDenormals():
                self._run.descend_q(rows, *weighting, *moments, rates, due, *self._fixed)
            sampler.update(rows, self.errors)
        step = Clipped(self.gradient, self.factors if self.clips else None)
        sizes = norms(step, "q") if learner.measured else {}
        return {"loss": self.losses.clone(), "q": self.values.mean(1), **sizes, "lr": lr.squeeze(1)}
