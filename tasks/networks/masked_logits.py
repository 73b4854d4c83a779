"""Policies under action masks: forbidden choices have no probability.

Huang and Ontañón (2022), arXiv:2006.14171: the logits of forbidden actions are replaced by a large negative number, so
they are never sampled, get no gradient, and add nothing to entropies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .distributions import Bernoulli, Distribution

FORBIDDEN = -1e8  # finite, so that 0 times it is 0


def allowed_in(obs: Tensor, columns: slice) -> Tensor:
    """Return the mask (..., K) in encoded observations (..., D)."""
    return obs[..., columns] > 0.5


def masked_logits(distribution: Distribution, logits: Tensor, allowed: Tensor) -> Tensor:
    """Return logits without the forbidden choices.

    Args:
        distribution: distribution of one or several choices, whose parameters are logits.
        logits: (..., n).
        allowed: mask (..., K), see `envs.base.masks`.
    """
    if not isinstance(distribution, Bernoulli):
        return torch.where(allowed, logits, FORBIDDEN)
    if allowed.shape[-1] == logits.shape[-1]:  # bits that may be 1
        return torch.where(allowed, logits, FORBIDDEN)
    zero, one = allowed[..., 0::2], allowed[..., 1::2]  # slices, which ONNX has
    return torch.where(zero, torch.where(one, logits, FORBIDDEN), -FORBIDDEN)
