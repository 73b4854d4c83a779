"""Any Gymnasium environment, stepped one by one and restored in the way that its self-test found to be exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import streams
from ..errors import StateMismatch
from . import snapshot
from .base import Array, Envs, Step, Tree, to_tensor
from .encode import Actions, Observations
from .make import Env, make_env
from .selftest import Restore, self_test
from .spec import EnvSpec


def reset_seed(purpose: str, *path: int | str) -> int:
    """A seed that Gymnasium takes; those for training are even and all others odd, so they never meet."""
    return streams.seed_of(*path, purpose) & ~1 | (purpose != "train")


class GymEnvs(Envs):
    """P members with N environments each, stepped one by one.

    snapshot: the simulator's state is the state. replay: the seed of the running episode and its actions are the
    state; with ``restore.renew`` every episode has a new environment. restart: environments are made anew at each
    epoch's begin, so there is no state between epochs, and running episodes end there untallied.
    """

    def __init__(
        self, spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str, restore: Restore | None = None
    ) -> None:
        super().__init__(spec, seeds, num_envs, purpose)
        self.restore = restore or self_test(spec)
        self.mode, self.exact, self.why = self.restore.mode, self.restore.exact, self.restore.why
        self.envs: list[Env] = [make_env(spec) for _ in range(self.size)]
        self.new = [True] * self.size  # not yet used for an episode
        self.obs_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.encoder = Observations(self.obs_space, spec.id)
        self.obs_kind, self.obs_shape = self.encoder.kind, self.encoder.shape
        self.actions = Actions(self.action_space, spec.id)
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
        self.obs = np.zeros((self.num_members, self.num_envs, *self.obs_shape), self.encoder.dtype)
        for i in range(self.size):
            self._begin(i)

    def reset(self) -> None:
        """Begins again at episode 0, as if newly made; the tallies are emptied."""
        if self.mode == "restart":
            for i in range(self.size):
                self._renew(i)
        self._begin_all()

    def step(self, actions: Array) -> Step:
        """One step everywhere, see Envs; the shape of the actions is checked at the first step only."""
        if not self.checked:
            self.actions.check(actions, (self.num_members, self.num_envs))
            self.checked = True
        if self.due:
            raise RuntimeError(f"{self.spec.id}: begin_epoch must follow load_member, since it restarts at each epoch")
        decoded = self.actions.decode(actions)
        next_obs = np.zeros((self.size, *self.obs_shape), self.encoder.dtype)
        reward = np.empty(self.size)
        terminated, truncated = np.empty(self.size, np.bool_), np.empty(self.size, np.bool_)
        write = self.encoder.write
        for i, (env, action) in enumerate(zip(self.envs, decoded, strict=True)):
            obs, reward[i], terminated[i], truncated[i], _ = env.step(action)
            write(obs, next_obs[i])
        if self.mode == "replay":
            for past, action in zip(self.history, decoded, strict=True):
                past.append(action)
        self.untouched = False
        self.returns += reward
        self.elapsed += 1
        shape = (self.num_members, self.num_envs)
        self.obs = next_obs = next_obs.reshape(*shape, *self.obs_shape)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self.obs = next_obs.copy()
            self._finished.append((ended, self.returns[ended], self.elapsed[ended]))
            self.episode[ended] += 1
            for i in ended.tolist():
                self._begin(i)
        rewards = reward.astype(np.float32).reshape(shape)
        return Step(next_obs, rewards, terminated.reshape(shape), truncated.reshape(shape))

    def begin_epoch(self, epochs: Array) -> None:
        """In restart mode, makes the environments anew with seeds of (seed, epoch); otherwise nothing."""
        if self.mode != "restart" or (self.untouched and np.array_equal(epochs, self.epoch) and not self.due):
            return
        self.epoch[:] = epochs
        self.due = False
        self.untouched = True
        self.episode[:] = 0
        self.obs = self.obs.copy()
        for i in range(self.size):
            self._renew(i)
            self._begin(i)

    def _begin(self, i: int) -> None:
        """Begins the current episode of the environment at place i."""
        if self.restore.renew and not self.new[i]:
            self._renew(i)
        p, n = divmod(i, self.num_envs)
        where = (n, int(self.episode[i]))
        path = ("epoch", int(self.epoch[p]), *where) if self.mode == "restart" else where
        self._reset(i, reset_seed(self.purpose, self.seeds[p], *path))

    def _reset(self, i: int, seed: int) -> None:
        self.reset_seeds[i], self.returns[i], self.elapsed[i] = seed, 0, 0
        self.history[i] = []
        self.new[i] = False
        obs, _ = self.envs[i].reset(seed=seed)
        self._show(i, obs)

    def _renew(self, i: int) -> None:
        self.envs[i].close()
        self.envs[i] = make_env(self.spec)
        self.new[i] = True

    def _show(self, i: int, obs: object) -> None:
        place = self.obs[divmod(i, self.num_envs)]
        place[...] = 0
        self.encoder.write(obs, place)

    def member_state(self, i: int) -> Tree:
        """All that member i's future depends on. In restart mode it is complete at the end of an epoch only."""
        rows = self._rows(i)
        tree = self._head(i)
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
            tree["simulator"] = to_tensor(np.stack([snapshot.take(env) for env in self.envs[rows]]))
        else:
            past = [action for history in self.history[rows] for action in history]
            form = np.empty((0, *self.actions.shape), self.action_space.dtype)
            tree["actions"] = to_tensor(np.stack(past) if past else form)  # (sum of elapsed, *shape)
        return tree

    def load_member(self, i: int, tree: Tree, *, strict: bool = True) -> None:
        """Puts a member's state into place i; StateMismatch if a replayed episode is not the recorded one, see Envs."""
        rows = self._rows(i)
        self._check_head(tree)
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
        elapsed, returns = tree["elapsed"].numpy(), tree["returns"].numpy()
        ends = np.cumsum(elapsed)
        for n, place in enumerate(range(rows.start, rows.stop)):
            self._renew(place)
            self._reset(place, int(tree["reset_seeds"][n]))
            saved = tree["obs"][n].numpy()
            if self.mode == "snapshot":
                snapshot.put(self.envs[place], tree["simulator"][n].numpy(), int(elapsed[n]))
                self.obs[i, n] = saved
            else:
                self._replay(place, tree["actions"][ends[n] - elapsed[n] : ends[n]].numpy().copy())
                if self.exact and self.obs[i, n].tobytes() != saved.tobytes():
                    self._went_elsewhere(place, n, strict)
                    continue
            self.elapsed[place], self.returns[place] = elapsed[n], returns[n]

    def _replay(self, place: int, actions: Array) -> None:
        for action in actions:
            obs, _, terminated, truncated, _ = self.envs[place].step(action)
            if terminated or truncated:
                break
        if len(actions):
            self._show(place, obs)
        self.history[place] = list(actions)

    def _went_elsewhere(self, place: int, n: int, strict: bool) -> None:
        """The replayed episode is not the recorded one."""
        if strict:
            raise StateMismatch(
                f"{self.spec.id}: replaying the running episode of environment {n} must lead to the observation that "
                f"was saved, but does not; use the versions of gymnasium and its simulators that recorded it"
            )
        self._renew(place)
        self._reset(place, int(self.reset_seeds[place]))
        self.exact, self.why = False, "a replayed episode led elsewhere than when it was recorded, so it began again"

    def close(self) -> None:
        """Closes every environment; twice is fine."""
        for env in self.envs:
            env.close()
        self.envs = []
