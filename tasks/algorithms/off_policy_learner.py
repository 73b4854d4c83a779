"""Base of the algorithms that learn from replayed transitions: DQN and SAC.

An iteration takes a few environment steps, then a few gradient steps on stored transitions. A subclass builds its
networks, says how they explore, and takes a gradient step on a batch.

Notation: P members, N environments, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from itertools import count
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..checkpoint.state import Tree
from ..checkpoint.storage import Metrics
from ..envs import EnvSpec, goals_of
from ..envs.base.masks import mask_in
from ..errors import UnsupportedSpace
from ..evaluation.objective import evaluate
from ..evaluation.seeds import evaluation_keys
from ..experience.exploration import UniformActions
from ..experience.hindsight import HindsightReplay, Relabelling
from ..experience.normalizers import ObservationNormalizer, RewardNormalizer
from ..experience.prioritized import PrioritizedSampler
from ..experience.replay_buffer import (
    EXACT_INTEGERS,
    PRESENT,
    Field,
    Index,
    ReplayBuffer,
    RingForm,
    Sampler,
    UniformSampler,
    replay_buffer,
    transition_fields,
)
from ..experience.sequence_replay import Sequences, check_sequences
from ..experience.turns import OpenTransitions
from ..learner import Learner, Policy
from ..networks.encoders import ENCODERS, unused_by_networks
from ..networks.optimizers import GRAD_NORM_INTERVAL, schedule
from ..networks.recurrent import ActingMemory
from ..rng import streams
from ..rng.streams import Keys
from ..signals.replay_guidance import ReplayGuidance
from .off_policy import OBSERVATIONS, check_replay, check_replay_in_env

Array = NDArray[Any]
Batch = Mapping[str, Tensor]


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


class ReplayPolicy(Policy, Protocol):
    """Networks of P members that learn from replayed transitions."""

    def memory(self, num_envs: int) -> ActingMemory | None:
        """Return recurrent states at the start of num_envs episodes, or None."""


class OffPolicyLearner(Learner):
    """P members that learn from replayed transitions.

    The hyperparameters are those of `off_policy_space`, with a `model`, an `optimizer` and its `lr_schedule`.

    Attributes:
        replay: the transitions.
        turns: transitions that wait for the agent's next turn, in a game of turns; otherwise None.
        progress: the counters.
        priorities: draws the batches of transitions; part of the state if they have priorities.
        sequences: draws the batches, if they consist of sequences; otherwise None.
        memory: recurrent states of the running episodes; None for policies without.
        rewards: running scale of rewards; None without one.
        guidance: signals and cloning; `build` creates it with the networks.
    """

    parts: ClassVar[tuple[str, ...]] = (
        "policy",
        "replay",
        "turns",
        "priorities",
        "progress",
        "obs_normalizer",
        "sequences",
        "memory",
        "guidance",
    )
    refillable = ("replay", "priorities", "sequences")
    scratch = (*Learner.scratch, "steps")
    policy: ReplayPolicy
    memory: ActingMemory | None = None
    sequences: Sequences | None = None
    turns: OpenTransitions | None = None
    rewards: RewardNormalizer | None = None
    guidance: ReplayGuidance

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        check_replay(cls, values)
        if values["model"]["memory"] != "none":
            check_sequences(cls.algorithm(), values)

    check_values_in_env = classmethod(check_replay_in_env)

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        return unused_by_networks(env, fixed)

    def build(self) -> None:
        """Create the replay buffer, its sampler and the counters.

        A subclass then builds its networks and the guidance.
        """
        hp, envs = self.hp, self.envs
        self.mask = mask_in(envs.obs_shape)
        subject = f"{self.algorithm()} on {self.env.id}"
        self.uniform_actions = UniformActions(self.keys("fill"), envs.action_space, hp.num_envs, subject)
        if self.uniform_actions.largest >= EXACT_INTEGERS:
            raise UnsupportedSpace(
                f"{subject}: actions must be below {EXACT_INTEGERS}, but the environment has {envs.action_space}"
            )
        obs = Field(envs.obs_shape, torch.float32 if envs.obs_kind == "vector" else torch.uint8)
        action = Field(self.uniform_actions.shape, torch.from_numpy(self.uniform_actions(0)).dtype)
        if envs.turns and envs.present is not None:
            self.turns = OpenTransitions(self.members, hp.num_envs, obs, action)
        self.replay = self._new_replay(obs, action)
        source = (self.replay, self.keys("replay"), hp.batch_size, hp.n_step)
        uniform = hp.replay.name == "uniform"
        self.priorities: Sampler = UniformSampler(*source) if uniform else PrioritizedSampler(*source, hp.replay)
        if hp.normalize_obs and envs.obs_kind == "vector":
            self.obs_normalizer = ObservationNormalizer(self.members, envs.obs_shape[0], self.mask)
        if vars(hp).get("scale_reward"):
            self.rewards = RewardNormalizer(self.members, hp.num_envs, hp.gamma.cpu().double().numpy())
        self.progress = Progress(self.members, full_at=hp.learning_starts)
        self.gamma = hp.gamma.cpu()  # the buffer lies in RAM, and n-step returns are computed there
        self.constant_lr = hp.lr_schedule.name == "constant" and not hp.lr_schedule.warmup.any()

    def _new_replay(self, obs: Field, action: Field) -> ReplayBuffer:
        """Return an empty buffer for observations and actions."""
        hp, fields = self.hp, transition_fields(obs, action)
        if self.envs.present is not None:
            fields[PRESENT] = Field((), torch.uint8)
        form = RingForm(self.members, hp.buffer_size, hp.num_envs, fields)
        strategy, ratio = hp.replay.relabel, hp.replay.relabel_ratio
        if strategy == "none":
            return replay_buffer(form, self.device)
        relabelling = Relabelling(goals_of(self.env), strategy, ratio, self.keys("relabel"), hp.batch_size)
        return HindsightReplay(form, relabelling, self.device)

    def iterate(self) -> dict[str, Tensor]:
        filling = self.filling
        self.collect()
        return self.steps() if self.envs.learns and not filling else {}

    # --- acting ---

    @property
    def filling(self) -> bool:
        """True while the buffer holds too few transitions to learn from."""
        return self.env_steps < self.progress.full_at

    @torch.inference_mode()
    def collect(self) -> None:
        """Take `num_steps` steps in every environment.

        While the buffer is filled, actions are random, unless the trained policy refills it.
        """
        hp = self.hp
        at_random = self.filling & ~((self.progress.fills > 1) & hp.use_trained_policy_for_refill)  # (P,)
        first = self.env_steps // hp.num_envs
        for position in range(first, first + hp.num_steps):
            obs, present = self.envs.obs, self.envs.present
            actions = self._choose(obs, present, position, at_random)
            step = self.envs.step(actions)
            if self.turns is not None:
                assert present is not None
                assert self.envs.present is not None
                fields = self.turns.step(obs, present, actions, step, self.envs.present)
            else:
                fields = {"obs": obs, "action": actions, **step._asdict()}
                fields |= {} if present is None else {PRESENT: present}
            self.replay.add(**fields)
            ended = step.terminated | step.truncated
            if self.rewards is not None:  # its moments are those of the transitions that are learned from
                counted = None if present is None else fields[PRESENT][None]
                self.rewards.learn(fields["reward"][None], ended[None], counted)
            self.end_episodes(ended)
        self.env_steps += hp.num_steps * hp.num_envs

    def _choose(
        self, obs: Array, present: NDArray[np.bool_] | None, position: int, at_random: NDArray[np.bool_]
    ) -> Array:
        """Return actions (P, N, ...), random ones for some members.

        Moments of observations and recurrent states advance, whoever acts.

        Args:
            obs: observations as the environments give them, (P, N, ...).
            present: agents whose actions count, (P, N); None if all do.
            position: number of the step, which selects the random numbers.
            at_random: members whose actions are random, (P,).
        """
        inputs = self.tensor(self.normalize(obs, learn=True, counted=present))
        features = inputs if self.memory is None else self.memory(inputs)
        if not at_random.any():
            return self.explore(features, position)
        uniform = self.uniform_actions(position, None if self.mask is None else obs[..., self.mask] > 0.5)
        if at_random.all():
            return uniform
        actions = self.explore(features, position).copy()
        actions[at_random] = uniform[at_random]
        return actions

    def explore(self, features: Tensor, position: int) -> Array:
        """Return actions (P, N, ...) to explore with.

        Args:
            features: inputs of the policy, (P, N, ...), from `memory`.
            position: number of the step, which selects the random numbers.
        """
        raise NotImplementedError

    def end_episodes(self, ended: NDArray[np.bool_]) -> None:
        """Reset recurrent states and returns where episodes ended, (P, N)."""
        for part in (self.memory, self.rewards):
            if part is not None:
                part.reset(ended)

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[Array], Array]:
        act = self.acting(episodes, deterministic, keys or partial(evaluation_keys, self.members))
        memory, steps = memory or self.acting_memory(episodes), count()

        @torch.inference_mode()
        def actions_for(obs: Array) -> Array:
            inputs = self.tensor(self.normalize(obs))
            return act(inputs if memory is None else memory(inputs), next(steps))

        return actions_for

    def acting(self, episodes: int, deterministic: bool, keys: Keys) -> Callable[[Tensor, int], Array]:
        """Return the policy of `actor`.

        It maps the networks' inputs (P, episodes, ...) and the number of a step to actions.
        """
        raise NotImplementedError

    def normalize(self, obs: Array, learn: bool = False, counted: NDArray[np.bool_] | None = None) -> Array:
        """Scale observations (P, N, ...), if the hyperparameters ask for it.

        With `learn`, they enter the running moments, or those that are `counted` (P, N).
        """
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn, counted)

    def normalize_batch(self, obs: Tensor) -> Tensor:
        """Scale the observations (P, B, ...) of a batch, as `normalize` does."""
        return obs if self.obs_normalizer is None else self.obs_normalizer.of_batch(obs)

    def tensor(self, array: Array) -> Tensor:
        """Return an array on the learner's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    # --- learning ---

    @cached_property
    def steps(self) -> ReplaySteps:
        """Gradient steps on drawn batches, by kernels or by torch."""
        return self.kernel() or ReplaySteps(self)

    @property
    def is_plain(self) -> bool:
        """True if nothing but kernels is needed between two gradient steps."""
        return type(self.guidance) is ReplayGuidance and self.rewards is None and not self.hp.resets

    def total_reward(self, batch: Batch) -> Tensor:
        """Return the scaled rewards plus those of signals, (P, B).

        Signals see observations before any encoder.
        """
        reward = batch["reward"] if self.rewards is None else self.rewards.scale(batch["reward"])
        return self.guidance.total(reward, batch)

    @torch.no_grad()
    def reset_networks(self) -> None:
        """Give networks and optimizers the values of new ones: arXiv:2205.07802.

        Nikishin et al. (2022) call the effect of early transitions, which this undoes, the primacy bias.
        """
        number = self.progress.updates // self.hp.resets
        parts = self.new_parts([streams.seed_of(seed, "reset", number) for seed in self.seeds])
        for name, new in parts.items():
            tensors = getattr(self, name).tensors
            for path, tensor in new.tensors.items():
                tensors[path].copy_(tensor)

    def new_parts(self, seeds: list[int]) -> dict[str, Stacked]:
        """Return new networks, drawn from seeds, and their optimizers.

        Their names are those of the parts whose values they can replace.
        """
        raise NotImplementedError

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Take one gradient step on a batch of tensors (P, B, ...).

        Returns:
            Metrics, each (P,), and temporal-difference errors (P, B), which become priorities.
        """
        raise NotImplementedError

    def guide(self, batch: Batch, number: int) -> dict[str, Tensor]:
        """Train signals and clone after a gradient step; return metrics."""
        return self.guidance.update(self, batch, number, self.scheduled(self.hp.optimizer.lr))

    def draw(self) -> tuple[Index, dict[str, Tensor]]:
        """Return the rows (P, B) and the normalized batch to learn from.

        The batch's tensors are (P, B, ...).
        """
        rows, batch = self.sampler.draw(self.progress.updates, self.gamma, self.env_steps)
        return rows, batch | {name: self.normalize_batch(batch[name]) for name in OBSERVATIONS if name in batch}

    @property
    def sampler(self) -> Sampler:
        """The sampler of batches."""
        return self.priorities if self.sequences is None else self.sequences

    @property
    def measured(self) -> bool:
        """True if this iteration measures the gradients' norms."""
        return self.tally.count % GRAD_NORM_INTERVAL == 0

    def scheduled(self, lr: Tensor) -> Tensor:
        """Return a learning rate (P, 1) times the schedule's current factor."""
        return lr if self.constant_lr else lr * schedule(self.hp.lr_schedule, torch.full_like(lr, self.env_steps))

    @property
    def capturable(self) -> bool:
        """Return whether all gradient steps can run as one CUDA graph."""
        plain = self.hp.model.encoder in ENCODERS and self.hp.model.memory == "none" and self.rewards is None
        return self.device.type == "cuda" and self.constant_lr and plain and type(self.guidance) is ReplayGuidance

    # --- epochs ---

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        """Train to the end of the epoch; then evaluate and refill.

        `eval_return` is added to the metrics every `eval_interval` epochs, and the buffer is refilled every
        `refill_interval` epochs.
        """
        if (rows := super().run_epoch(stop)) is None:
            return None
        if self.hp.eval_interval and self.epochs % self.hp.eval_interval == 0:
            for row, value in zip(rows, evaluate(self), strict=True):
                row["eval_return"] = float(value)
        if self.hp.refill_interval and self.epochs % self.hp.refill_interval == 0:
            self.refill_all()
        return rows

    def refill_all(self) -> None:
        """Empty the buffer, so that the next steps fill it again.

        With `use_trained_policy_for_refill` the trained policy acts, otherwise actions are random.
        """
        self.replay.clear()
        for member in range(self.members):
            self.refill(member)

    def refill(self, member: int) -> None:
        self.progress.fills[member] += 1
        self.progress.full_at = self.env_steps + self.hp.learning_starts

    def warm_started(self, member: int) -> None:
        self.progress.fills[member] = 2

    def updates(self) -> list[int]:
        return [self.progress.updates] * self.members

    def acting_memory(self, episodes: int) -> ActingMemory | None:
        return self.policy.memory(episodes)

    def truncate_all(self) -> None:
        self.replay.truncate_all()
        if self.turns is not None:
            self.turns.clear()
        self.end_episodes(np.ones((self.members, self.hp.num_envs), np.bool_))


class ReplaySteps:
    """Gradient steps on drawn batches, one by one."""

    def __init__(self, learner: OffPolicyLearner):
        self.learner = learner

    def __call__(self) -> dict[str, Tensor]:
        """Take `num_updates` gradient steps, and return the last one's metrics."""
        learner, hp, progress = self.learner, self.learner.hp, self.learner.progress
        metrics: dict[str, Tensor] = {}
        for _ in range(hp.num_updates):
            rows, batch = learner.draw()
            progress.updates += 1
            metrics, errors = self.update(batch)
            learner.sampler.update(rows, errors)
            if hp.resets and progress.updates % hp.resets == 0:
                learner.reset_networks()
            metrics = {**metrics, **learner.guide(batch, progress.updates)}
        return {**metrics, "lr": learner.scheduled(hp.optimizer.lr).squeeze(1)}

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Do what `OffPolicyLearner.update` does."""
        return self.learner.update(batch)
