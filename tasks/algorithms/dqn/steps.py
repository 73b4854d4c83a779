"""Gradient steps of deep Q-learning by `descent.descend_q`."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.records import Draw, QErrors, QNetworks, Scaling
from ...networks.encoders import Unlearned
from ...networks.optimizers import CompiledDescent, FlushedDenormals, Optimizer, norms
from ..compiled_steps import CompiledSteps, run_for
from ..off_policy_learner import OffPolicyLearner
from .networks import QNetwork


class QSteps(CompiledSteps):
    """The gradient steps of P members of DQN."""

    def __init__(
        self,
        run: ModuleType,
        learner: OffPolicyLearner,
        policy: QNetwork,
        form: tuple[NDArray[np.int64], int],
        optimizer: Optimizer,
        limit: float,
        interval: NDArray[np.int64],
    ):
        """Allocate the results of a step.

        Args:
            run: module of kernels.
            learner: the learner.
            policy: its networks.
            form: sizes of the layers, and number of the activation.
            optimizer: its optimizer.
            limit: error beyond which the loss is linear.
            interval: gradient steps between two moves of a target network, (P, 1).
        """
        super().__init__(learner, run)
        hp = learner.hp
        self.interval, self.descent, self._tau = interval, CompiledDescent(optimizer, hp.max_grad_norm), hp.tau.numpy()
        self.losses = torch.zeros(len(hp.tau))
        self.errors, self.values = (torch.zeros(len(hp.tau), hp.batch_size) for _ in range(2))
        vectors = policy.parameters.vector, policy.target.vector, self.descent.gradient
        vector, target, gradient = (x.numpy() for x in vectors)
        networks = QNetworks(vector, target, gradient, *form, hp.double)
        errors = QErrors(*(x.numpy() for x in (self.losses, self.errors, self.values)))
        self._constant = (self.table, networks, np.float32(limit), errors)

    @classmethod
    def covering(
        cls,
        learner: OffPolicyLearner,
        policy: QNetwork,
        optimizer: Optimizer,
        limit: float,
        interval: NDArray[np.int64],
    ) -> QSteps | None:
        """Return a learner's steps; None if the kernel does not cover them.

        The arguments are those of `__init__`.
        """
        form = None if policy.fused is None else policy.fused.compiled
        plain = type(policy) is QNetwork and type(policy.encoder) is Unlearned
        if form is None or not plain or (run := run_for(learner)) is None:
            return None
        return cls(run, learner, policy, form, optimizer, limit, interval)

    def take(self, draw: Draw, scaling: Scaling, lr: Tensor, number: int) -> None:
        due = number % self.interval == 0
        with FlushedDenormals():
            self.run.descend_q(draw, scaling, *self._constant, self.descent.at(lr), self._tau, due)

    def metrics(self) -> dict[str, Tensor]:
        sizes = norms(self.descent.clipped, "q") if self.learner.measured else {}
        return {"loss": self.losses.clone(), "q": self.values.mean(1), **sizes}
