"""Returns and advantages of P members at once.

Notation: arrays are (T, P, N), time first; T steps, P members, N environments.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: Tensor,
    gae_lambda: Tensor,
) -> Tensor:
    """Generalized advantage estimates, (T, P, N).

        δₜ = rₜ + γ (1 - terminatedₜ) v'ₜ - vₜ,   Âₜ = δₜ + γ λ (1 - endedₜ) Âₜ₊₁

    Every array is (T, P, N); gamma and gae_lambda are (P, 1). next_values holds v'ₜ, the value of the observation that
    really followed (the final one at a truncation); ended = terminated or truncated, as 0 and 1 like terminated.
    Schulman et al. (2016), arXiv:1506.02438, eq. 16.
    """
    advantages = rewards + gamma * (1 - terminated) * next_values - values
    decay = gamma * gae_lambda * (1 - ended)
    later, *earlier = zip(reversed(advantages.unbind(0)), reversed(decay.unbind(0)), strict=True)
    following = later[0]
    for delta, factor in earlier:
        following = torch.addcmul(delta, factor, following, out=delta)
    return advantages


def standardize(x: Tensor) -> Tensor:
    """(P, B) with mean 0 and standard deviation 1 in every row; a row of equal numbers becomes zeros, never NaN."""
    centered = x - x.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True).sqrt() + 1e-8)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) of each row of (P, B): 1 is a perfect critic, 0 a constant one."""
    residual = (returns - values) - (returns - values).mean(1, keepdim=True)
    spread = returns - returns.mean(1, keepdim=True)
    return 1 - residual.square().mean(1) / (spread.square().mean(1) + 1e-8)
