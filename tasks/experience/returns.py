"""Estimates of returns and advantages, for P members at once.

Notation: arrays are (T, P, N), time first; T steps, P members, N environments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...spaces import Dimension, categorical
from .normalizers import RunningMoments


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    gamma: Tensor,
    gae_lambda: Tensor,
    present: Tensor | None = None,
) -> Tensor:
    """Return generalized advantage estimates, (T, P, N).

        δₜ = rₜ + γ (1 - terminatedₜ) v'ₜ - vₜ,   Âₜ = δₜ + γ λ (1 - endedₜ) Âₜ₊₁

    Schulman et al. (2016), arXiv:1506.02438, eq. 16. TD(λ) returns, the targets of a critic, are Âₜ + vₜ.

    Args:
        rewards: r, (T, P, N).
        values: v, (T, P, N).
        next_values: v', values of the observations that followed (the final ones at truncations), (T, P, N).
        terminated: 0 or 1, (T, P, N).
        ended: terminated or truncated, 0 or 1, (T, P, N).
        gamma: γ, (P, 1).
        gae_lambda: λ, (P, 1).
        present: rows that count, (T, P, N), 0 or 1; the sum passes over the others. None if all do.
    """
    advantages = rewards + gamma * (1 - terminated) * next_values - values
    decay = gamma * gae_lambda * (1 - ended)
    if present is not None and not present.all():
        following = torch.zeros_like(advantages[0])
        for t in reversed(range(len(advantages))):
            torch.addcmul(advantages[t], decay[t], following, out=advantages[t])
            following = torch.where(present[t] > 0, advantages[t], following)
        return advantages
    later, *earlier = zip(reversed(advantages.unbind(0)), reversed(decay.unbind(0)), strict=True)
    following = later[0]
    for delta, factor in earlier:
        following = torch.addcmul(delta, factor, following, out=delta)
    return advantages


def empirical_returns(rewards: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: Tensor) -> Tensor:
    """Return the discounted sums of rewards, (T, P, N): TD(1) returns.

        Rₜ = rₜ + γ (1 - terminatedₜ) (v'ₜ if the episode was truncated or the rollout ends, else Rₜ₊₁)

    The arguments are those of `gae`.
    """
    returns = torch.empty_like(rewards)
    following = next_values[-1]
    for t in reversed(range(len(rewards))):
        following = torch.where(ended[t] > 0, next_values[t], following)
        returns[t] = following = rewards[t] + gamma * (1 - terminated[t]) * following
    return returns


class RunningStandardizer(RunningMoments):
    """Standardization of rows (P, B) by running moments.

    The moments include all rows so far and the current ones.
    """

    def __call__(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        self.update(x.cpu().numpy()[:, :, None], None if weights is None else weights.cpu().numpy() > 0)
        mean, variance = (torch.from_numpy(m).to(x) for m in (self.mean, self.variance))
        return (x - mean) / (variance.sqrt() + 1e-8)


def advantage_scale(mode: bool | str, members: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return the function that scales a whole rollout's advantages.

    `mode` is the hyperparameter `normalize_advantage`. "running" scales by running moments; other modes leave
    advantages unchanged here. Its second argument selects the rows that enter the moments, (P, B), 0 or 1; None takes
    all.
    """
    return RunningStandardizer(members, 1) if mode == "running" else lambda advantages, _: advantages


def average(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the weighted mean of each row of (P, B).

    Weights are 0 or 1, (P, B); None weights all equally. If all weights of a row are 0, the mean is 0.
    """
    return x.mean(1) if weights is None else (x * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def standardize(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Scale each row of (P, B) to mean 0 and variance 1.

    A row of equal numbers becomes zeros.
    """
    centered = x - average(x, weights).unsqueeze(1)
    return centered / (average(centered.square(), weights).sqrt().unsqueeze(1) + 1e-8)


def doubled_huber(errors: Tensor) -> Tensor:
    """Return twice the Huber loss of errors δ, elementwise.

    Huber (1964): δ² for |δ| <= 1, and 2 |δ| - 1 beyond.
    """
    size = errors.abs()
    near = size.clamp(max=1.0)
    return near * (2 * size - near)


def clipped_square(errors: Tensor, limit: float) -> Tensor:
    """Return half of the squared errors, linear beyond a limit.

    They are δ²/2 for |δ| <= limit, and limit (|δ| - limit/2) beyond, elementwise.
    """
    clipped = errors.detach().clamp(-limit, limit)
    return clipped * (errors - 0.5 * clipped)


# Elementwise functions of a critic's errors; the loss is half of them.
CRITIC_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"mse": torch.square, "huber": doubled_huber}


def critic_loss_choice(default: str = "mse") -> Dimension:
    """Return the hyperparameter `critic_loss`.

    It was added later, so its default is silent and keeps earlier uids.
    """
    return categorical(*CRITIC_LOSSES, default=default, structural=True, search=False, silent=True)


def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns) per row (P, B).

    A perfect critic has 1.
    """
    residual = (returns - values) - average(returns - values, weights).unsqueeze(1)
    centered = returns - average(returns, weights).unsqueeze(1)
    return 1 - average(residual.square(), weights) / (average(centered.square(), weights) + 1e-8)
