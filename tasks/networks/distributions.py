"""Action distributions of P members, sampled from given noise.

All functions are elementwise or reduce the last axis. The `noise` (..., noise_size) is drawn before a rollout, which
leaves an addition and an argmax to each step. Only exp, log, tanh and arithmetic are used (see Exactness in
networks/mlp.py).
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ..envs import Joined
from ..envs.base.joined import LARGEST_WHOLE, sizes_of, takes_numbers
from ..errors import UnsupportedSpace

NEAR = 0.25, 4.0  # least and largest half width of a Box whose numbers stay as they are
LOG_2_PI = math.log(2 * math.pi)
Array = np.ndarray
Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def library_of(numbers: Array | Tensor) -> Any:
    """Return the array library of these numbers: numpy or torch."""
    return torch if isinstance(numbers, Tensor) else np


def log_softmax(logits: Tensor) -> Tensor:
    """Return normalized log-probabilities along the last axis."""
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


class Distribution(Protocol):
    """Distribution of actions, given a policy network's outputs.

    Attributes:
        outputs: outputs of the network per observation.
        log_std_shape: shape of the log standard deviations, which are parameters besides the network's; () if there are
            none.
        noise_size: uniform random numbers per action.
        action_shape: shape of an action.
        action_type: type of an action.
    """

    outputs: int
    noise_size: int
    action_type: torch.dtype
    log_std_shape: tuple[int, ...] = ()
    action_shape: tuple[int, ...] = ()

    def noise(self, uniforms: Numbers) -> Numbers:
        """Turn uniform numbers in (0, 1), (..., noise_size), into `sample`'s noise."""

    def params(self, outputs: Tensor, z: Tensor, log_std: Tensor | None) -> Tensor:
        """Return the parameters of π(·|s) for a network's outputs.

        z are the activations of its last hidden layer.
        """

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return an action for every row of params."""

    def mode(self, params: Tensor) -> Tensor:
        """Return the most probable action for every row of params.

        Evaluation uses it.
        """

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log π(a|s) and the entropy of π(·|s), each (...)."""

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence of π_new from π_old, (...)."""

    def imitation_loss(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return the loss of imitating actions, (...).

        It is the mean squared error of the mode for numbers, and -log π for choices.
        """


class Logits(Distribution, Protocol):
    """A distribution whose parameters are the network's outputs."""

    def noise(self, uniforms: Numbers) -> Numbers:
        """Return Gumbel noise g = -log(-log u): argmax(logits + g) follows softmax(logits)."""
        xp = library_of(uniforms)
        noise: Numbers = -xp.log(-xp.log(uniforms))
        return noise

    def params(self, outputs: Tensor, z: Tensor, log_std: Tensor | None) -> Tensor:
        return outputs

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return self.mode(params + noise)

    def imitation_loss(self, params: Tensor, actions: Tensor) -> Tensor:
        return -self.log_prob_and_entropy(params, actions)[0]


class Categorical(Logits):
    """One choice of n."""

    action_type = torch.int64

    def __init__(self, n: int):
        self.outputs = self.noise_size = n

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = log_softmax(params)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        before = log_softmax(old)
        return (before.exp() * (before - log_softmax(new))).sum(-1)


class MultiCategorical(Logits):
    """k choices, the i-th of nvec[i] values, independent given the observation."""

    action_type = torch.int64

    def __init__(self, nvec: list[int]):
        self.sizes = nvec
        self.choices = [Categorical(n) for n in nvec]
        self.outputs = self.noise_size = sum(nvec)
        self.action_shape = (len(nvec),)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in params.split(self.sizes, -1)], -1)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(self.choices, params.split(self.sizes, -1), actions.unbind(-1), strict=True)
        log_probs, entropies = zip(*(choice.log_prob_and_entropy(p, a) for choice, p, a in parts), strict=True)
        return torch.stack(log_probs, -1).sum(-1), torch.stack(entropies, -1).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        parts = zip(self.choices, old.split(self.sizes, -1), new.split(self.sizes, -1), strict=True)
        return torch.stack([choice.kl(*pair) for choice, *pair in parts], -1).sum(-1)


class Bernoulli(Logits):
    """k bits, independent given the observation."""

    action_type = torch.int8

    def __init__(self, shape: tuple[int, ...]):
        self.outputs = self.noise_size = math.prod(shape)
        self.action_shape = shape

    def noise(self, uniforms: Numbers) -> Numbers:
        odds = uniforms / (1 - uniforms)
        noise: Numbers = library_of(uniforms).log(odds)  # params + noise > 0 with probability 1 / (1 + exp(-params))
        return noise

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).to(torch.int8).unflatten(-1, self.action_shape)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        pair = log_softmax(torch.stack([torch.zeros_like(params), params], -1))  # log P(0), log P(1)
        index = actions.flatten(-len(self.action_shape)).long().unsqueeze(-1)
        return pair.gather(-1, index).squeeze(-1).sum(-1), -(pair.exp() * pair).sum(-1).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        before, after = (log_softmax(torch.stack([torch.zeros_like(x), x], -1)) for x in (old, new))
        return (before.exp() * (before - after)).sum(-1).sum(-1)


