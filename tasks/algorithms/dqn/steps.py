"""Gradient steps of deep Q-learning by one kernel call each.

The call also gathers the batch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol

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
from ..off_policy import ReplayLoop
from .networks import QNetwork

NONE = np.empty((0, 0), np.float32)


class QLearner(Protocol):
    """A learner of P members with the loss of `DQNLearner`.

    Attributes:
        limit: error beyond which the loss is linear.
        target_interval: gradient steps between two moves of a target network, (P, 1).
    """

    hp: SimpleNamespace
    loop: ReplayLoop
    policy: QNetwork
    optimizer: Optimizer
    guidance: ReplayGuidance
    limit: float
    target_interval: NDArray[np.int64]


class CompiledSteps:
    """The gradient steps of P members by `descent.descend_q`.

    Between the short operations of a step, Python takes several times as long as the operations themselves.
    """

    def __init__(
        self, learner: QLearner, table: tuple[Any, ...], network: tuple[Any, ...], optimizer: CompiledOptimizer
    ):
        """Allocate the results of a step.

        Args:
            learner: the learner.
            table: its transitions, as kernels take them.
            network: form of its networks, as kernels take it.
            optimizer: what kernels need of its optimizer.
        """
        hp, loop, policy = learner.hp, learner.loop, learner.policy
        self.loop, self.lr, self.interval, self._run = loop, hp.optimizer.lr, learner.target_interval, optimizer.run
        vector, rows = policy.parameters.vector, (len(hp.tau), hp.batch_size)
        self.gradient, self.factors = torch.zeros_like(vector), torch.ones_like(hp.tau)
        self.losses, self.errors, self.values = torch.zeros(rows[0]), torch.zeros(rows), torch.zeros(rows)
        self.clips = hp.max_grad_norm is not None
        limits = hp.max_grad_norm if self.clips else self.factors
        vectors = (x.numpy() for x in (vector, policy.target.vector, self.gradient))
        results = (x.numpy() for x in (self.losses, self.errors, self.values))
        gathering = (*table, hp.n_step, hp.num_envs, loop.gamma.numpy())
        learning = (*vectors, *network, hp.double, learner.limit, *results)
        moving = (self.clips, limits.numpy(), self.factors.numpy(), hp.tau.numpy(), *optimizer[1:])
        self._fixed = (*gathering, *learning, *moving)  # arguments that are the same in every step

    @classmethod
    def of(cls, learner: QLearner) -> CompiledSteps | None:
        """Return a learner's steps; None if the kernel does not cover them."""
        hp, policy, optimizer, table = learner.hp, learner.policy, learner.optimizer.compiled, learner.loop.replay.table
        network = None if policy.fused is None else policy.fused.compiled
        if table is None or network is None or optimizer is None or type(learner.guidance) is not ReplayGuidance:
            return None
        plain = type(policy) is QNetwork and type(policy.encoder) is Unlearned
        given = (policy.target.vector, hp.tau, hp.tau if hp.max_grad_norm is None else hp.max_grad_norm)
        return cls(learner, table, network, optimizer) if plain and kernels_of(*given) is not None else None

    def __call__(self, env_steps: int, measured: bool) -> dict[str, Tensor]:
        """Take `num_updates` gradient steps; return the last one's metrics, as `ReplayLoop.learn` does.

        Args:
            env_steps: environment steps so far.
            measured: whether the metrics include the gradient's norms.
        """
        loop, sampler, progress = self.loop, self.loop.sampler, self.loop.progress
        lr, scaling = loop.scheduled(self.lr, env_steps), loop.obs_normalizer
        moments = (False, NONE, NONE) if scaling is None else (True, *scaling.of_batches())
        rates = lr.contiguous().numpy()
        for _ in range(loop.hp.num_updates):
            rows = sampler.rows(progress.updates)
            weights = sampler.weights(rows, env_steps)
            weighting = (False, NONE) if weights is None else (True, weights.numpy())
            progress.updates += 1
            due = progress.updates % self.interval == 0
            tick()
            with FlushedDenormals():
                self._run.descend_q(rows, *weighting, *moments, rates, due, *self._fixed)
            sampler.update(rows, self.errors)
        step = Clipped(self.gradient, self.factors if self.clips else None)
        sizes = norms(step, "q") if measured else {}
        return {"loss": self.losses.clone(), "q": self.values.mean(1), **sizes, "lr": lr.squeeze(1)}
