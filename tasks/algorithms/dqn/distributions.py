"""Distributions of returns, whose means are action values.

A network gives k atoms for each action. They are the quantiles of a distribution, or the
probabilities of fixed returns.

Notation: P members, B rows of a batch, A actions, k atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from ....spaces import Dimension, categorical, integer, real
from ...networks.distributions import log_softmax


class ReturnDistribution(Protocol):
    """A form of distributions of returns.

    Attributes:
        atoms: k.
    """

    atoms: int

    def mean(self, atoms: Tensor) -> Tensor:
        """Return the means (P, ..., A) of distributions (P, ..., A, k)."""

    def losses(self, atoms: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses, with gradients, and errors that are priorities, each (P, B).

        Args:
            atoms: distributions of the actions taken, (P, B, k).
            reward: r, (P, B).
            discount: factor of the target, (P, B).
            target: distributions of the next actions, (P, B, k).
        """


class Quantiles:
    """Quantiles of returns: Dabney et al. (2018), arXiv:1710.10044.

    J = Σᵢ mean_j |τᵢ - 1(δᵢⱼ < 0)| l(δᵢⱼ),   δᵢⱼ = r + discount θ'ⱼ - θᵢ

    Eq. 10 of the paper; the levels are τᵢ = (i - ½) / k, and l is Huber's loss. Priorities are errors of means.
    """

    def __init__(self, hp: SimpleNamespace):
        self.atoms = hp.quantiles
        self.levels = (torch.arange(self.atoms, device=hp.gamma.device) + 0.5) / self.atoms

    def mean(self, atoms: Tensor) -> Tensor:
        return atoms.mean(-1)

    def losses(self, atoms: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        targets = reward.unsqueeze(-1) + discount.unsqueeze(-1) * target
        errors = targets.unsqueeze(2) - atoms.unsqueeze(3)  # (P, B, i, j)
        small = errors.detach().clamp(-1, 1)
        weights = (self.levels.unsqueeze(-1) - (errors.detach() < 0).float()).abs()
        losses = (weights * small * (errors - 0.5 * small)).mean(-1).sum(-1)
        return losses, self.mean(targets) - self.mean(atoms.detach())


class Probabilities:
    """Probabilities of returns (C51): Bellemare et al. (2017), arXiv:1707.06887.

    J = -Σᵢ mᵢ log pᵢ(s, a),   mᵢ = Σⱼ [1 - |clip(r + discount zⱼ, v_min, v_max) - zᵢ| / Δz]⁺ p'ⱼ(s', a')

    Eq. 7 of the paper and Algorithm 1. The k returns zⱼ lie evenly between v_min and v_max, and atoms are logits of p.
    Priorities are losses, as in Rainbow.
    """

    def __init__(self, hp: SimpleNamespace):
        self.atoms = hp.atoms
        self.low, self.high = hp.v_min.unsqueeze(-1), hp.v_max.unsqueeze(-1)  # (P, 1, 1)
        steps = torch.arange(self.atoms, device=hp.gamma.device) / (self.atoms - 1)
        self.returns = self.low + (self.high - self.low) * steps  # (P, 1, k)

    def mean(self, atoms: Tensor) -> Tensor:
        returns = self.returns.view(len(self.returns), *[1] * (atoms.ndim - 2), self.atoms)
        return (log_softmax(atoms).exp() * returns).sum(-1)

    def losses(self, atoms: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        targets = reward.unsqueeze(-1) + discount.unsqueeze(-1) * self.returns  # (P, B, j)
        targets = torch.minimum(torch.maximum(targets, self.low), self.high)
        step = (self.high - self.low).unsqueeze(-1) / (self.atoms - 1)
        shares = (1 - (targets.unsqueeze(2) - self.returns.unsqueeze(3)).abs() / step).clamp(min=0)  # (P, B, i, j)
        projected = (shares * log_softmax(target).exp().unsqueeze(2)).sum(-1)
        losses = -(projected * log_softmax(atoms)).sum(-1)
        return losses, losses.detach()


DISTRIBUTIONS: dict[str, Callable[[SimpleNamespace], ReturnDistribution]] = {
    "quantile": Quantiles,
    "categorical": Probabilities,
}


def quantiles_choice(**options: Any) -> Dimension:
    """Return the number of quantiles, in the range of rl-zoo's sampler."""
    text = "quantiles of each action's value (sb3-contrib: n_quantiles)"
    return integer(5, 200, default=200, accept=(1, 10_000), structural=True, help=text, **options)


def distribution_space() -> dict[str, Dimension]:
    """Return the hyperparameters of distributions of returns.

    Their defaults are those of the papers.
    """
    fixed: dict[str, Any] = {"search": False, "when": {"distribution": "categorical"}}
    return {
        "distribution": categorical(
            "none",
            *DISTRIBUTIONS,
            default="none",
            structural=True,
            search=False,
            silent=True,
            help="learn the distribution of returns instead of its mean: by quantiles (QR-DQN), or probabilities (C51)",
        ),
        "quantiles": quantiles_choice(when={"distribution": "quantile"}),
        "atoms": integer(
            11, 101, default=51, accept=(2, 10_000), structural=True, help="returns that have probabilities", **fixed
        ),
        "v_min": real(-100.0, 0.0, default=-10.0, accept=(-1e9, 1e9), help="least of these returns", **fixed),
        "v_max": real(0.0, 100.0, default=10.0, accept=(-1e9, 1e9), help="greatest of these returns", **fixed),
    }
