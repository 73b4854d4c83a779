"""Gymnasium environments of P members, stepped by a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EpisodesLost
from ...rng import streams
from ...runtime import INFO
from ..base.actions import Actions
from ..base.curriculum import KWARGS, Curriculum
from ..base.envs import Array, Envs, StepResult, Tree, to_tensor
from ..base.info import number
from ..base.masks import ALLOWS, without_choice
from ..base.observations import Observations
from ..base.space_rules import Spaces
from ..base.spec import RAISED, EnvSpec, EnvSpecError
from . import snapshot
from .backend import Backend, Outcome
from .checks import CLEAN, Checks, Ended, twice
from .restarts import check_share
from .restore import Restore
from .single_instance import take_turn


def reset_seed(purpose: str, *path: int | str) -> int:
    """Return a seed for Gymnasium.

    Seeds for training are even and all others odd, so they never coincide.
    """
    return streams.seed_of(*path, purpose) & ~1 | (purpose != "train")


class GymEnvs(Envs):
    """P members with N Gymnasium environments each.

    The mode determines the state:

    - snapshot: the simulator's state.
    - replay: the seed of the running episode and its actions. With ``restore.renew`` every episode has a new
      environment.
    - restart: nothing between epochs. Environments are created anew at the start of each epoch, and episodes that are
      running then end without entering the tallies.

    Episodes of a training are checked, see `Checks`, where `make_young` starts a process for it if need be.

    With `single_episodes`, an environment is not stepped after the end of its first episode.

    `close` may be called at any time: the next use makes the environments anew, and leads them to where they were.
    """

    restartable = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Sequence[int],
        num_envs: int,
        purpose: str,
        make_backend: Callable[[], Backend],
        restore: Restore,
        spaces: Spaces,
        single_episodes: bool = False,
        make_young: Callable[[], Backend] | None = None,
    ) -> None:
        super().__init__(spec, seeds, num_envs, purpose)
        self.restore, self.single_episodes = restore, single_episodes
        self.mode, self.exact, self.reason = restore.mode, restore.exact, restore.reason
        self.unreported, self.cure, self.advice = restore.unreported, restore.cure, restore.advice
        self.played = restore.played
        self.obs_space, self.action_space = spaces
        self.encoder = Observations(self.obs_space, spec.id)
        self.obs_kind, self.obs_shape = self.encoder.kind, self.encoder.shape
        self.actions = Actions(self.action_space, spec.id)
        self.make_backend = make_backend
        self._backend: Backend | None = None
        self._simulators: list[Array] = []  # states of the simulators that were closed, in snapshot mode
        self.curriculum = (
            Curriculum(spec.parameters, self.seeds, purpose, tuple(spec.info)) if spec.parameters else None
        )
        self.checked = False
        self.is_checked = self.mode == "replay" and purpose == "train" and not restore.single_instance
        self.checks = Checks(spec, restore, self.num_members, num_envs, self.late_reasons, make_young)
        self.reset()

    def reset(self) -> None:
        self._clear_episodes()
        self.checks.reset()
        self.info.reset()
        self.raised = np.zeros((self.num_members, 2), np.int64)  # episodes of a training that raised, and all
        self.epoch = np.zeros(self.num_members, np.int64)
        self.must_begin_epoch = False
        self.untouched = True
        self.playing = np.ones(self.size, np.bool_)
        self.episode = np.zeros(self.size, np.int64)
        self.reset_seeds = np.zeros(self.size, np.int64)
        self.returns = np.zeros(self.size)
        self.elapsed = np.zeros(self.size, np.int64)
        self.history: list[list[Array]] = [[] for _ in range(self.size)]
        self.options: list[dict[str, Any] | None] = [None] * self.size
        if self.curriculum is not None:
            self.curriculum.reset()
        self.obs = np.zeros((self.num_members, self.num_envs, *self.obs_shape), self.encoder.dtype)
        if self._backend is None:
            self._make_backend()
        self._begin(range(self.size), fresh=self.restore.renew or self.mode == "restart")

    @property
    def backend(self) -> Backend:
        """The open environments; they are opened again if need be."""
        if self._backend is None:
            self.open()
        assert self._backend is not None
        return self._backend

    def _make_backend(self) -> None:
        if self.restore.single_instance:
            take_turn(self.close)
        self._backend = self.make_backend()
        self.elsewhere = self.restore.elsewhere or self._backend.elsewhere

    def open(self) -> None:
        if self._backend is None:
            self._make_backend()
            if self.mode != "restart":  # `begin_epoch` starts its episodes
                self._lead_back(range(self.size), self._simulators)

    def _lead_back(self, indices: range, simulators: Sequence[Array]) -> None:
        """Begin running episodes again, and lead them to where they were.

        Args:
            indices: the environments.
            simulators: in snapshot mode, the states of their simulators.

        Raises:
            EpisodesLost: an episode leads elsewhere.
        """
        rows, begun = [*indices], [i for i in indices if self.history[i]]
        begin = rows, self.reset_seeds[rows].tolist(), [self.options[i] for i in rows], True
        if self.mode == "snapshot":
            self.backend.begin(*begin)
            self.backend.put(rows, simulators, self.elapsed[rows].tolist())
            return

        def replay() -> list[Outcome]:
            first = self.backend.begin(*begin)
            outcomes = iter(self.backend.replay(begun, [np.stack(self.history[i]) for i in begun]))
            return [next(outcomes) if i in begun else Outcome(obs, 0.0, 0) for i, obs in zip(rows, first, strict=True)]

        if isinstance(replayed := twice(replay), str):
            raise EpisodesLost(
                f"{self.spec.id}: replaying the running episodes must lead to where they were, but it {replayed}"
            )
        flat = self.obs.reshape(self.size, *self.obs_shape)
        for i, outcome in zip(rows, replayed, strict=True):
            if not outcome.equals(Outcome(flat[i], self.returns[i], int(self.elapsed[i]))):
                raise EpisodesLost(
                    f"{self.spec.id}: replaying the running episode of environment {i % self.num_envs} must lead to "
                    f"where it was, but does not: it depends on more than the seed of its reset and the actions, or "
                    f"gymnasium, its simulators or the environment's code are of another version"
                )

    def step(self, actions: Array) -> StepResult:
        shape = (self.num_members, self.num_envs)
        if not self.checked:  # at the first step only
            self.actions.check(actions, shape)
            self.checked = True
        if self.must_begin_epoch:
            raise RuntimeError(f"{self.spec.id}: begin_epoch must follow load_member, since it restarts at each epoch")
        if self.is_checked:
            self.checks.count_step(self.backend)
        decoded = self.actions.decode(actions)
        result = self.backend.step(decoded, self.playing)
        next_obs, reward, terminated, truncated, info = result
        if self.mode == "replay":
            for recorded, action in compress(zip(self.history, decoded, strict=True), self.playing):
                recorded.append(action)
        self.untouched = False
        self.returns += reward
        self.elapsed += self.playing
        self.info.add(info)
        with np.errstate(over="ignore"):  # a reward above 3e38 becomes infinite
            rewards = reward.astype(np.float32)
        if not np.isfinite(rewards).all():
            self._note_faults(np.flatnonzero(~np.isfinite(rewards)), decoded, "a reward")
        self._note_bad_observations(range(self.size), next_obs, decoded)
        self.obs = next_obs = next_obs.reshape(*shape, *self.obs_shape)
        if self.curriculum is not None:
            self._advance(self.curriculum, terminated, truncated)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._end(ended, result.obs)
        if self.encoder.mask is not None:
            self._check_masks(np.setdiff1d(np.flatnonzero(self.playing), ended))
        return StepResult(next_obs, rewards.reshape(shape), terminated.reshape(shape), truncated.reshape(shape))

    def _advance(self, curriculum: Curriculum, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """Count a step's episodes towards lessons, whose ends may truncate others."""
        ended = np.flatnonzero(terminated | truncated)
        finished = self.member[ended], self.returns[ended], self._measured(ended)
        for p in curriculum.advance(self.num_envs, *finished):
            truncated[self._rows(p)] |= ~terminated[self._rows(p)]

    def _end(self, ended: NDArray[np.int64], last_obs: Array) -> None:
        """Tally the episodes that ended, and begin the next ones."""
        raised = self._count_raised(ended) if self.spec.on_error else np.zeros(len(ended), np.bool_)
        if self.is_checked:
            self._check(ended, last_obs, raised)
        self.obs = self.obs.copy()  # the learner still holds the last ones
        self._finished.append((ended, self.returns[ended], self.elapsed[ended]))
        self.info.end(ended)
        if self.single_episodes:
            self.playing[ended] = False
        else:
            self.episode[ended] += 1
            self._begin(ended.tolist(), fresh=self.restore.renew)

    def _check_masks(self, rows: Sequence[int] | Array) -> None:
        """Raise EnvSpecError if a mask of the current observations allows nothing."""
        if (mask := self.encoder.mask) is None:
            return
        masks = self.obs.reshape(self.size, -1)[rows][:, mask]
        for i in np.asarray(rows)[without_choice(masks, self.action_space)].tolist():
            p, n = divmod(i, self.num_envs)
            raise EnvSpecError(
                f"{self.spec.id}: {ALLOWS}, but at step "
                f"{self.elapsed[i]} of episode {self.episode[i]} of member {p}'s environment {n} (seed "
                f"{self.reset_seeds[i]}) it allows none; fix it, or end the episode there"
            )

    def _count_raised(self, ended: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return in which of the episodes that ended the environment raised.

        Raises:
            EnvironmentFailed: too many episodes of a training did.
        """
        raised = self.info.values(ended)[:, self.info.names.index(RAISED)] > 0
        if self.purpose == "train":
            np.add.at(self.raised, self.member[ended], np.stack([raised, np.ones_like(raised)], 1).astype(np.int64))
            for p in np.unique(self.member[ended[raised]]).tolist():
                check_share(self.spec, *self.raised[p].tolist())
                if not (self.is_checked or self.late_reasons.get(p)):
                    why = "and nobody knows whether it does so again with the same seed and actions"
                    self.late_reasons.setdefault(p, []).append(
                        f"{self.spec.id}: it raised in an episode, {why}; fix it"
                    )
        return raised

    def _check(self, ended: NDArray[np.int64], last_obs: Array, raised: NDArray[np.bool_]) -> None:
        """Play some of the episodes that ended again, in other environments."""
        for i, has_raised in zip(ended.tolist(), raised.tolist(), strict=True):
            seed, options, actions = int(self.reset_seeds[i]), self.options[i], self.history[i]
            outcome = Outcome(last_obs[i].copy(), self.returns[i], int(self.elapsed[i]))
            episode = Ended(i, int(self.episode[i]), seed, options, actions, outcome)
            self.checks.add(episode, has_raised, self.backend)

    def end_epoch(self) -> None:
        self.checks.end_epoch(lambda: self.backend)

    def _measured(self, ended: NDArray[np.int64]) -> dict[str, Array]:
        """Return the reported info of these environments' episodes, by metric."""
        columns = zip(self.info.names, self.info.values(ended).T, strict=True)
        return {f"{INFO}{name}": column for name, column in columns}

    def _note_bad_observations(self, rows: Sequence[int], obs: Array, actions: Array | None = None) -> None:
        """Note faults of environments whose observations are not finite.

        Args:
            rows: the environments.
            obs: their observations.
            actions: actions of all environments in the step before; None after a reset.
        """
        numbers = self.encoder.numbers(obs)
        if numbers is not None and not np.isfinite(numbers).all():
            self._note_faults(np.asarray(rows)[~np.isfinite(numbers).all(1)], actions, "an observation")

    def _note_faults(self, faulty: NDArray[np.int64], actions: Array | None, noun: str) -> None:
        """Note the first faulty environment of each member.

        Environments whose action was not finite do not count, since the fault may be the policy's.
        """
        for i in faulty.tolist():
            if actions is None or actions.dtype.kind != "f" or np.isfinite(actions[i]).all():
                p, n = divmod(i, self.num_envs)
                step = f"step {self.elapsed[i]}" if self.elapsed[i] else "the reset"
                self.faults.setdefault(
                    p,
                    f"{self.spec.id} gave {noun} that is not finite in 32 bits at {step} of episode {self.episode[i]} "
                    f"of its environment {n} (seed {self.reset_seeds[i]}); fix it, or add a wrapper that does",
                )

    def leave_out(self, mask: NDArray[np.bool_]) -> None:
        if self.single_episodes:
            self.playing &= ~mask.reshape(-1)

    def abandon(self, mask: Array) -> None:
        indices = np.flatnonzero(mask)
        if len(indices):
            self.obs = self.obs.copy()  # the learner may hold the old one
            self.untouched = False
            self.episode[indices] += 1
            self._begin(indices.tolist(), fresh=self.restore.renew)

    def begin_epoch(self, epochs: Array) -> None:
        """In restart mode, create the environments anew with seeds of (seed, epoch)."""
        unchanged = self.untouched and np.array_equal(epochs, self.epoch) and not self.must_begin_epoch
        if self.mode != "restart" or unchanged:
            return
        self.epoch[:] = epochs
        self.must_begin_epoch = False
        self.untouched = True
        self.episode[:] = 0
        self.obs = self.obs.copy()
        self._begin(range(self.size), fresh=True)

    def _begin(self, indices: Sequence[int], fresh: bool) -> None:
        """Start the current episodes of these environments."""
        seeds = []
        for i in indices:
            p, n = divmod(i, self.num_envs)
            path: tuple[int | str, ...] = (self.first + n, int(self.episode[i]))
            if self.mode == "restart":
                path = ("epoch", int(self.epoch[p]), *path)
            seeds.append(reset_seed(self.purpose, self.seeds[p], *path))
            if self.curriculum is not None:
                self.options[i] = self.curriculum.options(p, *path)
        self._reset(indices, seeds, fresh)

    def _reset(self, indices: Sequence[int], seeds: Sequence[int], fresh: bool) -> None:
        rows = list(indices)
        self.reset_seeds[rows], self.returns[rows], self.elapsed[rows] = seeds, 0, 0
        self.info.begin(rows)
        for i in rows:
            self.history[i] = []
        first = self.backend.begin(rows, seeds, [self.options[i] for i in rows], fresh)
        self._note_bad_observations(rows, first)
        self.obs.reshape(self.size, *self.obs_shape)[rows] = first
        self._check_masks(rows)

    def member_metrics(self, i: int) -> dict[str, float]:
        if self.curriculum is None:
            return {}
        drawn = [options or {} for options in self.options[self._rows(i)]]
        metrics = self.curriculum.metrics(i)
        for name in self.curriculum.lessons:
            numbers = [x for options in drawn if (x := number(options.get(name))) is not None]
            if len(numbers) == self.num_envs:
                metrics[f"parameter.{name.removeprefix(KWARGS)}"] = sum(numbers) / self.num_envs
        return metrics

    def member_state(self, i: int) -> Tree:
        """Return member i's state.

        In restart mode it is complete between epochs only.
        """
        rows = self._rows(i)
        tree = self._head(i)
        if self.spec.on_error:
            tree["raised"] = self.raised[i].tolist()
        if self.curriculum is not None:
            options = [{**(options or {})} for options in self.options[rows]]
            tree["curriculum"] = self.curriculum.member_state(i) | {"options": options}
        if self.mode == "restart":
            return tree
        columns = ("episode", "reset_seeds", "elapsed", "returns")
        tree |= {name: to_tensor(getattr(self, name)[rows]) for name in columns} | {"obs": to_tensor(self.obs[i])}
        if self.mode == "snapshot":
            closed = self._backend is None
            simulators = self._simulators[rows] if closed else self.backend.take(range(rows.start, rows.stop))
            tree |= snapshot.to_tree(simulators)
        else:
            recorded = [action for history in self.history[rows] for action in history]
            form = np.empty((0, *self.actions.shape), self.action_space.dtype)
            tree["actions"] = to_tensor(np.stack(recorded) if recorded else form)  # (sum of elapsed, *shape)
        if (last_ended := self.checks.member_state(i)) is not None:
            tree["last_ended"] = last_ended
        return tree

    def load_member(self, i: int, tree: Tree) -> None:
        rows = self._rows(i)
        self._load_head(i, tree)
        self.checks.load_member(i, tree.get("last_ended"))
        self.raised[i] = tree.get("raised", 0)
        if self.curriculum is not None:
            self.curriculum.load_member(i, tree["curriculum"])
            self.options[rows] = [dict(options) for options in tree["curriculum"]["options"]]
        if self.restarting:
            self.late_reasons[i].append(
                f"{self.spec.id}: running episodes began anew when it was resumed: {self._lost(tree)}"
            )
        if self.mode == "restart":
            self._load_info(i, tree)
            self.must_begin_epoch = True
            return
        self.obs = self.obs.copy()  # the learner may hold the old one
        if self.restarting:
            self.episode[rows] = tree["episode"].numpy() + 1 if "episode" in tree else 0
            self._load_info(i, tree)
            self._begin(range(rows.start, rows.stop), fresh=True)
            return
        for name in ("episode", "reset_seeds", "elapsed", "returns"):
            getattr(self, name)[rows] = tree[name].numpy()
        self.obs[i], simulators = tree["obs"].numpy(), []
        if self.mode == "snapshot":
            self.history[rows] = [[] for _ in range(self.num_envs)]
            simulators = snapshot.from_tree(tree)
        else:
            recorded = np.split(tree["actions"].numpy().copy(), np.cumsum(tree["elapsed"].numpy())[:-1])
            self.history[rows] = [list(actions) for actions in recorded]
        self._load_info(i, tree)
        self._lead_back(range(rows.start, rows.stop), simulators)

    def _lost(self, tree: Tree) -> str:
        if tree["mode"] != self.mode:
            return f"the state was recorded in {tree['mode']} mode, but this process restores by {self.mode}"
        return f"they do not replay; {CLEAN}"

    def _load_info(self, i: int, tree: Tree) -> None:
        if self.spec.info:
            self.info.load_member(i, tree["info"])

    def close(self) -> None:
        backend, self._backend = self._backend, None
        self.checks.close()
        if backend is None:
            return
        try:
            if self.mode == "snapshot" and not self.single_episodes:
                self._simulators = backend.take(range(self.size))
            self.must_begin_epoch = self.mode == "restart"
        finally:
            backend.close()
