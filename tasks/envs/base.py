"""What every batch of environments offers: P members with N environments each, whose state is data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ..errors import StateMismatch
from .spec import EnvSpec

if TYPE_CHECKING:
    import torch

Tree = dict[str, Any]
Array = NDArray[Any]


class Step(NamedTuple):
    """What followed the actions, (P, N, ...); ``next_obs`` is what really came, also where the episode ended."""

    next_obs: Array
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


@dataclass
class Episodes:
    """Per member, the episodes that finished since the tally began, (P,)."""

    count: NDArray[np.int64]
    return_sum: NDArray[np.float64]
    length_sum: NDArray[np.int64]

    @classmethod
    def none(cls, members: int) -> Episodes:
        """An empty tally."""
        return cls(np.zeros(members, np.int64), np.zeros(members), np.zeros(members, np.int64))


class Envs(ABC):
    """P members with N environments each; member p's environment n is number p * N + n of the flat axis.

    Every reset draws from a stream of (seed, purpose, n, episode) alone: a member knows neither its neighbours nor P.

    Attributes:
        obs_space, action_space: the Gymnasium spaces of one environment.
        obs_kind: "vector" (float32) or "image" (uint8, height x width x channels).
        obs_shape: shape of one encoded observation.
        obs: the current observations, (P, N, *obs_shape).
        mode: how the state is restored: "snapshot", "replay" or "restart".
        exact: whether a restored member goes on as if it had never stopped, bit for bit; ``why`` says why (not).
        episodes: tallies of the episodes finished since ``take_episodes``.
        witness: is told of finished episodes in their order: members, returns, lengths; when the tallies are looked at.
    """

    obs_space: gym.Space[Any]
    action_space: gym.Space[Any]
    obs_kind: str
    obs_shape: tuple[int, ...]
    obs: Array
    mode: str
    exact: bool
    why: str
    witness: Callable[[Array, Array, Array], None] | None = None

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str) -> None:
        if num_envs < 1 or not seeds:
            raise ValueError(f"there must be a member and an environment at least, but got {len(seeds)} and {num_envs}")
        self.spec = spec
        self.seeds = tuple(seeds)
        self.purpose = purpose
        self.num_members, self.num_envs = len(seeds), num_envs
        self.size = self.num_members * num_envs
        self.member = np.repeat(np.arange(self.num_members), num_envs)
        self._clear_episodes()

    @abstractmethod
    def reset(self) -> None:
        """Begins again at episode 0, as if newly made; the tallies are emptied."""

    @abstractmethod
    def step(self, actions: Array) -> Step:
        """One step everywhere; environments that ended are reset, and ``obs`` holds their new first observation.

        ``actions`` is (P, N) of indices from 0 for Discrete, (P, N, k) of such for MultiDiscrete, (P, N, n) of 0 and 1
        for MultiBinary, (P, N, *shape) for Box and (P, N, k) for Joined, clipped to the bounds here.
        """

    @abstractmethod
    def abandon(self, where: Array) -> None:
        """Begins the next episode where (P, N) says so; the one that was running is not tallied."""

    def begin_epoch(self, epochs: Array) -> None:  # noqa: B027
        """Tells each member's epoch, (P,), at its begin; only restart mode has something to do then."""

    def member_metrics(self, i: int) -> dict[str, float]:
        """What there is to report of member i at this moment, besides its episodes."""
        return {}

    @abstractmethod
    def member_state(self, i: int) -> Tree:
        """All that member i's future depends on, as a tree of tensors and JSON values that shares nothing."""

    @abstractmethod
    def load_member(self, i: int, tree: Tree, *, strict: bool = True) -> None:
        """Puts a state of ``member_state`` into member i; StateMismatch if it is another environment's or mode's.

        Where a replayed episode is not the recorded one (other versions of a simulator), that is a StateMismatch too;
        unless ``strict``, the episode begins again, and the environments are no longer ``exact``.
        """

    def close(self) -> None:  # noqa: B027
        """Frees what the environments hold; twice is fine."""

    @property
    def episodes(self) -> Episodes:
        """Tallies of the episodes finished since ``take_episodes``."""
        tally = self._tallied
        for ended, returns, lengths in self._finished:
            member = self.member[ended]
            # One after the other, in order: neither P nor when somebody looked may change a sum's rounding.
            np.add.at(tally.count, member, 1)
            np.add.at(tally.return_sum, member, returns)
            np.add.at(tally.length_sum, member, lengths)
            if self.witness is not None:
                self.witness(member, returns, lengths)
        self._finished.clear()
        return tally

    def take_episodes(self) -> Episodes:
        """The tallies since the last call, which start again from nothing."""
        taken = self.episodes
        self._clear_episodes()
        return taken

    def _clear_episodes(self) -> None:
        self._tallied = Episodes.none(self.num_members)
        # (places on the flat axis, in order; returns; lengths) of finished episodes that are not in the tallies yet.
        self._finished: list[tuple[NDArray[np.int64], Array, Array]] = []

    def _rows(self, i: int) -> slice:
        if not 0 <= i < self.num_members:
            raise IndexError(f"a member must be in 0..{self.num_members - 1}, but got {i}")
        return slice(i * self.num_envs, (i + 1) * self.num_envs)

    def _head(self, i: int) -> Tree:
        """What every state begins with: whose it is, and the tallies."""
        tally = self.episodes
        return {
            "env": self.spec.canonical,
            "mode": self.mode,
            "exact": self.exact,
            "episodes": {
                "count": int(tally.count[i]),
                "return_sum": float(tally.return_sum[i]),
                "length_sum": int(tally.length_sum[i]),
            },
        }

    def _check_head(self, tree: Tree) -> None:
        if tree["env"] != self.spec.canonical:
            raise StateMismatch(f"a state of {tree['env']} cannot be loaded into {self.spec.canonical}")
        if tree["mode"] != self.mode:
            raise StateMismatch(
                f"{self.spec.id}: the state was recorded in {tree['mode']} mode, but this process restores by "
                f"{self.mode} ({self.why}); use the versions of gymnasium and its simulators that recorded it"
            )

    def _load_head(self, i: int, tree: Tree) -> None:
        saved, tally = tree["episodes"], self.episodes
        tally.count[i] = saved["count"]
        tally.return_sum[i] = saved["return_sum"]
        tally.length_sum[i] = saved["length_sum"]


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor with a copy of the array."""
    import torch  # here, since an environment process needs none, and it takes a second and 200 MB

    return torch.from_numpy(np.array(array, order="C"))
