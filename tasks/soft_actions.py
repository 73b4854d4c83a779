"""What soft actor-critic acts with: a squashed normal for numbers, a categorical for choices, or both at once.

Notation: P members, B batch, k numbers and n choices in an action. A number is "unit" when its bounds are -1 and 1; all
probabilities are of unit numbers. Only exp, log, tanh and arithmetic are used, see `distributions`.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .distributions import LOG_2_PI, log_softmax
from .errors import UnsupportedSpace

Array = NDArray[Any]
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
MOST_CHOICES = 4096


class SquashedNormal(torch.autograd.Function):
    """a = tanh(u), u = mean + exp(log_std) noise, and log π(a), with the gradient written out.

        log π(a) = log N(u; mean, std) - Σ log(1 - a²),   log(1 - a²) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))

    Haarnoja et al. (2018), arXiv:1812.05905, appendix C, eq. 26; the second form is exact where 1 - a² rounds to zero.
    All arguments are (..., k); returns a (..., k) and log π (...).
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        spread = log_std.exp() * noise
        u = mean + spread
        action = torch.tanh(u)
        size = u.abs()
        per_number = 2 * (size + ((-2 * size).exp() + 1).log()) - 0.5 * noise * noise - log_std
        log_prob = per_number.sum(-1) - mean.shape[-1] * (0.5 * LOG_2_PI + 2 * math.log(2))
        ctx.save_for_backward(action, spread)
        return action, log_prob

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """du = da (1 - a²) + 2 a dlogπ, since -d log(1 - a²)/du = 2 a; dlog_std = du exp(log_std) noise - dlogπ."""
        (action, spread), (d_action, d_log_prob) = ctx.saved_tensors, gradients
        d_log_prob = d_log_prob.unsqueeze(-1)
        d_u = d_action * (1 - action * action) + 2 * action * d_log_prob
        return d_u, d_u * spread - d_log_prob, None


class SoftActions:
    """An action space's actions as k unit numbers and one of n choices.

    Attributes:
        numbers, choices: k and n; k = 0 without numbers, n = 1 without choices.
        outputs: how many numbers a policy network puts out: k means, k log standard deviations, n logits if n > 1.
        terms: how many entropies there are, first that of the numbers, then that of the choices.
    """

    def __init__(self, space: gym.Space[Any], place: str):
        """place: named in the UnsupportedSpace that other spaces raise."""
        self.numbers, self.choices = 0, 1
        match space:
            case gym.spaces.Discrete():
                self.choices = int(space.n)
            case gym.spaces.Box() if space.shape and np.issubdtype(space.dtype, np.floating) and space.is_bounded():
                self.numbers = math.prod(space.shape)
                self.shape = tuple(space.shape)
                self.middle = ((space.low + space.high) / 2).reshape(-1).astype(np.float32)
                self.half = ((space.high - space.low) / 2).reshape(-1).astype(np.float32)
            case _:
                raise UnsupportedSpace(
                    f"{place} acts in Discrete spaces and in Boxes of floats that are bounded on all sides, but got "
                    f"{space}; wrap the environment in a gymnasium.ActionWrapper that offers one of these"
                )
        self.outputs = 2 * self.numbers + (self.choices if self.choices > 1 else 0)
        self.terms = int(self.numbers > 0) + int(self.choices > 1)

    def unit(self, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Actions (P, B, ...) from the replay memory as unit numbers (P, B, k) and choices (P, B), None if n = 1."""
        if self.choices > 1:
            return actions.new_empty(*actions.shape[:2], 0, dtype=torch.float32), actions
        middle, half = (torch.from_numpy(x).to(actions.device) for x in (self.middle, self.half))
        return (actions.flatten(2) - middle) / half, None

    def actions(self, numbers: Tensor, choices: Tensor | None) -> Array:
        """What the environments take, (P, N, ...), of unit numbers (P, N, k) and choices (P, N)."""
        if choices is not None:
            return choices.cpu().numpy()
        scaled: Array = numbers.cpu().numpy() * self.half + self.middle
        return scaled.reshape(*scaled.shape[:2], *self.shape)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A policy network's outputs as means, clipped log standard deviations, (P, B, k), and logits, (P, B, n)."""
        if not self.numbers:
            return outputs[..., :0], outputs[..., :0], outputs
        mean, log_std, logits = outputs.split([self.numbers, self.numbers, self.outputs - 2 * self.numbers], -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX), logits

    def act(self, outputs: Tensor, noise: Tensor | None, uniforms: Array | None) -> Array:
        """Actions for the environments; the most probable ones without noise (P, N, k) and uniforms (P, N, n)."""
        mean, log_std, logits = self.split(outputs)
        numbers = torch.tanh(mean if noise is None else mean + log_std.exp() * noise)
        if self.choices == 1:
            return self.actions(numbers, None)
        if uniforms is not None:  # argmax(logits + g) follows softmax(logits) for g = -log(-log(u))
            gumbel = -np.log(np.maximum(-np.log1p(-uniforms), 1e-300))
            logits = logits + torch.from_numpy(gumbel).to(logits)
        return self.actions(numbers, logits.argmax(-1))


class Sample:
    """A policy's actions for a batch: unit numbers drawn, choices in expectation.

    Attributes:
        numbers: (P, B, k); probabilities: of the choices, (P, B, n), None if n = 1.
        minus_log_probs: what the mean of is the entropy, (P, B, terms): -log π of the numbers drawn, then the entropy
            of the choices.
    """

    def __init__(self, actions: SoftActions, outputs: Tensor, noise: Tensor):
        """outputs: of the policy network, (P, B, outputs); noise: (P, B, k)."""
        mean, log_std, logits = actions.split(outputs)
        terms: list[Tensor] = []
        self.numbers, self.probabilities = mean, None
        if actions.numbers:
            self.numbers, log_prob = SquashedNormal.apply(mean, log_std, noise)
            terms.append(-log_prob)
        if actions.choices > 1:
            log_probs = log_softmax(logits)
            self.probabilities = log_probs.exp()
            terms.append(-(self.probabilities * log_probs).sum(-1))
        self.minus_log_probs = torch.stack(terms, -1)

    def value(self, q: Tensor, alpha: Tensor) -> Tensor:
        """The soft value (P, B) of twin q (P, 2, B, n) with entropy coefficients (P, terms).

            V = Σ_d π(d|s) minᵢ qᵢ(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

        Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10.
        """
        least = torch.minimum(q[:, 0], q[:, 1])
        mean = least.squeeze(-1) if self.probabilities is None else (self.probabilities * least).sum(-1)
        return mean + (self.minus_log_probs * alpha.unsqueeze(1)).sum(-1)
