"""Entropy coefficients of soft policies, constant or learned.

Notation: P members, terms of the entropy: one for continuous numbers, then one for choices.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from ...checkpoint.member_state import Stacked
from ...networks.mlp import Parameters
from ...networks.optimizers import optimizer_of


class FixedEntropy:
    """Constant entropy coefficients α, (P, terms)."""

    def __init__(self, alpha: Tensor):
        self.alpha = alpha

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Change nothing."""


class LearnedEntropy(Stacked):
    """Learned entropy coefficients α = exp(log_alpha), (P, terms).

    They move the entropies H towards their targets:

        J = log α (H - target),   dJ/dlog α = H - target

    arXiv:1812.05905, eq. 18, with log α in place of the factor α, as in the authors' code.
    """

    scratch = ("_gradient",)

    def __init__(self, alpha: Tensor, targets: Tensor, hp: SimpleNamespace):
        """Initialize the coefficients and their optimizer.

        Args:
            alpha: initial coefficients, (P, 1).
            targets: target entropies, (P, terms).
            hp: values of `optimizer_space`.
        """
        self.targets = targets
        self._parameters = Parameters({"log_alpha": targets.shape[1:]}, len(alpha), alpha.device)
        self._parameters.views["log_alpha"].copy_(alpha.log().expand_as(targets))
        self._optimizer = optimizer_of(self._parameters.vector, hp)
        self._gradient = torch.zeros_like(self._parameters.vector)  # its padding stays 0
        self.tensors = {"log_alpha": self._parameters.vector, **self._optimizer.tensors}

    @property
    def alpha(self) -> Tensor:
        """Current coefficients, (P, terms)."""
        return self._parameters.views["log_alpha"].exp()

    def descend(self, entropies: Tensor, lr: Tensor) -> None:
        """Take one step, given a batch's mean entropies (P, terms).

        Learning rates are (P, 1).
        """
        self._gradient[:, : self.targets.shape[1]] = entropies - self.targets
        self._optimizer.step(self._gradient, lr)
