"""Actions of actor-critics: spaces, the policy's last layer, exploration.

Soft policies act in spaces that are continuous, discrete, or both: numbers follow a squashed normal distribution,
choices a categorical one. Deterministic policies act in continuous ones. Numbers are explored with independent noise at
each step, with correlated noise, or with state-dependent noise, see networks/sde.py:

    u = μ(s) + θ z(s),   θ_ij ~ N(0, σ_ij²),   so that   u_i ~ N(μ_i(s), Σ_j σ_ij² z_j(s)²)

While acting, θ stays the same for many steps. A gradient step uses the same distribution with new noise for every row.

Notation: P members, N environments, B batch, k continuous numbers and n discrete choices in an action, L activations z
of the policy's last hidden layer. Numbers are "normalized" if their bounds are -1 and 1; all probabilities are those of
normalized numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...envs import Joined
from ...envs.base.joined import CHOICES, LARGEST_WHOLE, sizes_of, takes_numbers
from ...errors import UnsupportedSpace
from ...networks.distributions import LOG_2_PI, Units, log_softmax
from ...networks.mlp import Parameters, actor_layers
from ...networks.sde import variance
from ...rng.draws import Draws, Normals
from ...rng.streams import Bits
from .noise import NOISES, Noise, no_noise

Array = NDArray[Any]
MAX_CHOICES = 4096
LOG_STD_LIMITS = (-20.0, 2.0)  # log standard deviations are clamped to these, and get no gradient beyond


class SoftSample(NamedTuple):
    """Sampled actions for network outputs (P, B, outputs).

    Attributes:
        continuous: numbers c, (P, B, k).
        probs: π of the choices, (P, B, n); None without choices (n = 1).
        entropies: -log π(c), whose mean is an entropy, and the entropy of the choices, (P, B, terms); no terms of
            deterministic actions.
    """

    continuous: Tensor
    probs: Tensor | None
    entropies: Tensor


class NormalizedActions:
    """An action space as k normalized numbers and one of n choices.

    Several choices are combined into one choice of all their combinations.

    Attributes:
        continuous_dim, num_discrete: k and n; k = 0 without numbers, n = 1 without choices.
        device: device of the tensors.
        outputs: outputs of a policy network, n logits among them if n > 1.
        per_number: outputs for each number.
        only_numbers: whether choices are refused.
    """

    only_numbers: ClassVar[bool] = False
    per_number: ClassVar[int] = 1

    def __init__(self, space: gym.Space[Any], subject: str, device: torch.device | str = "cpu"):
        """Describe an action space.

        Args:
            space: action space.
            subject: name of the task in error messages.
            device: device of the tensors.

        Raises:
            UnsupportedSpace: an actor-critic cannot act in the space.
        """
        low, high, choices = _columns_of(space, subject)
        numbers = [i for i in range(len(low)) if i not in choices]
        low, high = low[numbers], high[numbers]
        self.row_type: type[np.generic] = np.int64 if isinstance(space, CHOICES) else np.float32
        self.sizes = list(choices.values())
        self.columns = numbers, list(choices)
        self.shape = (len(numbers) + len(choices),) if choices and space.shape else tuple(space.shape or ())
        self.units = Units((low + high) / 2, (high - low) / 2)
        # The columns of a row, as indices into numbers and choices side by side.
        self.order = torch.from_numpy(np.argsort([*numbers, *choices]))
        self.device = torch.device(device)
        self._continuous = torch.tensor(numbers, dtype=torch.int64, device=device)
        self.continuous_dim, self.num_discrete = len(numbers), math.prod(self.sizes)
        self.outputs = self.per_number * len(numbers) + (self.num_discrete if self.num_discrete > 1 else 0)
        self._check(space, subject, low, high)

    def _check(self, space: gym.Space[Any], subject: str, low: Array, high: Array) -> None:
        """Raise UnsupportedSpace for choices or bounds that rule out the class."""
        if self.only_numbers and self.num_discrete > 1:
            raise UnsupportedSpace(
                f"{subject} acts in Boxes that are bounded on all sides, and in Dicts and Tuples of these, "
                f"but got choices in {space}; use SAC, or DQN for a Discrete space"
            )
        if self.num_discrete > MAX_CHOICES:
            raise UnsupportedSpace(
                f"{subject} chooses among at most {MAX_CHOICES} combinations of its choices, "
                f"but {space} has {self.num_discrete}; use PPO, whose choices are independent"
            )
        if fixed := np.flatnonzero(low == high).tolist():
            raise UnsupportedSpace(
                f"{subject}: the numbers of an action need room between their bounds, but number "
                f"{fixed[0]} of {space} is always {low[fixed[0]]}; leave it out with a "
                "gymnasium.ActionWrapper"
            )
        if not self.continuous_dim and self.num_discrete == 1:
            raise UnsupportedSpace(
                f"{subject} needs something to decide, but in {space} there is one action only; use "
                "an environment with more"
            )

    def normalize(self, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split actions into normalized numbers and choices.

        Actions are (P, B, ...), numbers (P, B, k), and choices (P, B), or None if n = 1.
        """
        rows, choices = actions.reshape(*actions.shape[:2], -1), None
        if self.num_discrete > 1:
            choices = torch.zeros(rows.shape[:2], dtype=torch.int64, device=rows.device)
            for column, size in zip(self.columns[1], self.sizes, strict=True):
                choices = choices * size + rows[..., column].long()
        return self.units.numbers(rows.index_select(-1, self._continuous)), choices

    def allowed(self, mask: Tensor) -> Tensor:
        """Return the combinations of choices that a mask allows, (..., n).

        The mask is (..., K), see `envs.base.masks`.
        """
        bits = mask.shape[-1] < sum(self.sizes)  # that may be 1
        parts = mask.unsqueeze(-1).unbind(-2) if bits else mask.split(self.sizes, -1)
        first, *rest = (torch.cat([torch.ones_like(part), part], -1) for part in parts) if bits else parts
        for part in rest:
            first = (first.unsqueeze(-1) & part.unsqueeze(-2)).flatten(-2)
        return first

    def denormalize(self, numbers: Tensor, choices: Tensor | None) -> Tensor:
        """Return the environments' actions for normalized numbers and choices.

        Numbers are (P, N, k), choices (P, N), and actions (P, N, ...). Exported policies do this, too.
        """
        if choices is not None and not self.shape:
            return choices
        row, rest = [self.units.actions(numbers)], numbers.new_zeros(numbers.shape[:-1]) if choices is None else choices
        for size in reversed(self.sizes):
            row.insert(1, (rest % size).unsqueeze(-1).to(numbers))
            rest = rest // size
        joined = torch.cat(row, -1).index_select(-1, self.order.to(numbers.device)) if self.sizes else row[0]
        return joined.unflatten(-1, self.shape)

    def greedy(self, outputs: Tensor) -> Tensor:
        """Return greedy actions for network outputs, (P, N, ...)."""
        mean, logits = self.greedy_outputs(outputs)
        return self.denormalize(torch.tanh(mean), None if logits is None else logits.argmax(-1))

    def greedy_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the means and logits of greedy actions.

        They are (P, B, k) and (P, B, n); logits are None if n = 1.
        """
        raise NotImplementedError

    def sample(self, outputs: Tensor, noise: Tensor) -> SoftSample:
        """Sample actions for outputs (P, B, outputs).

        The noise are standard normal numbers, (P, B, k).
        """
        raise NotImplementedError

    def act(self, outputs: Tensor, noise: Tensor, uniforms: Array | None) -> Tensor:
        """Return actions for network outputs, (P, N, ...), that explore.

        Args:
            outputs: network outputs, (P, N, outputs).
            noise: exploration noise, (P, N, k).
            uniforms: uniform numbers that draw the choices, (P, N, 1); None if there are none.
        """
        raise NotImplementedError


def _columns_of(space: gym.Space[Any], subject: str) -> tuple[Array, Array, dict[int, int]]:
    """Return bounds of a row's columns, and sizes of choices.

    The sizes are by column.

    Raises:
        UnsupportedSpace: the space has other parts.
    """
    match space:
        case gym.spaces.Box() if space.shape and takes_numbers(space) and space.is_bounded():
            low, high = (
                bound.reshape(-1).astype(np.result_type(bound, np.float32)) for bound in (space.low, space.high)
            )
            return low, high, {}
        case Joined():
            return space.low, space.high, space.choices
        case gym.spaces.Discrete() | gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            choices = dict(enumerate(sizes_of(space)))
            zeros = np.zeros(len(choices), np.float32)
            return zeros, zeros, choices
    raise UnsupportedSpace(
        f"{subject} acts in Discrete, MultiDiscrete and MultiBinary spaces, in Boxes that are bounded on all sides "
        f"(integers up to {LARGEST_WHOLE:,}), and in Dicts and Tuples of these, but got {space}; wrap it in a "
        "gymnasium.ActionWrapper that offers one"
    )


class DeterministicActions(NormalizedActions):
    """Continuous actions tanh(μ(s)), explored with noise that is added to them.

    Network outputs are the k means μ.
    """

    only_numbers = True

    def greedy_outputs(self, outputs: Tensor) -> tuple[Tensor, None]:
        return outputs, None

    def sample(self, outputs: Tensor, noise: Tensor) -> SoftSample:
        return SoftSample(torch.tanh(outputs), None, outputs.new_zeros(*outputs.shape[:2], 0))

    def act(self, outputs: Tensor, noise: Tensor, uniforms: Array | None) -> Tensor:
        return self.denormalize((torch.tanh(outputs) + noise).clamp(-1, 1), None)


class SoftActions(NormalizedActions):
    """Actions of a soft policy.

    Network outputs are k means, k log standard deviations, and n logits if n > 1.
    """

    per_number = 2

    @property
    def entropy_terms(self) -> int:
        """Number of entropies: of the numbers, and of the choices."""
        return int(self.continuous_dim > 0) + int(self.num_discrete > 1)

    def greedy_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        mean, _, logits = self.split(outputs)
        return mean, logits if self.num_discrete > 1 else None

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split network outputs into means, log standard deviations and logits.

        Means and deviations are (P, B, k), logits (P, B, n).
        """
        k = self.continuous_dim
        return outputs[..., :k], outputs[..., k : 2 * k], outputs[..., 2 * k :]  # `split` takes twice as long

    def sample(self, outputs: Tensor, noise: Tensor) -> SoftSample:
        mean, log_std, logits = self.split(outputs)
        c, probs, entropies = mean, None, []
        if k := self.continuous_dim:
            clamped = log_std.clamp(*LOG_STD_LIMITS)
            u = mean + clamped.exp() * noise
            c, size = torch.tanh(u), u.abs()
            squash = ((-2 * size).exp() + 1).log() + size  # log 2 - log(1 - c²) / 2
            terms = noise * noise * 0.5 + clamped - 2 * squash
            entropies.append(terms.sum(-1) + k * (0.5 * LOG_2_PI + 2 * math.log(2)))
        if self.num_discrete > 1:
            log_probs = log_softmax(logits)
            probs = log_probs.exp()
            entropies.append(-(probs * log_probs).sum(-1))
        return SoftSample(c, probs, torch.stack(entropies, -1))

    def std_noise(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Scale standard normal noise (P, N, k) by the standard deviations."""
        return self.split(outputs)[1].clamp(*LOG_STD_LIMITS).exp() * noise

    def act(self, outputs: Tensor, noise: Tensor, uniforms: Array | None) -> Tensor:
        mean, _, logits = self.split(outputs)
        numbers = torch.tanh(mean + noise)
        if self.num_discrete == 1:
            return self.denormalize(numbers, None)
        logits = logits.cpu()  # on CUDA a cumulative sum rounds by the number of rows
        up_to = (logits - logits.amax(-1, keepdim=True)).exp().cumsum(-1)
        whole = up_to[..., -1:]  # reached by the last choice that has a probability
        drawn = ((up_to <= torch.from_numpy(uniforms).to(logits) * whole) & (up_to < whole)).sum(-1)
        return self.denormalize(numbers, drawn)


class SoftNumbers(SoftActions):
    """Actions of a soft policy without choices."""

    only_numbers = True


class Head:
    """Last layer of the policy.

    Attributes:
        actions: action space.
        gain: factor of the linear layer's initial weights.
        used: number of outputs of the linear layer that are used.
        outputs: number of all, see Exactness in networks/mlp.py.
        shapes: shapes of further parameters, by name.
    """

    gain: ClassVar[float] = 0.01

    def __init__(self, actions: NormalizedActions, others: int = 0):
        """Describe the head; `others` of a policy's outputs are not linear."""
        self.actions, self.used = actions, actions.outputs - others
        self.outputs = max(2, self.used)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Set one member's further parameters."""

    def __call__(self, tensors: Mapping[str, Tensor], out: Tensor, z: Tensor) -> Tensor:
        """Return the parameters of actions, (P, N, outputs).

        `out` are the linear layer's outputs, z its inputs.
        """
        return out if self.used == self.outputs else out[..., : self.used]  # a view takes time

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        """Return the exploration noise, a function of step, outputs and z.

        It returns noise (P, N, k) for the numbers, and uniforms (P, N, 1) for choices.
        """
        raise NotImplementedError


class DeterministicHead(Head):
    """Last layer of a deterministic policy: linear means.

    Attributes:
        exploration: values of `noise_space`.
    """

    # With 0.01, three of twelve members of TD3 took twice as long to swing a pendulum up.
    gain = 1.0

    def __init__(self, actions: DeterministicActions, exploration: SimpleNamespace):
        super().__init__(actions)
        self.exploration = exploration

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        if self.exploration.noise == "none":
            return no_noise
        shape = num_envs, self.used
        return NOISES[self.exploration.noise](self.exploration.std, keys("action"), shape, self.actions.device)


class SoftHead(Head):
    """Last layer of a soft policy: means, log standard deviations, logits."""

    actions: SoftActions

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        normals = Normals(keys("action"), (num_envs, max(1, self.actions.continuous_dim)), self.actions.device)
        choices = Draws(keys("choice"), (num_envs, 1))
        return lambda step, outputs, z: (self.actions.std_noise(outputs, normals(step)), choices(step).copy())


class StateDependentHead(SoftHead):
    """Last layer of the policy: linear means and logits, state-dependent noise.

    The standard deviations follow from learned σ (L, k) and z.

    Attributes:
        clip_mean: largest absolute value of a mean, (P, 1, 1); None for no limit.
    """

    def __init__(self, actions: SoftActions, hp: SimpleNamespace):
        """Describe the head; `hp` has the values of `model` and `sde_space`."""
        super().__init__(actions, others=actions.continuous_dim)
        self.clip_mean = None if hp.sde_clip_mean is None else hp.sde_clip_mean.unsqueeze(-1)
        self.std_init, self.sample_freq = hp.sde_std_init, hp.sde_sample_freq
        self.width = actor_layers(hp.model)[-1]
        self.shapes = {"actor.log_std": (self.width, actions.continuous_dim)}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        log_std = self.std_init[member].log() - 0.5 * math.log(self.width)
        parameters.views["actor.log_std"][member] = log_std

    def __call__(self, tensors: Mapping[str, Tensor], out: Tensor, z: Tensor) -> Tensor:
        k, log_std = self.actions.continuous_dim, 0.5 * variance(tensors["actor.log_std"], z.detach()).log()
        mean = out[..., :k] if self.clip_mean is None else out[..., :k].clamp(-self.clip_mean, self.clip_mean)
        return torch.cat([mean, log_std, out[..., k : self.used]], -1)

    def noise(self, keys: Callable[[str], Bits], num_envs: int, tensors: Mapping[str, Tensor]) -> Noise:
        log_std = tensors["actor.log_std"]
        normals = Normals(keys("sde"), (num_envs, *self.shapes["actor.log_std"][::-1]), log_std.device)
        choices = Draws(keys("choice"), (num_envs, 1))

        def noise(step: int, outputs: Tensor, z: Tensor) -> tuple[Tensor, Array]:
            scale = log_std.exp().transpose(1, 2).contiguous().unsqueeze(1)
            theta = normals(step // self.sample_freq) * scale
            return (theta * z.unsqueeze(-2)).sum(-1), choices(step).copy()

        return noise


def soft_head(actions: SoftActions, hp: SimpleNamespace) -> SoftHead:
    """Return the last layer that hyperparameters of a soft policy ask for."""
    return StateDependentHead(actions, hp) if vars(hp).get("use_sde") else SoftHead(actions)
