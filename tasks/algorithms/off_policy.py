"""Off-policy learning: the loop of acting and experience replay.

An iteration takes a few environment steps, then a few gradient steps on stored transitions. Arguments of
Stable-Baselines3 and Pyrado correspond to these hyperparameters:

    learning_rate, lr                   optimizer.lr; SAC: also critic_lr and entropy.lr, if they differ
    train_freq, gradient_steps, num_updates_per_step    num_steps environment steps (in each of num_envs), then
                                        num_updates gradient steps
    min_steps                           num_steps * num_envs
    learning_starts, num_init_memory_steps    learning_starts, environment steps that fill the buffer at random
    use_trained_policy_for_refill       the same, with a refill_interval or a warm start
    buffer_size, memory_size            buffer_size, in transitions
    optimize_memory_usage               none: both observations of a transition are stored, see off_policy_space
    CnnPolicy, features_extractor_class model.encoder, which may be a class of your own
    eval_intvl                          eval_interval, in epochs
    target_update_interval              DQN: target_interval, in gradient steps; SAC: target_update_interval
    tau                                 the fraction taken from the online networks (Pyrado's is the fraction kept)
    exploration_fraction, _initial_eps, _final_eps      exploration.horizon (in environment steps), .start, .final
    ent_coef, ent_coeff_init, learn_ent_coeff           entropy.alpha, entropy.learn
    target_entropy                      -entropy.target per number, entropy.choice_target log n for a choice of n
    tensorboard_log, verbose            none: the metrics of every epoch are always kept

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
from ..experience.replay_buffer import (
    EXACT_INTEGERS,
    Field,
    Index,
    ReplayBuffer,
    Sampler,
    UniformSampler,
    transition_fields,
)
from ..learner import Learner
from ..networks.encoders import check_encoder
from ..networks.optimizers import schedule
from ..runtime.episode_window import window_size
from ..signals.replay_guidance import check_replay_guidance, replay_guidance_space

Array = NDArray[Any]
Update = Callable[[dict[str, Tensor]], tuple[Mapping[str, Tensor], Tensor]]
After = Callable[[dict[str, Tensor], int], Mapping[str, Tensor]]
REFILLABLE = ("replay", "priorities", "sequences")
OBSERVATIONS = ("obs", "next_obs")


def off_policy_space(n_step: int = 1) -> dict[str, Dimension | Space]:
    """Return the hyperparameters that all off-policy algorithms share.

    - An iteration takes `num_steps` steps in each of `num_envs` environments, then `num_updates` gradient steps.
    - The first `learning_starts` environment steps only fill the replay buffer, with random actions.
    - Every `refill_interval` epochs the buffer is emptied and filled again, for environments that change. With
      `use_trained_policy_for_refill`, the policy acts during a refill, and from the start after a warm start.
    - With `normalize_obs`, the networks see vectors (not images) standardized by the running mean and standard
      deviation of all observations so far. The buffer stores them unnormalized.
    - `eval_interval` adds `eval_return` to the metrics of every that many epochs. Both intervals are in epochs, 0 for
      never.

    A transition of images takes twice an image's bytes. With 84 x 84 pixels and 4 channels, a full buffer of 1,000,000
    transitions takes 56 GB in RAM and in a checkpoint; one of 50,000 takes 2.8 GB. A buffer larger than the machine's
    RAM is refused.
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
        "stats_window_size": window_size(silent=True),
        **replay_guidance_space(),
    }


class Progress:
    """Counters of off-policy learning.

    Attributes:
        updates: gradient steps so far.
        full_at: environment steps at which the buffer holds enough transitions to learn from.
        fills: (P,), how often each member's buffer has been filled; after a warm start the first filling counts as the
            second.
    """

    def __init__(self, members: int, full_at: int):
        self.updates, self.full_at, self.fills = 0, full_at, np.ones(members, np.int64)

    def member_state(self, member: int) -> Tree:
        return {"updates": self.updates, "fills": int(self.fills[member]), "full_at": self.full_at}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.updates, self.full_at, self.fills[member] = tree["updates"], tree["full_at"], tree["fills"]