class Units:
    """Units in which the bounds of a Box are -1 and 1."""

    def __init__(self, middle: Array, half: Array):
        self.middle, self.half = (torch.from_numpy(x.astype(np.float32)) for x in (middle, half))

    @staticmethod
    def of(low: Array, high: Array) -> Units | None:
        """Return the units for bounds (k,), or None if none is needed.

        A number stays if a side is unbounded, or if its bounds are near enough to -1 and 1 that a policy with mean 0
        and deviation 1 reaches all of its range.
        """
        low, high = (np.asarray(x, np.float64).reshape(-1) for x in (low, high))
        bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
        half = np.where(bounded, (np.where(bounded, high, 1) - np.where(bounded, low, -1)) / 2, 1)
        near = (low <= 0) & (high >= 0) & (half >= NEAR[0]) & (half <= NEAR[1])
        if (near | ~bounded).all():
            return None
        plain = near | ~bounded
        middle = np.where(plain, 0, np.where(bounded, low, 0) + half)
        return Units(middle, np.where(plain, 1, half))

    def actions(self, numbers: Tensor) -> Tensor:
        """Return actions for numbers in these units."""
        self._move(numbers)
        return numbers * self.half + self.middle

    def numbers(self, actions: Tensor) -> Tensor:
        """Return actions in these units."""
        self._move(actions)
        return (actions - self.middle) / self.half

    def _move(self, like: Tensor) -> None:
        if self.middle.device != like.device:
            self.middle, self.half = self.middle.to(like.device), self.half.to(like.device)


