"""The interface of P members' environments, whose state is data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...compiled.records import EnvModel, RunningEpisodes
from ...errors import EpisodesLost, StateMismatch
from .arrays import Array as Array
from .arrays import Tree as Tree
from .arrays import to_tensor as to_tensor
from .info import EpisodeInfo
from .spec import EnvSpec


class StepResult(NamedTuple):
    """The results of one step, (P, N, ...).

    ``next_obs`` is the observation that really followed, also where an episode ended.
    """

    next_obs: Array
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


Sample = Callable[[Tensor, Tensor], Tensor]


class PlayedOnDevice(Protocol):
    """A whole rollout of T steps, on the policy's device.

    See `compiled.records.Played`; actions are (P, T, N, ...).
    """

    obs: Tensor
    next_obs: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor

    @property
    def actions(self) -> Tensor: ...


@dataclass
class Episodes:
    """Tallies of finished episodes by member, each (P,)."""

    count: NDArray[np.int64]
    return_sum: NDArray[np.float64]
    length_sum: NDArray[np.int64]

    def since(self, before: Episodes) -> Episodes:
        """Return the tallies of the episodes that finished after these."""
        return Episodes(*(now - then for now, then in zip(vars(self).values(), vars(before).values(), strict=True)))

    def metrics(self, member: int) -> dict[str, float]:
        """Return a member's number of episodes, and their means, if any."""
        count = int(self.count[member])
        if not count:
            return {}
        return {
            "episodes": float(count),
            "episode_return": float(self.return_sum[member]) / count,
            "episode_length": float(self.length_sum[member]) / count,
        }