def check_replay(learner: type[Learner], values: Mapping[str, Any]) -> None:
    """Raise ValueError if values of `off_policy_space` contradict each other."""
    buffer, batch, starts, n, envs = (
        values[key] for key in ("buffer_size", "batch_size", "learning_starts", "n_step", "num_envs")
    )
    window, refill, epoch = n * envs, values["refill_interval"], values["epoch_steps"]
    rules = [
        (batch <= buffer, f"batch_size ({batch}) must be at most buffer_size ({buffer})"),
        (window <= buffer, f"n_step * num_envs ({window}) must be at most buffer_size ({buffer})"),
        (starts <= buffer, f"learning_starts ({starts}) must be at most buffer_size ({buffer})"),
        (batch <= starts, f"batch_size ({batch}) must be at most learning_starts ({starts})"),
        (window <= starts, f"n_step * num_envs ({window}) must be at most learning_starts ({starts})"),
        (
            not refill or starts <= refill * epoch,
            f"learning_starts ({starts}) must be at most refill_interval * epoch_steps ({refill * epoch})",
        ),
    ]
    for holds, rule in rules:
        if not holds:
            raise ValueError(f"{learner.algorithm()}: {rule}; raise the latter or lower the former")
    check_replay_guidance(values, learner.algorithm())


def check_replay_in_env(learner: type[Learner], env: EnvSpec, values: Mapping[str, Any]) -> None:
    """Check the replay buffer and the encoder for an environment.

    Raises:
        ValueError: the buffer needs more than this machine's RAM.
        UnsupportedSpace: the encoder does not fit the observations.
    """
    where, obs = f"{learner.algorithm()} on {env.id}", Observations(spaces_of(env).observation, env.id)
    size, needs = values["buffer_size"], len(OBSERVATIONS) * math.prod(obs.shape) * obs.dtype.itemsize
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size * needs > has:
        raise ValueError(
            f"{where}: buffer_size ({size}) transitions of {needs:,} bytes need {size * needs / 1e9:,.0f} GB, "
            f"but this machine has {has / 1e9:,.0f} GB of memory; set buffer_size to {has // needs // 2} or less"
        )
    check_encoder(values["model"], env, where)


