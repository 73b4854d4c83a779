"""Exploration: uniformly random actions, and epsilon-greedy.

Evaluation explores only if it is asked to. Other exploration is elsewhere: normal noise with a learned deviation in
`distributions.Gaussian`, its squashed form in `continuous.actions`, and state-dependent noise in `networks.sde`.

Every random number comes from the member's own stream, at the position that it is requested for, so nothing here is
state.

Notation: P members, N environments, k numbers in an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ...spaces import Space, categorical, integer, log_real, real
from ..envs import Joined
from ..envs.base.joined import sizes_of
from ..errors import UnsupportedSpace
from ..rng import streams
from ..rng.draws import Draws, Normals

Array = NDArray[Any]


def epsilon_space() -> Space:
    """Return the hyperparameters of epsilon.

    Epsilon moves from `start` to `final` over `horizon` environment steps.
    """
    return Space(
        name=categorical("linear", "exponential", default="linear", structural=True, search=False),
        start=real(0.0, 1.0, default=1.0, search=False),
        final=log_real(0.01, 0.2, default=0.05, accept=(0.0, 1.0)),
        horizon=integer(1_000, 100_000, log=True, default=10_000, accept=(1, 10**12)),
    )


class Epsilon:
    """Probability of a random action after t environment steps.

        linear:       start + (final - start) min(1, t / horizon)
        exponential:  final + (start - final) exp(-t / horizon)

    The horizon is a hyperparameter and does not depend on the epochs, so training for longer does not change the
    schedule.
    """

    def __init__(self, hp: SimpleNamespace):
        """Store the values of `epsilon_space` in double precision."""
        self.linear = hp.name == "linear"
        self.start, self.final, self.horizon = (x.cpu().double().numpy() for x in (hp.start, hp.final, hp.horizon))

    def __call__(self, env_steps: int) -> NDArray[np.float64]:
        """Return epsilon, (P, 1), after this many environment steps."""
        progress = env_steps / self.horizon
        if self.linear:
            return self.start + (self.final - self.start) * np.minimum(progress, 1.0)
        decay = np.array([[math.exp(-x)] for x in progress[:, 0]])  # rounding of numpy's exp depends on the position
        value: NDArray[np.float64] = self.final + (self.start - self.final) * decay
        return value


class UniformActions:
    """Uniformly random actions of any space.

    They fill a replay buffer before anything is learned. If a Box lacks both bounds, its numbers are standard normal;
    if it lacks one, they lie beyond the other bound by the absolute value of a standard normal number.
    """

    def __init__(self, keys: streams.Bits, space: gym.Space[Any], num_envs: int, subject: str):
        """Set up the random streams for an action space.

        Args:
            keys: random streams of the members, (P,).
            space: action space.
            num_envs: N.
            subject: name of the task in error messages.

        Raises:
            UnsupportedSpace: the space is of another kind.
        """
        self.sizes: NDArray[np.int64] | None = None
        self.shape: tuple[int, ...] = ()
        match space:
            case gym.spaces.Discrete():
                self.sizes = np.array([space.n])
            case gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
                self.sizes = np.array(sizes_of(space))
                self.shape = self.sizes.shape  # one row of choices, the form in which learners act
            case Joined():
                self.shape = space.low.shape
            case gym.spaces.Box():
                self.shape = space.shape
                self.low, self.high = space.low.reshape(-1).astype(float), space.high.reshape(-1).astype(float)
            case _:
                raise UnsupportedSpace(
                    f"{subject}: random actions are known for Discrete, MultiDiscrete, MultiBinary, Box, and Dicts and "
                    f"Tuples of these with bounded Boxes, not for {space}"
                )
        self.size = math.prod(self.shape)
        bits = isinstance(space, gym.spaces.MultiBinary)
        self.type = np.int8 if bits else np.float32 if self.sizes is None else np.int64
        self.largest = 0 if self.sizes is None else int(self.sizes.max()) - 1  # of the indices that it draws
        self.draws = Draws(keys, (num_envs, self.size))
        self.draw_row = space.draw if isinstance(space, Joined) else None
        self.normals: Normals | None = None
        if isinstance(space, gym.spaces.Box) and not space.is_bounded():
            self.normals = Normals(~keys, (num_envs, self.size))

    def __call__(self, position: int, allowed: NDArray[np.bool_] | None = None) -> Array:
        """Return actions (P, N, *shape) for the step at this position.

        With a mask (P, N, K), see `envs.base.masks`, they are uniform among the allowed ones.
        """
        uniforms = self.draws(position)
        if allowed is not None and self.sizes is not None:
            return self._of_allowed(uniforms, allowed)
        if self.draw_row is not None:
            return self.draw_row(uniforms)
        flat = self._of_box(uniforms, position) if self.sizes is None else uniforms * self.sizes
        return flat.astype(self.type).reshape(*uniforms.shape[:2], *self.shape)

    def _of_allowed(self, uniforms: NDArray[np.float64], allowed: NDArray[np.bool_]) -> Array:
        assert self.sizes is not None
        if allowed.shape[-1] == len(self.sizes) < self.sizes.sum():  # bits that may be 1
            flat = (uniforms * self.sizes).astype(self.type) * allowed
        else:
            parts = np.split(allowed, np.cumsum(self.sizes)[:-1], -1)
            flat = np.stack([pick_allowed(uniforms[..., i], part) for i, part in enumerate(parts)], -1)
        return flat.astype(self.type).reshape(*uniforms.shape[:2], *self.shape)

    def _of_box(self, uniforms: NDArray[np.float64], position: int) -> Array:
        below, above = np.isfinite(self.low), np.isfinite(self.high)
        low, high = np.where(below, self.low, 0.0), np.where(above, self.high, 0.0)
        bounded = low + (high - low) * uniforms
        if self.normals is None:
            return bounded
        normal = self.normals(position).cpu().double().numpy()
        one_sided = np.where(below, low + np.abs(normal), high - np.abs(normal))
        return np.where(below & above, bounded, np.where(below | above, one_sided, normal))


def pick_allowed(uniforms: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return an allowed index (...) for each uniform number (...).

    The mask is (..., n); where it allows nothing, the index is 0.
    """
    order = np.cumsum(allowed, -1)
    wanted = (uniforms * order[..., -1]).astype(np.int64)
    return np.argmax(order > wanted[..., None], -1)


class EpsilonGreedy:
    """Epsilon-greedy exploration: Sutton and Barto (2018), section 2.2.

    With probability epsilon an action is uniform, otherwise greedy.
    """

    def __init__(self, keys: streams.Bits, actions: int, num_envs: int):
        """Set up the random streams.

        Args:
            keys: random streams of the members, (P,).
            actions: number of actions.
            num_envs: N.
        """
        self.actions = actions
        self.draws = Draws(keys, (2, num_envs))

    def __call__(
        self,
        position: int,
        epsilon: NDArray[np.float64],
        greedy: Callable[[], NDArray[np.int64]],
        allowed: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Return actions (P, N) for the step at this position.

        Args:
            position: position in the random streams.
            epsilon: (P, 1).
            greedy: function that returns the greedy actions (P, N); it is not called if all environments explore.
            allowed: mask of actions, (P, N, n); None if all are allowed.
        """
        draws = self.draws(position)
        explores = draws[:, 0] < epsilon
        if not explores.any():
            return greedy()
        uniform = (draws[:, 1] * self.actions).astype(np.int64)
        if allowed is not None:
            uniform = pick_allowed(draws[:, 1], allowed)
        return uniform if explores.all() else np.where(explores, uniform, greedy())
