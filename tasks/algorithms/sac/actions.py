"""What soft actor-critic acts with: a squashed normal for numbers, a categorical for choices, or both at once.

Notation: P members, B batch, k numbers and n choices in an action. A number is "unit" when its bounds are -1 and 1; all
probabilities are of unit numbers. Only exp, log, tanh and arithmetic are used, see `distributions`.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...envs import Joined
from ...errors import UnsupportedSpace
from ...networks.distributions import LOG_2_PI, log_softmax

Array = NDArray[Any]
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
MOST_CHOICES = 4096


class SoftActions:
    """An action space's actions as k unit numbers and one of n choices.

    Several Discretes are one choice of all their combinations.

    Attributes:
        numbers, choices: k and n; k = 0 without numbers, n = 1 without choices.
        outputs: how many numbers a policy network puts out: k means, k log standard deviations, n logits if n > 1.
        terms: how many entropies there are, first that of the numbers, then that of the choices.
    """

    def __init__(self, space: gym.Space[Any], place: str):
        """place: named in the UnsupportedSpace that other spaces raise."""
        low, high = np.empty(0, np.float32), np.empty(0, np.float32)
        self.sizes: list[int] = []  # of the Discretes
        self.row: tuple[list[int], list[int]] | None = None  # the places of numbers and of choices in a Joined's row
        match space:
            case gym.spaces.Discrete():
                self.sizes = [int(space.n)]
            case gym.spaces.Box() if space.shape and np.issubdtype(space.dtype, np.floating) and space.is_bounded():
                low, high = space.low.reshape(-1), space.high.reshape(-1)
                self.shape = tuple(space.shape)
            case Joined():
                places = [i for i in range(len(space.low)) if i not in space.choices]
                low, high = space.low[places], space.high[places]
                self.sizes, self.row = list(space.choices.values()), (places, list(space.choices))
            case _:
                raise UnsupportedSpace(
                    f"{place} acts in Discrete spaces, in Boxes of floats that are bounded on all sides, and in Dicts "
                    f"and Tuples of both, but got {space}; wrap it in a gymnasium.ActionWrapper that offers one"
                )
        self.middle, self.half = ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
        self.numbers, self.choices = len(low), math.prod(self.sizes)
        if self.choices > MOST_CHOICES:
            raise UnsupportedSpace(
                f"{place} chooses among at most {MOST_CHOICES} combinations of its Discretes, "
                f"but {space} has {self.choices}"
            )
        if fixed := np.flatnonzero(low == high).tolist():
            raise UnsupportedSpace(
                f"{place}: the numbers of an action need room between their bounds, but number "
                f"{fixed[0]} of {space} is always {low[fixed[0]]}; leave it out with a "
                "gymnasium.ActionWrapper"
            )
        self.outputs = 2 * self.numbers + (self.choices if self.choices > 1 else 0)
        self.terms = int(self.numbers > 0) + int(self.choices > 1)
        if not self.terms:
            raise UnsupportedSpace(
                f"{place} needs something to decide, but in {space} there is one action only; use "
                "an environment with more"
            )

    def unit(self, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Actions (P, B, ...) from the replay memory as unit numbers (P, B, k) and choices (P, B), None if n = 1."""
        if self.row is None and self.choices > 1:
            return actions.new_empty(*actions.shape[:2], 0, dtype=torch.float32), actions
        numbers, choice = actions.flatten(2), None
        if self.row is not None:
            rows, (places, of_choices) = numbers, self.row
            numbers = rows[..., places]
            if self.choices > 1:
                choice = torch.zeros(rows.shape[:2], dtype=torch.int64, device=rows.device)
                for place, size in zip(of_choices, self.sizes, strict=True):
                    choice = choice * size + rows[..., place].long()
        middle, half = (torch.from_numpy(x).to(actions.device) for x in (self.middle, self.half))
        return (numbers - middle) / half, choice

    def actions(self, numbers: Tensor, choices: Tensor | None) -> Array:
        """What the environments take, (P, N, ...), of unit numbers (P, N, k) and choices (P, N)."""
        if self.row is None and choices is not None:
            return choices.cpu().numpy()
        scaled: Array = numbers.cpu().numpy() * self.half + self.middle
        if self.row is None:
            return scaled.reshape(*scaled.shape[:2], *self.shape)
        rows = np.empty((*scaled.shape[:2], self.numbers + len(self.sizes)), np.float32)
        rows[..., self.row[0]] = scaled
        if choices is None:
            rows[..., self.row[1]] = 0
        else:
            rows[..., self.row[1]] = np.stack(np.unravel_index(choices.cpu().numpy(), self.sizes), -1)
        return rows

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A policy network's outputs as means, log standard deviations, (P, B, k), and logits, (P, B, n)."""
        if not self.numbers:
            return outputs[..., :0], outputs[..., :0], outputs
        mean, log_std, logits = outputs.split([self.numbers, self.numbers, self.outputs - 2 * self.numbers], -1)
        return mean, log_std, logits

    def spread(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Standard normal noise (P, N, k) times the standard deviations."""
        return self.split(outputs)[1].clamp(LOG_STD_MIN, LOG_STD_MAX).exp() * noise

    def act(self, outputs: Tensor, noise: Tensor | None, uniforms: Array | None) -> Array:
        """Actions for the environments; the most probable ones without noise (P, N, k) and uniforms (P, N, 1).

        noise: is added to the means.
        """
        mean, _, logits = self.split(outputs)
        numbers = torch.tanh(mean if noise is None else mean + noise)
        if self.choices == 1:
            return self.actions(numbers, None)
        if uniforms is None:
            return self.actions(numbers, logits.argmax(-1))
        up_to = (logits - logits.amax(-1, keepdim=True)).exp().cumsum(-1)
        drawn = (up_to <= torch.from_numpy(uniforms).to(logits) * up_to[..., -1:]).sum(-1)
        return self.actions(numbers, drawn.clamp(max=self.choices - 1))


class Sample:
    """A policy's actions for a batch: numbers drawn from a squashed normal, choices in expectation.

        c = tanh(u), u = mean + exp(log_std) noise,   log π(c) = log N(u; mean, std) - Σ log(1 - c²)

    Haarnoja et al. (2018), arXiv:1812.05905, appendix C, eq. 26, where log(1 - c²) is computed as
    2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact also where 1 - c² rounds to zero.

    Attributes:
        numbers: c, (P, B, k).
        entropies: what the mean of is the entropy, (P, B, terms): -log π(c), then the entropy of the choices.
    """

    def __init__(self, actions: SoftActions, outputs: Tensor, noise: Tensor):
        """outputs: of the policy network, (P, B, outputs); noise: (P, B, k), standard normal."""
        self.actions = actions
        mean, self._log_std, logits = actions.split(outputs)
        terms: list[Tensor] = []
        self.numbers = mean
        if actions.numbers:
            log_std = self._log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
            self._spread = log_std.exp() * noise
            u = mean + self._spread
            self.numbers, size = torch.tanh(u), u.abs()
            of_squash = ((-2 * size).exp() + 1).log() + size  # log 2 - log(1 - c²) / 2
            per_number = (noise * noise * 0.5 + log_std).sub_(of_squash, alpha=2)
            terms.append(per_number.sum(-1) + actions.numbers * (0.5 * LOG_2_PI + 2 * math.log(2)))
        if actions.choices > 1:
            self._log_probs = log_softmax(logits)
            self._probs = self._log_probs.exp()
            terms.append(-(self._probs * self._log_probs).sum(-1))
        self.entropies = torch.stack(terms, -1)

    def rows(self, first: int, last: int) -> Sample:
        """The sample of a part of the batch."""
        part = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(part, name, value[:, first:last].contiguous())  # sums round by strides
        return part

    def value(self, q: Tensor, alpha: Tensor) -> Tensor:
        """The soft value (P, B) of twin q (P, 2, B, n) with entropy coefficients (P, terms).

            V = Σ_d π(d|s) minᵢ qᵢ(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

        Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10.
        """
        least = torch.minimum(q[:, 0], q[:, 1])
        mean = least.squeeze(-1) if self.actions.choices == 1 else (self._probs * least).sum(-1)
        return mean + (self.entropies * alpha.unsqueeze(1)).sum(-1)

    def to_q(self, q: Tensor) -> Tensor:
        """The gradient of V in q, (P, 2, B, n): the probability of the choice at the lesser twin, 0 at the other."""
        first = (q[:, :1] <= q[:, 1:]).to(q.dtype)
        chosen = torch.cat([first, 1 - first], 1)
        return chosen if self.actions.choices == 1 else chosen * self._probs.unsqueeze(1)

    def to_outputs(self, q: Tensor, alpha: Tensor, to_numbers: Tensor) -> Tensor:
        """The gradient of V in the policy network's outputs (P, B, outputs), by way of the numbers' own (P, B, k).

        dV/du = dV/dc (1 - c²) - 2 α_c c,   dV/dlog_std = dV/du exp(log_std) noise + α_c
        dV/dlogits = π (z - Σ_d π z),   z = min q - α_d log π
        """
        gradients: list[Tensor] = []
        if self.actions.numbers:
            of_numbers, c = alpha[:, :1].unsqueeze(-1), self.numbers
            to_mean = to_numbers * (1 - c * c) - 2 * of_numbers * c
            to_log_std = to_mean * self._spread + of_numbers
            clipped = torch.ops.aten.hardtanh_backward(to_log_std, self._log_std, LOG_STD_MIN, LOG_STD_MAX)
            gradients += [to_mean, clipped]
        if self.actions.choices > 1:
            z = torch.minimum(q[:, 0], q[:, 1]) - alpha[:, -1:].unsqueeze(-1) * self._log_probs
            gradients.append(self._probs * (z - (self._probs * z).sum(-1, keepdim=True)))
        return torch.cat(gradients, -1) if len(gradients) > 1 else gradients[0]
