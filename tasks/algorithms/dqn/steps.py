"""Gradient steps of deep Q-learning by one kernel call each.

The call also gathers the batch.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.loading import kernels_of
from ...compiled.records import Clipping, Draw, QErrors, QNetworks, Scaling, Transitions, UpdateRule
from ...networks.encoders import Unlearned
from ...networks.optimizers import Clipped, FlushedDenormals, Optimizer, norms
from ...runtime.progress import tick
from ...signals.replay_guidance import ReplayGuidance
from ..off_policy_learner import OffPolicyLearner
from .networks import QNetwork

NONE = np.empty((0, 0), np.float32)
UNSCALED = Scaling(False, NONE, NONE)


class CompiledSteps:
    """The gradient steps of P members by `descent.descend_q`.

    Between the short operations of a step, Python takes several times as long as the operations themselves.
    """

    def __init__(
        self,
        run: ModuleType,
        learner: OffPolicyLearner,
        table: Transitions,
        networks: QNetworks,
        rule: UpdateRule,
        limit: float,
        interval: NDArray[np.int64],
    ):
        """Allocate the results of a step.

        Args:
            run: module of kernels.
            learner: the learner.
            table: its transitions.
            networks: its networks.
            rule: its optimizer.
            limit: error beyond which the loss is linear.
            interval: gradient steps between two moves of a target network, (P, 1).
        """
        hp = learner.hp
        self.learner, self.interval, self._run, self._rule = learner, interval, run, rule
        self.losses = torch.zeros(len(hp.tau))
        self.errors, self.values = (torch.zeros(len(hp.tau), hp.batch_size) for _ in range(2))
        self.gradient, self.factors = torch.from_numpy(networks.gradient), torch.ones_like(hp.tau)
        self.clips, self._tau = hp.max_grad_norm is not None, hp.tau.numpy()
        limits = hp.max_grad_norm if self.clips else self.factors
        errors = QErrors(*(x.numpy() for x in (self.losses, self.errors, self.values)))
        clipping = Clipping(self.clips, limits.numpy(), self.factors.numpy())
        self._constant = (table, networks, np.float32(limit), errors, clipping)

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
        form = None if policy.fused is None else policy.fused.compiled
        if table is None or form is None or optimizer.rule is None:
            return None
        vectors = policy.parameters.vector, policy.target.vector, torch.zeros_like(policy.target.vector)
        run = kernels_of(*vectors, hp.tau, hp.tau if hp.max_grad_norm is None else hp.max_grad_norm)
        plain = type(policy) is QNetwork and type(policy.encoder) is Unlearned
        if run is None or not plain or type(learner.guidance) is not ReplayGuidance:
            return None
        transitions = Transitions(*table, hp.n_step, hp.num_envs, learner.gamma.numpy())
        vector, target, gradient = (x.numpy() for x in vectors)
        networks = QNetworks(vector, target, gradient, *form, hp.double)
        return cls(run, learner, transitions, networks, optimizer.rule, limit, interval)

    def __call__(self) -> dict[str, Tensor]:
        """Do what `OffPolicyLearner.learn` does."""
        learner, sampler, progress = self.learner, self.learner.sampler, self.learner.progress
        lr, moments = learner.scheduled(learner.hp.optimizer.lr), learner.obs_normalizer
        scaling = UNSCALED if moments is None else Scaling(True, *moments.of_batches())
        rates = lr.contiguous().numpy()
        for _ in range(learner.hp.num_updates):
            rows = sampler.rows(progress.updates)
            weights = sampler.weights(rows, learner.env_steps)
            draw = Draw(rows, weights is not None, NONE if weights is None else weights.numpy())
            progress.updates += 1
            due = progress.updates % self.interval == 0
            tick()
            with FlushedDenormals():
                self._run.descend_q(draw, scaling, *self._constant, rates, self._rule, self._tau, due)
            sampler.update(rows, self.errors)
        step = Clipped(self.gradient, self.factors if self.clips else None)
        sizes = norms(step, "q") if learner.measured else {}
        return {"loss": self.losses.clone(), "q": self.values.mean(1), **sizes, "lr": lr.squeeze(1)}