class Gaussian(Distribution):
    """k normally distributed numbers, independent given the observation.

    Parameters are the means, then the log standard deviations. Actions are not squashed: the environment clips them to
    its bounds, and the policy gradient uses the unclipped sample. Where bounds are far from -1 and 1, parameters,
    probabilities and losses are those of actions in `Units` of the bounds.
    """

    action_type = torch.float32

    def __init__(self, shape: tuple[int, ...], units: Units | None = None):
        self.units = units
        self.outputs = self.size = math.prod(shape)
        self.log_std_shape = (1, self.size)
        self.noise_size = 2 * self.size
        self.action_shape = shape

    def noise(self, uniforms: Numbers) -> Numbers:
        u, v = uniforms[..., : self.size], uniforms[..., self.size :]
        xp = library_of(uniforms)
        return xp.sqrt(-2 * xp.log(u)) * xp.cos(2 * math.pi * v)  # Box and Muller (1958)

    def params(self, outputs: Tensor, z: Tensor, log_std: Tensor | None) -> Tensor:
        assert log_std is not None
        return torch.cat([outputs, log_std.expand_as(outputs)], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return self.actions(mean + log_std.exp() * noise)

    def mode(self, params: Tensor) -> Tensor:
        return self.actions(params[..., : self.size])

    def actions(self, numbers: Tensor) -> Tensor:
        """Return actions (..., *shape) for the parameters' numbers (..., k)."""
        return (numbers if self.units is None else self.units.actions(numbers)).unflatten(-1, self.action_shape)

    def numbers(self, actions: Tensor) -> Tensor:
        """Return the parameters' numbers (..., k) for actions (..., *shape)."""
        flat = actions.flatten(-len(self.action_shape))
        return flat if self.units is None else self.units.numbers(flat)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.chunk(2, -1)
        z = (self.numbers(actions) - mean) / log_std.exp()
        log_prob = (-0.5 * z * z - log_std - 0.5 * LOG_2_PI).sum(-1)
        return log_prob, (log_std + 0.5 * (1 + LOG_2_PI)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (mean, log_std), (new_mean, new_log_std) = (x[..., : 2 * self.size].chunk(2, -1) for x in (old, new))
        spread = (2 * log_std).exp() + (mean - new_mean).square()
        return (new_log_std - log_std + 0.5 * (spread * (-2 * new_log_std).exp() - 1)).sum(-1)

    def imitation_loss(self, params: Tensor, actions: Tensor) -> Tensor:
        return (params[..., : self.size] - self.numbers(actions)).square().mean(-1)


class Hybrid(Distribution):
    """Numbers and choices in one row, independent given the observation.

    Parameters are the means of the numbers, the logits of the choices, then the log standard deviations.
    """

    action_type = torch.float32

    def __init__(self, space: Joined):
        self.columns = [i for i in range(len(space.low)) if i not in space.choices], list(space.choices)
        self.size = len(self.columns[0])
        # The columns of a row, as indices into numbers and choices side by side.
        self.order = torch.from_numpy(np.argsort([*self.columns[0], *self.columns[1]]))
        units = Units.of(space.low[self.columns[0]], space.high[self.columns[0]])
        self.numbers, self.choices = Gaussian((self.size,), units), MultiCategorical(list(space.choices.values()))
        self.outputs = self.size + self.choices.outputs
        self.log_std_shape = (1, self.size) if self.size else ()
        self.noise_size = self.numbers.noise_size + self.choices.noise_size
        self.action_shape = (len(space.low),)

    def noise(self, uniforms: Numbers) -> Numbers:
        of_numbers = self.numbers.noise_size
        parts = self.numbers.noise(uniforms[..., :of_numbers]), self.choices.noise(uniforms[..., of_numbers:])
        joined: Numbers = library_of(uniforms).concatenate(parts, -1)
        return joined

    def params(self, outputs: Tensor, z: Tensor, log_std: Tensor | None) -> Tensor:
        return outputs if log_std is None else torch.cat([outputs, log_std.expand(*outputs.shape[:-1], -1)], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        numbers, logits = self.split(params)
        of_numbers, of_choices = noise[..., : self.size], noise[..., self.size :]
        return self._join(self.numbers.sample(numbers, of_numbers), self.choices.sample(logits, of_choices))

    def mode(self, params: Tensor) -> Tensor:
        numbers, logits = self.split(params)
        return self._join(self.numbers.mode(numbers), self.choices.mode(logits))

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        (numbers, logits), (values, choices) = self.split(params), self.parts(actions)
        of_numbers = self.numbers.log_prob_and_entropy(numbers, values)
        of_choices = self.choices.log_prob_and_entropy(logits, choices)
        return of_numbers[0] + of_choices[0], of_numbers[1] + of_choices[1]

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (numbers, logits), (new_numbers, new_logits) = self.split(old), self.split(new)
        return self.numbers.kl(numbers, new_numbers) + self.choices.kl(logits, new_logits)

    def imitation_loss(self, params: Tensor, actions: Tensor) -> Tensor:
        (numbers, logits), (values, choices) = self.split(params), self.parts(actions)
        of_choices = self.choices.imitation_loss(logits, choices)
        return of_choices + self.numbers.imitation_loss(numbers, values) if self.size else of_choices

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Split parameters into those of the numbers and of the choices."""
        means, logits, log_std = params.split([self.size, self.choices.outputs, self.size], -1)
        return torch.cat([means, log_std], -1), logits

    def parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Split rows into numbers and choices."""
        return rows[..., self.columns[0]], rows[..., self.columns[1]].long()

    def _join(self, numbers: Tensor, choices: Tensor) -> Tensor:
        return torch.cat([numbers, choices.to(numbers)], -1).index_select(-1, self.order.to(numbers.device))


def units_in(space: gym.Space[Any], subject: str) -> Units | None:
    """Return the units of the numbers in an action space, or None."""
    distribution = distribution_for(space, subject)
    numbers = distribution.numbers if isinstance(distribution, Hybrid) else distribution
    return numbers.units if isinstance(numbers, Gaussian) else None


def finite(action: Tensor) -> Tensor:
    """Replace NaN in actions.

    A diverged member is only found at the end of the epoch; until then its NaN must not crash a simulator.
    """
    return torch.nan_to_num(action) if action.is_floating_point() else action


def distribution_for(space: gym.Space[Any], subject: str) -> Distribution:
    """Return the distribution over an action space.

    Raises:
        UnsupportedSpace: the space is of another kind.
    """
    match space:
        case gym.spaces.Discrete():
            return Categorical(int(space.n))
        case gym.spaces.MultiDiscrete():
            return MultiCategorical(sizes_of(space))  # a row of choices, which `Actions.decode` reshapes
        case gym.spaces.MultiBinary():
            return Bernoulli((len(sizes_of(space)),))
        case gym.spaces.Box() if space.shape and 0 not in space.shape and takes_numbers(space):
            return Gaussian(tuple(space.shape), Units.of(space.low, space.high))
        case Joined() if space.choices:
            return Hybrid(space)
        case Joined():
            return Gaussian((len(space.low),), Units.of(space.low, space.high))
    raise UnsupportedSpace(
        f"{subject} acts in Discrete, MultiDiscrete, MultiBinary and Box spaces (integers up to "
        f"{LARGEST_WHOLE:,}), and in Dicts and Tuples of these with bounded Boxes, but got {space}; wrap the "
        "environment in a gymnasium.ActionWrapper that offers one of these"
    )
