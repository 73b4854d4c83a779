"""Entropy coefficients of soft policies, constant or learned.

Notation: P members, terms of the entropy: one for continuous numbers, then one for choices.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from ....spaces import Space, categorical, log_real, maybe, real
from ...checkpoint.member_state import Stacked
from ...networks.masked_logits import allowed_in
from ...networks.mlp import Parameters
from ...networks.optimizers import optimizer_of
from .actions import NormalizedActions, SoftActions


def entropy_space() -> Space:
    """Return the hyperparameters of the entropy's coefficients.

    `alpha` is the coefficient, or its initial value if it is learned. The target entropy is -`target` per continuous
    number, and `choice_target` log n for a choice of n.
    """
    return Space(
        learn=categorical(True, False, default=True, structural=True),
        alpha=log_real(1e-3, 1.0, default=1.0, accept=(1e-12, 1e6)),
        lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
        target=real(0.25, 2.0, default=1.0, accept=(-100.0, 100.0), when={"learn": True}),
        choice_target=real(0.05, 0.98, default=0.3, accept=(0.0, 1.0), when={"learn": True}),
    )


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
        torch.sub(entropies, self.targets, out=self._gradient[:, : self.targets.shape[1]])
        self._optimizer.step(self._gradient, lr)


def new_entropy(hp: SimpleNamespace, actions: SoftActions) -> LearnedEntropy | FixedEntropy:
    """Return coefficients for the values of a task, at their initial values."""
    if not hp.entropy.learn:
        return FixedEntropy(hp.entropy.alpha.repeat(1, actions.entropy_terms))
    k, n = actions.continuous_dim, actions.num_discrete
    continuous = [-hp.entropy.target * k] if k else []
    discrete = [hp.entropy.choice_target * math.log(n)] if n > 1 else []
    return LearnedEntropy(hp.entropy.alpha, torch.cat(continuous + discrete, 1), hp.optimizer)


def forbidden_entropy(hp: SimpleNamespace, actions: NormalizedActions, obs: Tensor, mask: slice) -> Tensor:
    """Return the mean decrease of target entropies by masks, (P, 1).

    The target of a choice among m allowed ones is `choice_target` log m; fixed coefficients have none. Masks are in
    columns of observations (P, B, numbers).
    """
    share = 0.0 if hp.entropy.choice_target is None else hp.entropy.choice_target
    counts = actions.allowed(allowed_in(obs, mask)).sum(-1).clamp(min=1)
    return share * (actions.num_discrete / counts).log().mean(1, keepdim=True)
