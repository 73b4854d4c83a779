"""Any Gymnasium environment, stepped one by one and restored in the way that its self-test found to be exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import StateMismatch
from ...rng import streams
from ..base import Array, Envs, Step, Tree, to_tensor
from ..curriculum import Curriculum
from ..encode import Actions, Observations
from ..lookup import restore_of, spaces_of
from ..pools.makers import is_pool
from ..pools.pool import Pool
from ..processes.parent import Processes
from ..spec import EnvSpec
from . import snapshot
from .selftest import Restore
from .stage import Here, Stage


def reset_seed(purpose: str, *path: int | str) -> int:
    """A seed that Gymnasium takes; those for training are even and all others odd, so they never meet."""
    return streams.seed_of(*path, purpose) & ~1 | (purpose != "train")


class GymEnvs(Envs):
    """P members with N environments each, stepped one by one, or by several processes each its share.

    snapshot: the simulator's state is the state. replay: the seed of the running episode and its actions are the
    state; with ``restore.renew`` every episode has a new environment. restart: environments are made anew at each
    epoch's begin, so there is no state between epochs, and running episodes end there untallied.
    """

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Sequence[int],
        num_envs: int,
        purpose: str,
        processes: int = 0,
        restore: Restore | None = None,
    ) -> None:
        """processes: how many more share the work, or threads of a pool; 0 for this one alone. It changes no result."""
        super().__init__(spec, seeds, num_envs, purpose)
        self.restore = restore or restore_of(spec)
        self.mode, self.exact, self.why = self.restore.mode, self.restore.exact, self.restore.why
        self.obs_space, self.action_space = spaces_of(spec)
        self.encoder = Observations(self.obs_space, spec.id)
        self.obs_kind, self.obs_shape = self.encoder.kind, self.encoder.shape
        self.actions = Actions(self.action_space, spec.id)
        self.stage: Stage
        if is_pool(spec):
            self.stage = Pool(spec, self.size, processes, self.encoder)
        elif processes:
            form = np.empty(self.actions.shape, self.action_space.dtype)
            self.stage = Processes(spec, self.size, processes, self.restore, self.encoder, form)
        else:
            self.stage = Here(spec, self.size)
        self.curriculum = Curriculum(spec.parameters, self.seeds, purpose) if spec.parameters else None
        self.checked = False
        self._begin_all()

    def _begin_all(self) -> None:
        self._clear_episodes()
        self.epoch = np.zeros(self.num_members, np.int64)
        self.due = False  # whether an epoch must begin before the next step
        self.untouched = True
        self.episode = np.zeros(self.size, np.int64)
        self.reset_seeds = np.zeros(self.size, np.int64)
        self.returns = np.zeros(self.size)
        self.elapsed = np.zeros(self.size, np.int64)
        self.history: list[list[Array]] = [[] for _ in range(self.size)]
        self.options: list[dict[str, float] | None] = [None] * self.size
        if self.curriculum is not None:
            self.curriculum.reset()
        self.obs = np.zeros((self.num_members, self.num_envs, *self.obs_shape), self.encoder.dtype)
        self._begin(range(self.size), fresh=self.restore.renew or self.mode == "restart")

    def reset(self) -> None:
        """Begins again at episode 0, as if newly made; the tallies are emptied."""
        self._begin_all()

    def step(self, actions: Array) -> Step:
        """One step everywhere, see Envs; the shape of the actions is checked at the first step only."""
        if not self.checked:
            self.actions.check(actions, (self.num_members, self.num_envs))
            self.checked = True
        if self.due:
            raise RuntimeError(f"{self.spec.id}: begin_epoch must follow load_member, since it restarts at each epoch")
        decoded = self.actions.decode(actions)
        next_obs, reward, terminated, truncated = self.stage.step(decoded)
        if self.mode == "replay":
            for past, action in zip(self.history, decoded, strict=True):
                past.append(action)
        self.untouched = False
        self.returns += reward
        self.elapsed += 1
        shape = (self.num_members, self.num_envs)
        self.obs = next_obs = next_obs.reshape(*shape, *self.obs_shape)
        ended = np.flatnonzero(terminated | truncated)
        if self.curriculum is not None:
            for p in self.curriculum.see(self.num_envs, self.member[ended], self.returns[ended]):
                truncated[self._rows(p)] |= ~terminated[self._rows(p)]
            ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self.obs = next_obs.copy()  # the learner holds the other one
            self._finished.append((ended, self.returns[ended], self.elapsed[ended]))
            self.episode[ended] += 1
            self._begin(ended.tolist(), fresh=self.restore.renew)
        rewards = reward.astype(np.float32).reshape(shape)
        return Step(next_obs, rewards, terminated.reshape(shape), truncated.reshape(shape))

    def abandon(self, where: Array) -> None:
        """Begins the next episode where (P, N) says so; the one that was running is not tallied."""
        places = np.flatnonzero(where)
        if len(places):
            self.obs = self.obs.copy()  # the learner may hold the old one
            self.untouched = False
            self.episode[places] += 1
            self._begin(places.tolist(), fresh=self.restore.renew)

    def begin_epoch(self, epochs: Array) -> None:
        """In restart mode, makes the environments anew with seeds of (seed, epoch); otherwise nothing."""
        if self.mode != "restart" or (self.untouched and np.array_equal(epochs, self.epoch) and not self.due):
            return
        self.epoch[:] = epochs
        self.due = False
        self.untouched = True
        self.episode[:] = 0
        self.obs = self.obs.copy()
        self._begin(range(self.size), fresh=True)

    def _begin(self, places: Sequence[int], fresh: bool) -> None:
        """Begins the current episodes of the environments at these places, in new environments if ``fresh``."""
        seeds = []
        for i in places:
            p, n = divmod(i, self.num_envs)
            where = (n, int(self.episode[i]))
            path = ("epoch", int(self.epoch[p]), *where) if self.mode == "restart" else where
            seeds.append(reset_seed(self.purpose, self.seeds[p], *path))
            if self.curriculum is not None:
                self.options[i] = self.curriculum.options(p, *path)
        self._reset(places, seeds, fresh)

    def _reset(self, places: Sequence[int], seeds: Sequence[int], fresh: bool) -> None:
        where = list(places)
        self.reset_seeds[where], self.returns[where], self.elapsed[where] = seeds, 0, 0
        for place in where:
            self.history[place] = []
        first = self.stage.begin(where, seeds, [self.options[place] for place in where], fresh)
        self.obs.reshape(self.size, *self.obs_shape)[where] = first

    def member_metrics(self, i: int) -> dict[str, float]:
        """The lessons that the member is in."""
        return {} if self.curriculum is None else self.curriculum.metrics(i)

    def member_state(self, i: int) -> Tree:
        """All that member i's future depends on. In restart mode it is complete at the end of an epoch only."""
        rows = self._rows(i)
        tree = self._head(i)
        if self.curriculum is not None:
            tree["curriculum"] = self.curriculum.member_state(i) | {
                "options": [{**(o or {})} for o in self.options[rows]]
            }
        if self.mode == "restart":
            return tree
        tree |= {
            "episode": to_tensor(self.episode[rows]),
            "reset_seeds": to_tensor(self.reset_seeds[rows]),
            "elapsed": to_tensor(self.elapsed[rows]),
            "returns": to_tensor(self.returns[rows]),
            "obs": to_tensor(self.obs[i]),
        }
        if self.mode == "snapshot":
            tree |= snapshot.to_tree(self.stage.take(range(rows.start, rows.stop)))
        else:
            past = [action for history in self.history[rows] for action in history]
            form = np.empty((0, *self.actions.shape), self.action_space.dtype)
            tree["actions"] = to_tensor(np.stack(past) if past else form)  # (sum of elapsed, *shape)
        return tree

    def load_member(self, i: int, tree: Tree, *, strict: bool = True) -> None:
        """Puts a member's state into place i; StateMismatch if a replayed episode is not the recorded one, see Envs."""
        rows = self._rows(i)
        self._check_head(tree)
        if self.curriculum is not None:
            self.curriculum.load_member(i, tree["curriculum"])
            self.options[rows] = [dict(options) for options in tree["curriculum"]["options"]]
        if self.mode == "restart":
            self._load_head(i, tree)
            self.due = True
            return
        if len(tree["elapsed"]) != self.num_envs:
            raise StateMismatch(
                f"{self.spec.id}: a state of {len(tree['elapsed'])} environments does not fit {self.num_envs}"
            )
        self._load_head(i, tree)
        self.obs = self.obs.copy()  # the learner may hold the old one
        self.episode[rows] = tree["episode"].numpy()
        elapsed, returns = tree["elapsed"].tolist(), tree["returns"].numpy()
        places = range(rows.start, rows.stop)
        self._reset(places, tree["reset_seeds"].tolist(), fresh=True)
        saved = tree["obs"].numpy()
        if self.mode == "snapshot":
            self.stage.put(places, snapshot.from_tree(tree), elapsed)
            self.obs[i] = saved
        else:
            begins = np.cumsum([0, *elapsed])
            played = [tree["actions"][b : b + n].numpy().copy() for b, n in zip(begins, elapsed, strict=False)]
            for n, (place, last) in enumerate(zip(places, self.stage.replay(places, played), strict=True)):
                self.history[place] = list(played[n])
                if last is not None:
                    self.obs[i, n] = last
        self.elapsed[rows], self.returns[rows] = elapsed, returns
        exact = self.exact
        for n, place in enumerate(places):
            if exact and self.obs[i, n].tobytes() != saved[n].tobytes():
                self._went_elsewhere(place, n, strict)

    def _went_elsewhere(self, place: int, n: int, strict: bool) -> None:
        """The replayed episode is not the recorded one."""
        if strict:
            raise StateMismatch(
                f"{self.spec.id}: replaying the running episode of environment {n} must lead to the observation that "
                f"was saved, but does not; use the versions of gymnasium and its simulators that recorded it"
            )
        self._reset([place], [int(self.reset_seeds[place])], fresh=True)
        self.exact, self.why = False, "a replayed episode led elsewhere than when it was recorded, so it began again"

    def close(self) -> None:
        """Closes every environment; twice is fine."""
        self.stage.close()