class Envs(ABC):
    """The environments of P members, N each.

    Environment n of member p has index p * N + n on the flat axis. Every reset draws from a stream of (seed, purpose,
    n, episode) alone, so a member depends neither on the other members nor on P.

    Attributes:
        obs_space, action_space: Gymnasium spaces of one environment.
        obs_kind: "vector" (float32), "image" (uint8, height x width x channels), or "mixed" (uint8, see `MixedShape`).
        obs_shape: shape of one encoded observation.
        obs: current observations, (P, N, *obs_shape).
        mode: how the state is restored: "snapshot", "replay" or "restart".
        exact: whether a restored member continues as if it had never stopped, bit for bit.
        reason: why it is exact, or not, for people.
        cure: what to do if it is not exact.
        advice: what else the self-test found that users should know, and what to do about it.
        late_reasons: by member, reasons why it is not exact that appeared only in training. They are part of its state.
        played: digest of the episodes that the self-test played, the same in every process; "" if there is none.
        elsewhere: why its processes play other episodes than this one; "" if they do not.
        restartable: whether `load_member` can start new episodes instead of restoring them.
        restarting: whether `load_member` starts new episodes in place of those that it cannot restore.
        info: reported entries of `info`.
        first: number of each member's first environment, which selects its random streams from the next reset on.
        unreported: names of numbers in `info` that the spec does not name.
        faults: by member, a description of the first non-finite number that one of its environments gave. Only
            environments of other people's code are checked; faults are not state.
        present: environments whose next action counts, (P, N), such as those of agents that have not left; None if all
            always do.
        turns: whether a running episode may wait for others, so that its next action does not count yet.
        learns: whether training learns from what happens now.
        watched: whether `watch` must see every step.
        on_episode_end: function called with finished episodes in order (members, returns, lengths) when tallies are
            read.
    """

    obs_space: gym.Space[Any]
    action_space: gym.Space[Any]
    obs_kind: str
    obs_shape: tuple[int, ...]
    obs: Array
    mode: str
    exact: bool
    reason: str
    cure: str = ""
    advice: tuple[str, ...] = ()
    played: str = ""
    elsewhere: str = ""
    restartable: ClassVar[bool] = False
    restarting: bool = False
    present: NDArray[np.bool_] | None = None
    turns: bool = False
    learns: bool = True
    watched: bool = False
    first: int = 0
    on_episode_end: Callable[[Array, Array, Array], None] | None = None

    def __init__(self, spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str) -> None:
        if num_envs < 1 or not seeds:
            raise ValueError(f"there must be a member and an environment at least, but got {len(seeds)} and {num_envs}")
        self.spec = spec
        self.seeds = tuple(seeds)
        self.purpose = purpose
        self.num_members, self.num_envs = len(seeds), num_envs
        self.size = self.num_members * num_envs
        self.member = np.repeat(np.arange(self.num_members), num_envs)
        self.info = EpisodeInfo(spec.info, self.member)
        self.unreported: tuple[str, ...] = ()
        self.faults: dict[int, str] = {}
        self.late_reasons: dict[int, list[str]] = {}
        self._clear_episodes()

    @abstractmethod
    def reset(self) -> None:
        """Start again at episode 0, as if newly created, with empty tallies."""

    @abstractmethod
    def step(self, actions: Array) -> StepResult:
        """Step every environment, and reset those whose episode ends.

        ``obs`` then holds the first observation of their new episode.

        Args:
            actions: (P, N) indices from 0 for Discrete, (P, N, k) such indices for MultiDiscrete, (P, N, n) of 0 and 1
                for MultiBinary, (P, N, *shape) for Box, and (P, N, k) for Joined; the last two are clipped to the
                bounds here.
        """

    @abstractmethod
    def abandon(self, mask: Array) -> None:
        """Start the next episode where the mask (P, N) is true.

        The abandoned one does not enter the tallies.
        """

    def leave_out(self, mask: NDArray[np.bool_]) -> None:  # noqa: B027
        """Step some environments no more until the next reset.

        The mask is (P, N). Only those of single episodes, where it saves time, are left out.
        """

    def playable(self) -> tuple[EnvModel, RunningEpisodes] | None:
        """Return the equations and running episodes, which a kernel can play.

        None if each step must be taken by `step`. What the kernel changes counts after `resume`.
        """
        return None

    def resume(self, obs: Array, elapsed: Array, ended: Array, returns: Array, lengths: Array) -> None:
        """Continue after a rollout that was played without `step`.

        Args:
            obs: current observations, (P, N, D).
            elapsed: steps of the running episodes, (M,).
            ended: steps at which an episode ended, (T, P, N).
            returns: returns of these episodes, (T, P, N); others are not read.
            lengths: lengths of these episodes, (T, P, N); others are not read.
        """
        raise NotImplementedError

    def play_on_device(self, sample: Sample, noise: Tensor) -> PlayedOnDevice | None:
        """Let a policy act for a whole rollout, where its tensors lie.

        Args:
            sample: the members' policies: observations (P, N, D) and noise (P, N, n) -> actions (P, N, ...).
            noise: noise of the actions, (T, P, N, n).

        Returns:
            The rollout, which the next call overwrites; None, with nothing done, if these environments cannot do that.
        """
        return None

    def watch(self, see: Callable[[Array, Array, StepResult], None]) -> None:
        """Call a function with observations, actions and result of each step."""
        self.watched, step = True, self.step

        def watched(actions: Array) -> StepResult:
            before = self.obs
            result = step(actions)
            see(before, actions, result)
            return result

        self.step = watched  # type: ignore[method-assign]  # replaced, so that it costs nothing when nobody watches

    def begin_epoch(self, epochs: Array) -> None:  # noqa: B027
        """Start the members' epochs, (P,); this matters in restart mode only."""

    def end_epoch(self) -> None:  # noqa: B027
        """Check the last episodes of the epochs, as `take_episodes` does."""

    def member_metrics(self, i: int) -> dict[str, float]:
        """Return member i's current metrics besides those of its episodes."""
        return {}

    @abstractmethod
    def member_state(self, i: int) -> Tree:
        """Return everything that member i's future depends on.

        The tree of tensors and JSON values shares nothing with this object.
        """

    @abstractmethod
    def load_member(self, i: int, tree: Tree) -> None:
        """Load a state of ``member_state`` into member i.

        Raises:
            StateMismatch: the state belongs to another environment or mode, or a replayed episode differs from the
                recorded one (because of another version of the simulator).
        """

    @contextmanager
    def restarts(self) -> Iterator[None]:
        """Let `load_member` start new episodes."""
        self.restarting = True
        try:
            yield
        finally:
            self.restarting = False

    def open(self) -> None:  # noqa: B027
        """Open the environments again, if `close` was called.

        Raises:
            EpisodesLost: a running episode cannot be restored.
        """

    def close(self) -> None:  # noqa: B027
        """Free all resources until the next use; a second call does nothing."""

    def inexact(self, i: int) -> list[str]:
        """Return reasons why member i is not bit-exact, with remedies."""
        claim = "restarts at each epoch, and not bit for bit"
        if self.spec.restore:
            claim = f"is restored as declared (restore={self.spec.restore}), so nobody knows whether bit for bit"
        always = f"{self.spec.id} {claim}: {self.reason}; {self.cure}"
        return [*([] if self.exact else [always]), *filter(None, [self.elsewhere]), *self.late_reasons.get(i, ())]

    @property
    def episodes(self) -> Episodes:
        """Tallies of the episodes that finished since ``take_episodes``."""
        tally = self._tallied
        for ended, returns, lengths in self._finished:
            member = self.member[ended]
            # Added one by one, in order, so that neither P nor the time of reading changes the rounding of a sum.
            np.add.at(tally.count, member, 1)
            np.add.at(tally.return_sum, member, returns)
            np.add.at(tally.length_sum, member, lengths)
            if self.on_episode_end is not None:
                self.on_episode_end(member, returns, lengths)
        self._finished.clear()
        return tally

    def take_episodes(self) -> Episodes:
        """Return the tallies since the last call, and clear them."""
        self.end_epoch()
        tallies = self.episodes
        self._clear_episodes()
        return tallies

    def _clear_episodes(self) -> None:
        members = self.num_members
        self._tallied = Episodes(np.zeros(members, np.int64), np.zeros(members), np.zeros(members, np.int64))
        # (indices on the flat axis, by their ends; returns; lengths) of finished episodes, not in the tallies yet.
        self._finished: list[tuple[NDArray[np.int64], Array, Array]] = []

    def _rows(self, i: int) -> slice:
        if not 0 <= i < self.num_members:
            raise IndexError(f"a member must be in 0..{self.num_members - 1}, but got {i}")
        return slice(i * self.num_envs, (i + 1) * self.num_envs)

    def _head(self, i: int) -> Tree:
        """Return the start of every state: its owner and the tallies."""
        return {
            "env": self.spec.canonical,
            "mode": self.mode,
            "exact": self.exact,
            "episodes": {name: column[i].item() for name, column in vars(self.episodes).items()},
            **({"inexact": inexact} if (inexact := self.inexact(i)) else {}),
            **({"info": self.info.member_state(i)} if self.spec.info else {}),
        }

    def _load_head(self, i: int, tree: Tree) -> None:
        """Load the tallies, and the reasons why the state is not exact.

        Raises:
            StateMismatch: the state belongs to other environments.
            EpisodesLost: its mode is another one.
        """
        if tree["env"] != self.spec.canonical:
            raise StateMismatch(f"a state of {tree['env']} cannot be loaded into {self.spec.canonical}")
        if tree["mode"] != self.mode and not self.restarting:
            raise (EpisodesLost if self.restartable else StateMismatch)(
                f"{self.spec.id}: the state was recorded in {tree['mode']} mode, but this process restores by "
                f"{self.mode} ({self.reason}); use the versions of gymnasium and its simulators that recorded it"
            )
        if "elapsed" in tree and (count := len(tree["elapsed"])) != self.num_envs:
            raise StateMismatch(f"{self.spec.id}: a state of {count} environments does not fit {self.num_envs}")
        for name, column in vars(self.episodes).items():
            column[i] = tree["episodes"][name]
        self.late_reasons.pop(i, None)
        always = self.inexact(i)
        self.late_reasons[i] = [reason for reason in tree.get("inexact", ()) if reason not in always]
