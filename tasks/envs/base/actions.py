"""Conversion between actions of learners and of environments."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ...errors import UnsupportedSpace
from .envs import Array
from .joined import Joined, Space, leaves
from .space_rules import FLAT_SPACES
from .writers import size_of

MOST_VALUES = 100_000  # of all choices of an action


class Actions:
    """Conversion between a learner's actions, see ``Envs.step``, and an environment's."""

    def __init__(self, space: Space, env: str) -> None:
        self.space, self.env = space, env
        self.shape = space.shape or ()
        if not isinstance(space, (*FLAT_SPACES, Joined)):
            raise UnsupportedSpace(
                f"{env}: actions must be Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these "
                f"with bounded Boxes, but action_space is {space}; add a wrapper that turns it into one"
            )
        size = max(size_of(leaf) for _, leaf in leaves(space.space if isinstance(space, Joined) else space))
        if not size:
            raise UnsupportedSpace(
                f"{env}: an action has at least one number or choice, but action_space is {space}; add a wrapper that "
                "gives it one, such as Discrete(1)"
            )
        if size > MOST_VALUES:
            raise UnsupportedSpace(
                f"{env}: an action has at most {MOST_VALUES:,} values of choices or numbers, since a policy gives a "
                f"number for each, but action_space has {size:,}: {reprlib.repr(space)}; split it into several choices "
                "(MultiDiscrete), such as its digits, in a wrapper"
            )
        self.chosen = isinstance(space, Joined) and space.starts is not None  # nothing to clip
        self.whole = isinstance(space, spaces.Box) and space.dtype.kind != "f"
        # A learner sees a MultiDiscrete or MultiBinary as one row of choices; a Box keeps its shape.
        rows = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
        self.learner_shape = (int(np.prod(self.shape)),) if rows else self.shape

    def check(self, actions: Array, batch: tuple[int, int]) -> None:
        """Raise ValueError unless these are actions for a batch of environments."""
        kinds = "f" if isinstance(self.space, spaces.Box | Joined) else "iu"
        if actions.shape != (*batch, *self.learner_shape) or actions.dtype.kind not in kinds:
            raise ValueError(
                f"{self.env}: actions for {self.space} must be {'float32' if kinds == 'f' else 'integers'} of shape "
                f"{(*batch, *self.learner_shape)}, but got {actions.dtype} of shape {actions.shape}"
            )

    def decode(self, actions: Array) -> Array:
        """Return actions as environments take them, (P * N, *shape)."""
        actions = actions.reshape(-1, *self.shape)
        space = self.space
        if self.chosen:
            return actions
        if isinstance(space, spaces.Box | Joined):
            # np.clip takes five times as long; NaN of a diverged policy becomes a bound, as it may crash a simulator
            actions = np.fmin(np.fmax(actions, space.low), space.high)
            return (np.rint(actions) if self.whole else actions).astype(space.dtype, copy=False)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return (actions + space.start).astype(space.dtype, copy=False)
        return actions.astype(space.dtype)

    def encode(self, action: Any) -> Array:
        """Return an environment's action in the learner's form, (*learner_shape)."""
        row = np.asarray(action).reshape(self.learner_shape)
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            return np.asarray(row - np.reshape(self.space.start, self.learner_shape))
        return row

    def pick(self, draws: NDArray[np.float64], beyond: float = 0.0) -> Array:
        """Return an action for each row of numbers in [0, 1).

        Unbounded sides of a Box are cut off. Numbers reach `beyond` their bounds, as a share of the distance between
        them.
        """
        space = self.space
        draws = draws.reshape(-1, *self.learner_shape)
        if isinstance(space, spaces.Box):
            draws = draws * (1 + 2 * beyond) - beyond
        if isinstance(space, Joined):
            return space.draw(draws)
        if isinstance(space, spaces.Box):
            low = np.where(np.isfinite(space.low), space.low, np.where(np.isfinite(space.high), space.high - 2, -1))
            high = np.where(np.isfinite(space.high), space.high, low + 2)
            with np.errstate(over="ignore"):  # beyond the bounds of all numbers
                return (low * (1 - draws) + high * draws).astype(np.float32)
        if isinstance(space, spaces.Discrete):
            return (draws * int(space.n)).astype(np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            return (draws * space.nvec.reshape(-1)).astype(np.int64)
        return (draws * 2).astype(np.int8)
