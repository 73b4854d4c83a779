"""Gradient steps of deep Q-learning by `replay_descent.descend_q`."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.records import Draw, GivenBatch, QErrors, QNetworks, Returns, Scaling
from ...networks.acting import REPLAYED
from ...networks.optimizers import CompiledDescent, FlushedDenormals, Optimizer, norms
from ..compiled_steps import CompiledSteps
from ..off_policy_learner import OffPolicyLearner
from .distributions import Probabilities, Quantiles
from .networks import QNetwork

FORMS = {type(None): 0, Quantiles: 1, Probabilities: 2}  # numbers of `Returns`


class QSteps(CompiledSteps):
    """The gradient steps of P members of DQN."""

    def __init__(
        self,
        learner: OffPolicyLearner,
        run: ModuleType,
        policy: QNetwork,
        optimizer: Optimizer,
        limit: float,
        interval: NDArray[np.int64],
    ):
        """Allocate the results of a step.

        Args:
            learner: the learner.
            run: module of kernels.
            policy: its networks, of which all values come from one perceptron.
            optimizer: its optimizer.
            limit: error beyond which the loss of action values is linear.
            interval: gradient steps between two moves of a target network, (P, 1).
        """
        super().__init__(learner, run)
        assert policy.perceptron is not None
        perceptron = policy.perceptron
        hp, distribution = learner.hp, policy.distribution
        self.interval, self.descent, self._tau = interval, CompiledDescent(optimizer, hp.max_grad_norm), hp.tau.numpy()
        self.losses = torch.zeros(len(hp.tau))
        self.errors, self.values = (torch.zeros(len(hp.tau), hp.batch_size) for _ in range(2))
        vectors = policy.parameters.vector, policy.target.vector, self.descent.gradient
        vector, target, gradient = (x.numpy() for x in vectors)
        form = np.array(perceptron.sizes, np.int64), REPLAYED[perceptron.activation_name]
        networks = QNetworks(vector, target, gradient, *form, hp.double)
        returns = distribution.returns[:, 0] if isinstance(distribution, Probabilities) else torch.zeros_like(hp.tau)
        atoms = Returns(FORMS[type(distribution)], policy.atoms, returns.contiguous().numpy())
        errors = QErrors(*(x.numpy() for x in (self.losses, self.errors, self.values)))
        self._constant = (networks, atoms, np.float32(limit), errors)

    def take(self, draw: Draw, scaling: Scaling, batch: GivenBatch, lr: Tensor, number: int) -> None:
        due = number % self.interval == 0
        with FlushedDenormals():
            steps = (self.descent.at(lr), self._tau, due)
            self.run.descend_q(draw, scaling, self.table, batch, *self._constant, *steps)

    def metrics(self) -> dict[str, Tensor]:
        sizes = norms(self.descent.clipped, "q") if self.learner.measured else {}
        return {"loss": self.losses.clone(), "q": self.values.mean(1), **sizes}