class ReplayLoop:
    """The loop of acting, storing transitions, and learning from batches of them.

    Attributes:
        replay: the transitions.
        progress: the counters.
        sampler: draws the batches; part of the state if it is prioritized.
        obs_normalizer: scales observations; None if they are not normalized.
        normalize, normalize_batch: scale observations and batches of them, or return them unchanged.
    """

    sampler: Sampler

    def __init__(self, learner: Learner):
        """Create the replay buffer, its sampler and the counters.

        The learner must have the hyperparameters of `off_policy_space`, and environments.
        """
        self.hp, self.envs = hp, envs = learner.hp, learner.envs
        where = f"{learner.algorithm()} on {learner.env.id}"
        self.uniform_actions = UniformActions(learner.keys("fill"), envs.action_space, hp.num_envs, where)
        if self.uniform_actions.largest >= EXACT_INTEGERS:
            raise UnsupportedSpace(
                f"{where}: actions must be below {EXACT_INTEGERS}, but the environment has {envs.action_space}"
            )
        kind = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        action = Field(self.uniform_actions.shape, torch.from_numpy(self.uniform_actions(0)).dtype)
        fields = transition_fields(Field(envs.obs_shape, kind), action)
        self.replay = ReplayBuffer(learner.members, hp.buffer_size, hp.num_envs, fields, learner.device)
        drawn = (self.replay, learner.keys("replay"), hp.batch_size, hp.n_step)
        uniform = hp.replay.name == "uniform"
        self.sampler = UniformSampler(*drawn) if uniform else PrioritizedSampler(*drawn, hp.replay)
        self.obs_normalizer: ObservationNormalizer | None = None
        self.normalize: Callable[..., Array] = lambda obs, learn=False: obs
        self.normalize_batch: Callable[[Tensor], Tensor] = lambda obs: obs
        if hp.normalize_obs and envs.obs_kind == "vector":
            self.obs_normalizer = ObservationNormalizer(learner.members, envs.obs_shape[0])
            self.normalize, self.normalize_batch = self.obs_normalizer, self.obs_normalizer.of_batch
        self.progress = Progress(learner.members, full_at=hp.learning_starts)
        self.gamma = hp.gamma.cpu()  # the buffer lies in RAM, and n-step returns are computed there
        self.constant_lr = hp.lr_schedule.name == "constant" and not hp.lr_schedule.warmup.any()

    def filling(self, env_steps: int) -> bool:
        """Return whether the buffer holds too few transitions to learn from."""
        return env_steps < self.progress.full_at

    @torch.inference_mode()
    def collect(
        self,
        env_steps: int,
        explore: Callable[[Any, int], Array],
        observe: Callable[[Array], Any] = lambda obs: obs,
        on_step: Callable[[StepResult], None] = lambda step: None,
    ) -> int:
        """Take `num_steps` steps in every environment, and return their number.

        While the buffer is filled, actions are random, unless the trained policy refills it.

        Args:
            env_steps: environment steps so far.
            explore: function that returns actions (P, N, ...) for the result of `observe` and the number of the step.
            observe: function called with every normalized observation (P, N, ...).
            on_step: function called with the results of every step.
        """
        at_random = self.filling(env_steps) & ~((self.progress.fills > 1) & self.hp.use_trained_policy_for_refill)
        all_random, any_random = at_random.all(), at_random.any()
        first = env_steps // self.hp.num_envs
        for position in range(first, first + self.hp.num_steps):
            obs = self.envs.obs
            features = observe(self.normalize(obs, learn=True))
            actions = self.uniform_actions(position) if all_random else explore(features, position)
            if any_random and not all_random:
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
            on_step(step)
        return int(self.hp.num_steps * self.hp.num_envs)

    def learn(self, env_steps: int, update: Update, after: After) -> dict[str, Tensor]:
        """Take `num_updates` gradient steps, and return the last one's metrics.

        Args:
            env_steps: environment steps so far.
            update: function that takes a gradient step on a batch (P, B, ...). It returns metrics, each (P,), and
                temporal-difference errors (P, B), which become priorities.
            after: function called with each batch and the number of its gradient step; it returns further metrics.
        """
        metrics: Mapping[str, Tensor] = {}
        for _ in range(self.hp.num_updates):
            rows, batch = self.draw(env_steps)
            self.progress.updates += 1
            metrics, errors = update(batch)
            self.sampler.update(rows, errors)
            metrics = {**metrics, **after(batch, self.progress.updates)}
        return {**metrics, "lr": self.scheduled(self.hp.optimizer.lr, env_steps).squeeze(1)}

    def scheduled(self, lr: Tensor, env_steps: int) -> Tensor:
        """Return a learning rate (P, 1) times the schedule's current factor."""
        return lr if self.constant_lr else lr * schedule(self.hp.lr_schedule, torch.full_like(lr, env_steps))

    def draw(self, env_steps: int) -> tuple[Index, dict[str, Tensor]]:
        """Return the rows (P, B) and the normalized batch to learn from.

        The batch's tensors are (P, B, ...).
        """
        rows, batch = self.sampler.draw(self.progress.updates, self.gamma, env_steps)
        return rows, batch | {name: self.normalize_batch(batch[name]) for name in OBSERVATIONS if name in batch}

    def refill(self, env_steps: int) -> None:
        """Empty the buffer, so that the next steps fill it again.

        With `use_trained_policy_for_refill` the trained policy acts, otherwise actions are random.
        """
        self.replay.clear()
        self.progress.fills += 1
        self.progress.full_at = env_steps + self.hp.learning_starts

    def refill_member(self, env_steps: int, member: int) -> None:
        """Prepare to refill the buffer of a member stored without one."""
        self.progress.fills[member] += 1
        self.progress.full_at = env_steps + self.hp.learning_starts

    def end_epoch(self, learner: Learner, rows: list[Metrics] | None) -> list[Metrics] | None:
        """Evaluate and refill, if it is this epoch's turn.

        This adds `eval_return` to the metrics every `eval_interval` epochs, and refills the buffer every
        `refill_interval` epochs.

        Args:
            learner: the learner.
            rows: metrics of the epoch; None if it has not ended.
        """
        if rows is None:
            return None
        if self.hp.eval_interval and learner.epochs % self.hp.eval_interval == 0:
            for row, value in zip(rows, evaluate(learner), strict=True):
                row["eval_return"] = float(value)
        if self.hp.refill_interval and learner.epochs % self.hp.refill_interval == 0:
            self.refill(learner.env_steps)
        return rows
