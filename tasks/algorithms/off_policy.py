"""The base of algorithms that learn from a replay memory: a few environment steps, a few gradient steps, and again.

What Stable-Baselines3 and Pyrado call their arguments, and what they are here:

    learning_rate, lr                   optimizer.lr; SAC: critic_lr and entropy.lr, if they are to be others
    train_freq, gradient_steps, num_updates_per_step    num_steps environment steps (in each of num_envs), then
                                        num_updates gradient steps
    learning_starts, num_init_memory_steps    learning_starts, of environment steps that fill the memory at random
    use_trained_policy_for_refill       the same, with a refill_interval or a warm start
    buffer_size, memory_size            buffer_size, in transitions
    optimize_memory_usage               (none): what was seen before and after a step is kept each, see off_policy_space
    CnnPolicy, features_extractor_class model.encoder, where the environment shows images
    eval_intvl                          eval_interval, in epochs, apart from what is reported of each epoch
    target_update_interval              DQN: target_interval, in gradient steps; SAC: target_update_interval, the same
    tau                                 the fraction taken from the online networks (Pyrado's is the fraction kept)
    exploration_fraction, _initial_eps, _final_eps      exploration.horizon (in environment steps), .start, .final
    ent_coef, ent_coeff_init, learn_ent_coeff           entropy.alpha, entropy.learn
    target_entropy                      -entropy.target for each number, entropy.choice_target log n for a choice of n
    stats_window_size, tensorboard_log, verbose         of no use here: every epoch's metrics are kept

Notation: P members, N environments, B batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Dimension, Space, categorical, integer, near_one, ordinal
from ..checkpoint.state import Tree
from ..checkpoint.storage import Metrics
from ..envs import EnvSpec, StepResult, spaces_of
from ..envs.base.encode import Observations
from ..errors import UnsupportedSpace
from ..evaluation import evaluate
from ..experience.exploration import UniformActions
from ..experience.normalizers import ObservationNormalizer
from ..experience.prioritized import PrioritizedSampler, replay_space
from ..experience.replay_buffer import EXACT_INTEGERS, Field, Index, Replay, UniformSampler, transition_fields
from ..learner import Learner
from ..networks.optimizers import schedule

Array = NDArray[Any]
OBSERVATIONS = ("obs", "next_obs")


def off_policy_space(n_step: int = 1) -> dict[str, Dimension | Space]:
    """The hyperparameters that all of these algorithms have.

    `num_steps` steps in each of `num_envs` environments are followed by `num_updates` gradient steps. The first
    `learning_starts` environment steps only fill the memory, at random. Every `refill_interval` epochs the memory is
    forgotten and filled anew, for environments that change; then, and from a warm start on, it can be the policy that
    fills it. With `normalize_obs` the networks see vectors (not images) less their running mean, over their running
    standard deviation, of all that was seen so far; the memory keeps them as they came. `eval_interval` adds
    `eval_return` to the metrics of those epochs. Both intervals are in epochs, 0 for never.

    A transition of images takes twice their bytes: of 84 x 84 pixels and 4 channels, a `buffer_size` of 1,000,000 takes
    56 GB once it is full, in memory and in a checkpoint, and 50,000 takes 2.8 GB. More than the machine has is refused.
    """
    return {
        "gamma": near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        "n_step": ordinal(1, 3, 5, default=n_step, accept=(1, 1000), structural=True),
        "replay": replay_space(),
        "buffer_size": integer(1, 10**9, default=50_000, structural=True, search=False),
        "batch_size": ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
        "learning_starts": integer(1, 10**9, default=1000, structural=True, search=False),
        "refill_interval": integer(0, 10**9, default=0, structural=True, search=False),
        "use_trained_policy_for_refill": categorical(False, True, default=False, structural=True, search=False),
        "num_steps": ordinal(1, 2, 4, 8, default=4, accept=(1, 1_000_000), structural=True),
        "num_updates": ordinal(1, 2, 4, default=2, accept=(1, 1_000_000), structural=True),
        "num_envs": integer(1, 65536, default=1, structural=True, search=False),
        "epoch_steps": integer(1, 10**9, default=4096, structural=True, search=False),
        "normalize_obs": categorical(False, True, default=False, structural=True, search=False),
        "eval_interval": integer(0, 10**9, default=0, structural=True, search=False),
    }


class Progress:
    """How far learning is.

    Attributes:
        updates: gradient steps so far.
        full_at: the environment steps at which the memory is filled enough to learn.
        fills: how often each member's memory was filled, (P,); of a warm start the first counts as the second.
    """

    def __init__(self, members: int, full_at: int):
        self.updates, self.full_at, self.fills = 0, full_at, np.ones(members, np.int64)

    def member_state(self, member: int) -> Tree:
        return {"updates": self.updates, "fills": int(self.fills[member]), "full_at": self.full_at}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.updates, self.full_at, self.fills[member] = tree["updates"], tree["full_at"], tree["fills"]


class OffPolicyLearner(Learner):
    """P members that learn from their memories.

    Subclasses call this `build` in theirs, and say `explore` and `update`.
    """

    progress: Progress
    replay: Replay
    sampler: UniformSampler | PrioritizedSampler

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        buffer, batch, starts, n, envs, epoch = (
            values[key] for key in ("buffer_size", "batch_size", "learning_starts", "n_step", "num_envs", "epoch_steps")
        )
        window = n * envs
        laws = [
            (batch <= buffer, f"batch_size ({batch}) must be at most buffer_size ({buffer})"),
            (window <= buffer, f"n_step * num_envs ({window}) must be at most buffer_size ({buffer})"),
            (starts <= buffer, f"learning_starts ({starts}) must be at most buffer_size ({buffer})"),
            (batch <= starts, f"batch_size ({batch}) must be at most learning_starts ({starts})"),
            (window <= starts, f"n_step * num_envs ({window}) must be at most learning_starts ({starts})"),
            (starts <= epoch, f"learning_starts ({starts}) must be at most epoch_steps ({epoch})"),
        ]
        for holds, law in laws:
            if not holds:
                raise ValueError(f"{cls.algorithm()}: {law}; raise the latter or lower the former")

    @classmethod
    def check_use(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        seen = Observations(spaces_of(env).observation, env.id)
        size, needs = values["buffer_size"], len(OBSERVATIONS) * math.prod(seen.shape) * seen.dtype.itemsize
        has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size * needs > has:
            raise ValueError(
                f"{cls.algorithm()} on {env.id}: buffer_size ({size}) transitions of {needs:,} bytes need "
                f"{size * needs / 1e9:,.0f} GB, but this machine has {has / 1e9:,.0f} GB of memory; set "
                f"buffer_size to {has // needs // 2} or less"
            )

    def build(self) -> None:
        hp, space = self.hp, self.envs.action_space
        place = f"{self.algorithm()} on {self.env.id}"
        self.uniform_actions = UniformActions(self.keys("fill"), space, hp.num_envs, place)
        if self.uniform_actions.largest >= EXACT_INTEGERS:
            raise UnsupportedSpace(f"{place}: actions must be below {EXACT_INTEGERS}, but the environment has {space}")
        kind = torch.float32 if self.envs.obs_kind == "vector" else torch.uint8
        action = Field(self.uniform_actions.shape, torch.from_numpy(self.uniform_actions(0)).dtype)
        fields = transition_fields(Field(self.envs.obs_shape, kind), action)
        self.replay = Replay(self.members, hp.buffer_size, hp.num_envs, fields, self.device)
        keys = self.keys("replay")
        self.sampler = (
            UniformSampler(self.replay, keys, hp.batch_size, hp.n_step)
            if hp.replay.name == "uniform"
            else PrioritizedSampler(self.replay, keys, hp.batch_size, hp.n_step, hp.replay)
        )
        self.priorities = self.sampler if isinstance(self.sampler, PrioritizedSampler) else None
        vectors = hp.normalize_obs and self.envs.obs_kind == "vector"
        self.obs_normalizer = ObservationNormalizer(self.members, self.envs.obs_shape[0]) if vectors else None
        self.constant_lr = hp.lr_schedule.name == "constant" and not hp.lr_schedule.warmup.any()
        self.progress = Progress(self.members, full_at=hp.learning_starts)

    def explore(self, obs: Array, position: int) -> Array:
        """Actions (P, N, ...) for training on what `seen` gives, with the random numbers of this position."""
        raise NotImplementedError

    def watch(self, obs: Array) -> None:
        """Is given all that was `seen` in training (P, N, ...), before what is done; for memories that are state."""

    def observe(self, step: StepResult) -> None:
        """Sees every step of training, for statistics that are state."""

    def update(self, batch: Mapping[str, Tensor], lr: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """One gradient step on (P, B, ...) at learning rates (P, 1): what to report, (P,) each, and errors (P, B)."""
        raise NotImplementedError

    def seen(self, obs: Array, learn: bool = False) -> Array:
        """Observations (P, N, ...) as the networks see them."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn)

    def normalized(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch with observations as the networks see them now."""
        if self.obs_normalizer is not None:
            return batch | {name: self.obs_normalizer.of_batch(batch[name]) for name in OBSERVATIONS if name in batch}
        return batch

    @property
    def filling(self) -> bool:
        """Whether the memory is not yet filled enough to learn from."""
        return self.env_steps < self.progress.full_at

    def refill(self) -> None:
        """Forgets the memory and fills it again, with the trained policy if `use_trained_policy_for_refill`."""
        self.replay.clear()
        self.progress.fills += 1
        self.progress.full_at = self.env_steps + self.hp.learning_starts

    def warm_started(self, member: int) -> None:
        self.progress.fills[member] = 2

    def iterate(self) -> dict[str, Tensor]:
        filling = self.filling
        trained = (self.progress.fills > 1) & self.hp.use_trained_policy_for_refill
        self.collect(at_random=~trained & filling)
        return {} if filling else self.learn()

    @torch.inference_mode()
    def collect(self, at_random: NDArray[np.bool_]) -> None:
        """`num_steps` steps in every environment, of the members (P,) that are so at random."""
        every, some = at_random.all(), at_random.any()
        for _ in range(self.hp.num_steps):
            obs, position = self.envs.obs, self.env_steps // self.hp.num_envs
            seen = self.seen(obs, learn=True)
            self.watch(seen)
            actions = self.uniform_actions(position) if every else self.explore(seen, position)
            if some and not every:
                actions = actions.copy()
                actions[at_random] = self.uniform_actions(position)[at_random]
            step = self.envs.step(actions)
            self.replay.add(
                obs=obs,
                next_obs=step.next_obs,
                action=actions,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
            )
            self.observe(step)
            self.env_steps += self.hp.num_envs

    def learn(self) -> dict[str, Tensor]:
        """`num_updates` gradient steps; what to report of the last one."""
        lr = self.hp.optimizer.lr
        if not self.constant_lr:
            lr = lr * schedule(self.hp.lr_schedule, torch.full_like(lr, self.env_steps))
        report: Mapping[str, Tensor] = {}
        for _ in range(self.hp.num_updates):
            rows, batch = self.draw()
            batch = self.normalized(batch)
            self.progress.updates += 1
            report, errors = self.update(batch, lr)
            if self.priorities is not None:
                self.priorities.update(rows, errors)
        return {**report, "lr": lr.squeeze(1)}

    def updates(self, member: int) -> int:
        return self.progress.updates

    def draw(self) -> tuple[Index, dict[str, Tensor]]:
        """The rows (P, B) of the next batch, and the batch."""
        rows = self.sampler.rows(self.progress.updates)
        batch = self.replay.returns(rows, self.hp.gamma, self.hp.n_step)
        if self.priorities is not None:
            batch["weight"] = self.priorities.weights(rows, self.env_steps)
        return rows, batch

    def truncate_all(self) -> None:
        self.replay.truncate_all()

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        rows = super().run_epoch(stop)
        if rows is not None and self.hp.eval_interval and self.epochs % self.hp.eval_interval == 0:
            for row, value in zip(rows, evaluate(self), strict=True):
                row["eval_return"] = float(value)
        if rows is not None and self.hp.refill_interval and self.epochs % self.hp.refill_interval == 0:
            self.refill()
        return rows
