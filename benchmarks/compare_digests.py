"""Whether two checkouts train to the same bits: many small trainings in each, compared by their digests.

    python benchmarks/compare_digests.py OLD NEW [--only PATTERN]      # 1 is the exit status if anything differs
    python benchmarks/compare_digests.py OLD --save old.json           # trains one side alone and keeps what it gave
    python benchmarks/compare_digests.py old.json NEW

OLD and NEW are checkouts, of any folder name, or files that --save wrote. Each checkout trains in a process of its own,
which finds it as `rekindle` by a link of its own, so that no installed one is in the way. Compared are, of every member
of every training: the uid, the digest of the state, that of the networks alone, and that of the metrics of the last
epoch with a greedy evaluation. Where one side knows a hyperparameter by an older name (RENAMES), uid and state hold
that name, so networks and metrics are compared alone. A side takes two minutes of processor time, and half a minute
more where its kernels are not compiled yet. With REKINDLE_KERNELS=0 in the environment, torch alone computes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

RENAMES = {"model.dueling": "model.duelling"}  # a hyperparameter's name: the one that older checkouts know it by
COMPARED = ("uid", "digest", "networks", "metrics")
Result = dict[str, Any]  # what a member came to: `COMPARED`, seconds, renamed; or an error

# --- environments, which processes find by the name of this module ---

PLANE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
SEEN: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "dict": spaces.Dict({"at": PLANE, "sides": spaces.Dict({
        "left": spaces.Discrete(2, start=-1), "both": spaces.MultiBinary(2)})}),
    "goal": spaces.Dict({"achieved_goal": PLANE, "desired_goal": PLANE, "observation": PLANE}),
}  # fmt: skip
DONE: dict[str, spaces.Space[Any]] = {
    "choice": spaces.Discrete(3, start=1),
    "rows": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "bits": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([-1, 0], np.float32), np.array([2, 3], np.float32)),
    "hybrid": spaces.Dict({
        "mode": spaces.Discrete(2), "push": spaces.Box(-1, 4, (2,), np.float32),
        "rest": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (), np.float64)])}),
}  # fmt: skip


class Walk(gym.Env[Any, Any]):
    """A random walk near a goal, with noise at every step.

    Args:
        see: the kind of observations, of `SEEN`, or the side of a square image.
        do: the kind of actions, of `DONE`.
        counts: whether it shows how many episodes there were, so that only new environments forget them.
    """

    def __init__(self, see: str | int = "vector", do: str = "choice", counts: bool = False) -> None:
        self.see, self.counts, self.episodes = see, counts, 0
        image = spaces.Box(0, 255, (see, see, 1), np.uint8) if isinstance(see, int) else None
        self.observation_space = SEEN[str(see)] if image is None else image
        self.action_space = DONE[do]
        self.place, self.goal, self.wind = np.zeros(2), np.zeros(2), 0.5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        self.wind = float(options.get("wind", 0.5))
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)) * float(options.get("spread", 1.0))
        self.episodes += 1
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        size = total(action)
        self.place = self.place + np.array([size - 2, 1]) / 8 + self.wind * self.np_random.normal(0, 1, 2)
        reward = -float(np.abs(self.place - self.goal).sum()) - 0.1 * size
        return self.show(), reward, bool(np.abs(self.place).max() > 3), False, {}

    def show(self) -> Any:
        at, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
        if isinstance(self.see, int):
            side, square = self.see, self.see // 3
            picture = np.zeros((side, side, 1), np.uint8)
            row, column = (int(x) for x in np.clip((self.place + 3) / 6, 0, 1) * (side - square))
            picture[row : row + square, column : column + square] = 255
            return picture
        if self.see == "dict":
            positive = self.place > 0
            return {"at": at, "sides": {"left": np.int64(positive[0]) - 1, "both": positive.astype(np.int8)}}
        if self.see == "goal":
            return {"achieved_goal": at, "desired_goal": goal, "observation": at - goal}
        last = np.array([self.wind, self.episodes if self.counts else goal[0]], np.float32)
        return np.concatenate([at, last])


def total(action: Any) -> float:
    """The sum of all numbers in an action."""
    if isinstance(action, Mapping):
        return sum(total(action[name]) for name in sorted(action))
    return sum(map(total, action)) if isinstance(action, tuple) else float(np.asarray(action, np.float64).sum())


class Reach(Walk):
    """The walk whose rewards follow from goals alone, so that hindsight can relabel them."""

    def __init__(self, do: str = "box") -> None:
        super().__init__("goal", do)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return obs, float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})), *rest

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.abs(achieved - desired).sum(-1)


class Fenced(Walk):
    """The walk with a mask that forbids its largest action on one half of the plane."""

    def __init__(self) -> None:
        super().__init__()
        mask = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict({"action_mask": mask, "walk": self.observation_space})

    def show(self) -> Any:
        return {"action_mask": np.array([1, 1, self.place[0] > 0], np.int8), "walk": super().show()}


for _class in (Walk, Reach, Fenced):
    if f"{_class.__name__}-v0" not in gym.registry:
        gym.register(f"{_class.__name__}-v0", f"{Path(__file__).stem}:{_class.__name__}", max_episode_steps=30)


def walk(name: str = "Walk", **kwargs: Any) -> dict[str, Any]:
    """The walk, or one of its subclasses, as JSON of an EnvSpec."""
    return {"id": f"{Path(__file__).stem}:{name}-v0", "kwargs": kwargs}


CART, PENDULUM, MUJOCO = "CartPole-v1", {"id": "Pendulum-v1", "max_episode_steps": 50}, "InvertedPendulum-v5"
SCALED = {"id": "Pendulum-v1", "wrappers": [{"entry_point": "gymnasium.wrappers:NormalizeReward"}]}
PONG = {"id": "vector/ALE/Pong-v5",
        "kwargs": {"img_height": 36, "img_width": 36, "stack_num": 2, "max_num_frames_per_episode": 200}}  # fmt: skip
RAM = {"id": "ALE/Pong-v5", "kwargs": {"obs_type": "ram", "repeat_action_probability": 0.0}, "max_episode_steps": 50}
UNTIL = {"threshold": -1e9, "min_lesson_length": 4}  # every return passes it
LESSONS = walk() | {"parameters": {"wind": {"gaussian": [0.5, 0.1]}, "spread": {"lessons": [
    {"value": {"uniform": [0, size]}, "completion_criteria": UNTIL} for size in (1, 2, 3)]}}}  # fmt: skip

# --- trainings ---


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        values: hyperparameters by dotted names.
        members: how many are trained together, alike but for seed and the hyperparameter that is `varied`.
        shown: whether demonstrations are recorded first, and given to it.
        warm: whether another one is trained first, and its networks are taken over.
        resumed: whether a new task of a new store resumes it after the first epoch.
    """

    task: str
    env: str | dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    members: int = 1
    epochs: int = 2
    shown: bool = False
    warm: bool = False
    resumed: bool = False
    env_processes: int = 0
    varied: str = "gamma"


ROLLOUT: dict[str, Any] = {"num_steps": 32, "num_envs": 4, "epoch_steps": 256, "model.width": 16,
                           "optimizer.lr": 0.02, "max_grad_norm": 0.5}  # fmt: skip
EPOCHS = {**ROLLOUT, "num_minibatches": 2, "update_epochs": 3}
UNCLIPPED = {name: value for name, value in EPOCHS.items() if name != "max_grad_norm"}
IMAGE = {**EPOCHS, "num_steps": 16, "num_envs": 2, "epoch_steps": 64}
REPLAY: dict[str, Any] = {"num_envs": 2, "epoch_steps": 160, "learning_starts": 48, "batch_size": 32,
                          "buffer_size": 150, "model.width": 16, "optimizer.lr": 0.01}  # fmt: skip
PIXELS = {**REPLAY, "epoch_steps": 64, "learning_starts": 32, "batch_size": 16, "num_updates": 1}
SEQUENCES = {"model.memory": "lstm", "model.sequence_length": 4, "model.burn_in": 2, "learning_starts": 48}
WHOLE = {**ROLLOUT, "num_steps": 20, "epoch_steps": 480, "max_rollout_steps": 100}
LSTM, GRU = {"model.memory": "lstm"}, {"model.memory": "gru"}
ICM, RND = {"icm.use": True, "icm.strength": 0.1, "icm.width": 16}, {"rnd.use": True, "rnd.width": 17}
GAIL = {"gail.use": True, "gail.width": 16}
VAIL = {**GAIL, "gail.variational": True, "gail.code_width": 17}
CLONING = {"cloning.use": True, "cloning.batch_size": 32, "cloning.samples_per_update": 64}
HYPER = {"model.goal_conditioning": "hyper"}
PRIORITIZED = {"replay.name": "prioritized", "replay.beta_horizon": 300}
HINDSIGHT = {"replay.relabel": "future", "learning_starts": 64}
GAME = {"id": "pettingzoo/classic:tictactoe_v3", "behaviours": {"x": ["player_1"], "o": ["player_2"]}}
TWO = {"epoch_steps": 64, "num_envs": 2, "x.num_steps": 16, "x.num_minibatches": 2, "x.optimizer.lr": 0.02,
       "o.algorithm": "dqn", "o.learning_starts": 32, "o.batch_size": 16, "o.n_step": 3}  # fmt: skip
SELF_PLAY = {"use": True, "save_steps": 32, "swap_steps": 32, "team_change": 32, "window": 2}
SEARCH = {"deltas": 4, "num_envs": 4, "num_steps": 50, "epoch_steps": 800}
SB3 = {"epoch_steps": 128, "num_envs": 2, "total_steps": 256}
SEPARATE = {"critic.name": "separate", "critic.update_epochs": 2, "critic.num_minibatches": 2}


def schedules(**names: str) -> dict[str, Any]:
    """Schedules of these names, each where it begins to bend within the training."""
    values: dict[str, Any] = {}
    for parameter, name in names.items():
        points = {"points": [[0, 1.0], [256, 0.5], [512, 2.0]]} if name == "piecewise" else {"horizon": 400}
        values |= {f"{parameter}_schedule.{key}": value for key, value in {"name": name, **points}.items()}
    return values


ON_POLICY = {
    "ppo": Training("ppo", CART, EPOCHS, members=3),
    "ppo, Box": Training("ppo", PENDULUM, {**EPOCHS, "target_kl": 0.005}, members=3),
    "ppo, MultiDiscrete": Training("ppo", walk(do="rows"), EPOCHS),
    "ppo, Dict": Training("ppo", walk(see="dict"), EPOCHS),
    "ppo, Tuple": Training("ppo", "Blackjack-v1", EPOCHS),
    "ppo, clipped values, normalized": Training("ppo", CART, {
        **EPOCHS, "clip_value": 0.05, "normalize_obs": True, "normalize_reward": True, "stats_window_size": 7}),
    "ppo, schedules": Training("ppo", CART, {**EPOCHS, "clip_value": 0.5, **schedules(
        lr="piecewise", ent_coef="piecewise", clip_coef="linear", clip_value="exponential")}),
    "ppo2, schedules": Training("ppo2", PENDULUM, {**EPOCHS, "clip_value": 0.5, "lr_schedule.warmup": 100, **schedules(
        lr="linear", ent_coef="exponential", clip_coef="cosine", clip_value="linear")}),
    "ppo, sgd": Training("ppo", CART, {
        **EPOCHS, "optimizer.name": "sgd", "optimizer.momentum": 0.5, **schedules(lr="cosine")}),
    "ppo, rmsprop": Training("ppo", CART, {
        **EPOCHS, "optimizer.name": "rmsprop", "max_grad_norm": None, "model.activation": "silu",
        **schedules(lr="exponential", ent_coef="cosine")}),
    "ppo, adamw": Training("ppo", CART, {
        **EPOCHS, "optimizer.name": "adamw", "num_steps": 35, "num_envs": 3, "num_minibatches": 5, "model.width": 17,
        "model.layers": 3, "model.activation": "elu"}),
    "ppo, lstm": Training("ppo", PENDULUM, {**EPOCHS, **LSTM, "model.activation": "relu"}, members=3),
    "ppo, gru, separate critic": Training("ppo", CART, {**EPOCHS, **GRU, **SEPARATE, "normalize_obs": True}),
    "ppo, separate critic": Training("ppo", CART, {
        **EPOCHS, **SEPARATE, "critic.max_grad_norm": 0.5, "critic.lr_schedule.name": "linear",
        "critic.lr_schedule.horizon": 400, "critic.lr_schedule.warmup": 100, **schedules(lr="cosine")}),
    "ppo, separate critic, empirical": Training("ppo", CART, {
        **EPOCHS, **SEPARATE, "critic.targets": "empirical", "normalize_advantage": "running"}, members=3),
    "ppo, advantages as they are": Training("ppo", CART, {**EPOCHS, "normalize_advantage": False, "critic_lr": 0.03}),
    "ppo, sde": Training("ppo", PENDULUM, {**EPOCHS, "use_sde": True, "sde_sample_freq": 5}, members=3),
    "ppo2, sde, gru": Training("ppo2", PENDULUM, {**EPOCHS, **GRU, "use_sde": True}),
    "ppo2": Training("ppo2", CART, {**EPOCHS, "target_kl": 0.005, "critic_lr": 0.05}, members=3),
    "ppo2, MultiBinary": Training("ppo2", walk(do="bits"), EPOCHS),
    "a2c": Training("a2c", CART, {**ROLLOUT, "num_steps": 8, "optimizer.momentum": 0.5}, members=3),
    "a2c, Box": Training("a2c", PENDULUM, {
        **ROLLOUT, "num_steps": 8, "normalize_advantage": "running", "normalize_reward": True}),
    "a2c, adam, minibatches": Training("a2c", CART, {
        **EPOCHS, "optimizer.name": "adam", "normalize_advantage": True, **schedules(lr="exponential")}),
    "a2c, lstm": Training("a2c", CART, {**ROLLOUT, **LSTM, "num_steps": 8}, members=3),
    "a2c, gru, MultiBinary": Training("a2c", walk(do="bits"), {**ROLLOUT, **GRU, "num_steps": 8}),
    "a2c, whole episodes": Training("a2c", CART, {**WHOLE, "min_rollouts": 6, "normalize_obs": True}, members=3),
    "a2c, whole episodes, by steps": Training("a2c", CART, {
        **WHOLE, **GRU, "min_rollouts": 2, "min_steps": 150, "normalize_advantage": True}),
    "svpg": Training("svpg", CART, {**ROLLOUT, "num_particles": 3, "num_steps": 8, "horizon": 400}, members=3),
    "svpg-ppo": Training("svpg-ppo", PENDULUM, {**EPOCHS, "num_particles": 2, "temperature": 10.0}),
    "svpg-ppo2": Training("svpg-ppo2", walk(do="rows"), {**EPOCHS, "num_particles": 2}),
    "ppo, goals": Training("ppo", walk(see="goal"), {**EPOCHS, **HYPER, "normalize_obs": True}),
    "a2c, gru, goals": Training("a2c", walk(see="goal", do="box"), {**ROLLOUT, **GRU, **HYPER, "num_steps": 8}),
    "ppo, image": Training("ppo", walk(see=36), IMAGE, members=3),
    "ppo, image, simple": Training("ppo", walk(see=20), {**IMAGE, "model.encoder": "simple"}),
    "ppo, image, impala": Training("ppo", walk(see=8), {**IMAGE, "model.encoder": "impala"}),
    "ppo2, image, small, lstm": Training("ppo2", walk(see=6), {**IMAGE, **LSTM, "model.encoder": "small"}),
    "ppo, image, flat, separate critic": Training("ppo", walk(see=6), {**IMAGE, **SEPARATE, "model.encoder": "flat"}),
    "ppo, Atari frames": Training("ppo", PONG, IMAGE),
}  # fmt: skip
GUIDED = {
    "ppo, icm": Training("ppo", CART, {**EPOCHS, **ICM, "normalize_obs": True, "extrinsic.strength": 0.5}, members=3),
    "ppo2, rnd": Training("ppo2", PENDULUM, {**EPOCHS, **RND, "normalize_reward": True}),
    "ppo2, lstm, icm, rnd": Training("ppo2", CART, {**EPOCHS, **LSTM, **ICM, **RND, "extrinsic.strength": 0.0}),
    "ppo, gail": Training("ppo", PENDULUM, {**EPOCHS, **GAIL}, shown=True),
    "ppo, gail, observations": Training("ppo", CART, {**EPOCHS, **GAIL, "gail.use_actions": False}, shown=True),
    "ppo, vail": Training("ppo", CART, {**EPOCHS, **VAIL, **schedules(lr="linear")}, shown=True, members=3),
    "ppo2, gru, vail, rnd": Training("ppo2", CART, {**EPOCHS, **GRU, **VAIL, **RND, "normalize_obs": True}, shown=True),
    "ppo, cloning": Training("ppo", PENDULUM, {**EPOCHS, **CLONING, "cloning.steps": 400}, shown=True),
    "ppo, lstm, cloning": Training("ppo", CART, {**EPOCHS, **LSTM, "num_steps": 12, **CLONING}, shown=True),
    "a2c, all signals, cloning": Training("a2c", walk(do="rows"), {
        **ROLLOUT, "num_steps": 8, **ICM, **RND, **GAIL, **CLONING}, shown=True),
    "a2c, whole episodes, all signals": Training("a2c", CART, {
        **WHOLE, "max_rollout_steps": 60, "min_rollouts": 4, **ICM, **RND, **VAIL, **CLONING}, shown=True, members=3),
    "a2c, image, icm, rnd": Training("a2c", walk(see=6), {**IMAGE, **ICM, **RND, "model.encoder": "small"}),
    "svpg, rnd, cloning": Training("svpg", CART, {
        **ROLLOUT, "num_particles": 2, "num_steps": 8, **RND, **CLONING}, shown=True),
    "ppo, separate critic, rnd": Training("ppo", CART, {**EPOCHS, **SEPARATE, **RND}),
}  # fmt: skip
OFF_POLICY = {
    "dqn": Training("dqn", CART, REPLAY, members=3),
    "dqn, not double": Training("dqn", CART, {
        **REPLAY, "double": False, "n_step": 1, "target_interval": 10, "tau": 1.0, "model.activation": "tanh",
        "normalize_obs": True}),
    "dqn, dueling": Training("dqn", CART, {**REPLAY, "model.dueling": True, "max_grad_norm": 0.01}, members=3),
    "dqn, dueling, prioritized": Training("dqn", walk(), {**REPLAY, **PRIORITIZED, "model.dueling": True, "n_step": 5}),
    "dqn, prioritized": Training("dqn", CART, {**REPLAY, **PRIORITIZED, "exploration.name": "exponential"}, members=3),
    "dqn, rmsprop": Training("dqn", CART, {
        **REPLAY, "optimizer.name": "rmsprop", "max_grad_norm": None, "eval_interval": 2,
        **schedules(lr="exponential")}),
    "dqn, sgd, refilled": Training("dqn", CART, {
        **REPLAY, "optimizer.name": "sgd", "refill_interval": 1, "use_trained_policy_for_refill": True}, epochs=3),
    "dqn, adamw": Training("dqn", walk(see="dict"), {
        **REPLAY, "optimizer.name": "adamw", "num_steps": 3, "batch_size": 33, "model.layers": 3, "model.width": 17,
        **schedules(lr="cosine")}),
    "dqn, image": Training("dqn", walk(see=36), PIXELS),
    "dqn, image, impala, dueling": Training("dqn", walk(see=8), {
        **PIXELS, "model.encoder": "impala", "model.dueling": True}),
    "dqn, image, flat": Training("dqn", walk(see=6), {**PIXELS, "model.encoder": "flat"}),
    "dqn, Atari memory": Training("dqn", RAM, {**PIXELS, "normalize_obs": True}),
    "sac, Box": Training("sac", PENDULUM, REPLAY, members=3),
    "sac, hybrid": Training("sac", walk(do="hybrid"), {**REPLAY, "max_grad_norm": 0.5}, members=3),
    "sac, Discrete": Training("sac", CART, {**REPLAY, "model.activation": "elu", "n_step": 3}),
    "sac, fixed entropy, prioritized": Training("sac", PENDULUM, {
        **REPLAY, **PRIORITIZED, "entropy.learn": False, "entropy.alpha": 0.2, "target_update_interval": 7}),
    "sac, fixed entropy, Discrete": Training("sac", walk(), {**REPLAY, "entropy.learn": False, "num_updates": 2}),
    "sac, n-step, scaled": Training("sac", PENDULUM, {
        **REPLAY, "n_step": 3, "scale_reward": True, "normalize_obs": True, "critic_lr": 0.002, "entropy.lr": 0.03}),
    "sac, rmsprop": Training("sac", PENDULUM, {
        **REPLAY, "optimizer.name": "rmsprop", "optimizer.momentum": 0.5, "num_steps": 4,
        **schedules(lr="exponential")}),
    "sac, adamw": Training("sac", PENDULUM, {
        **REPLAY, "optimizer.name": "adamw", "model.layers": 3, "model.width": 17, "batch_size": 33,
        **schedules(lr="cosine")}),
    "sac, sde": Training("sac", PENDULUM, {
        **REPLAY, "optimizer.name": "sgd", "model.activation": "tanh", "use_sde": True, "sde_sample_freq": 5}),
    "sac, sde, hybrid": Training("sac", walk(do="hybrid"), {**REPLAY, "use_sde": True}),
    "sac, lstm": Training("sac", CART, {**REPLAY, **SEQUENCES, "n_step": 3, "scale_reward": True}, members=3),
    "sac, gru, hybrid": Training("sac", walk(do="hybrid"), {**REPLAY, **SEQUENCES, **GRU, "model.burn_in": 0}),
    "sac, lstm, sde": Training("sac", PENDULUM, {**REPLAY, **SEQUENCES, "use_sde": True, "normalize_obs": True}),
    "sac, image": Training("sac", walk(see=36, do="box"), PIXELS),
    "sac, image, small, sde": Training("sac", walk(see=6, do="box"), {
        **PIXELS, "model.encoder": "small", "use_sde": True, "max_grad_norm": 0.5}),
    "sac, image, impala, n-step": Training("sac", walk(see=8), {**PIXELS, "model.encoder": "impala", "n_step": 3}),
}  # fmt: skip
CRITICS = {**REPLAY, "policy_delay": 2, "critic.dropout": 0.1, "critic.norm": "layer"}
FAMILY = {
    "ddpg": Training("ddpg", PENDULUM, REPLAY, members=3),
    "ddpg, gaussian, n-step": Training("ddpg", walk(do="box"), {
        **REPLAY, "exploration.noise": "gaussian", "n_step": 3, "critic_loss": "huber", "normalize_obs": True}),
    "ddpg, resumed": Training("ddpg", PENDULUM, {**REPLAY, "scale_reward": True}, resumed=True),
    "td3": Training("td3", PENDULUM, REPLAY, members=3),
    "td3, ou, prioritized": Training("td3", PENDULUM, {
        **REPLAY, **PRIORITIZED, "exploration.noise": "ou", "max_grad_norm": 0.5, **schedules(lr="cosine")}),
    "td3, dropout, norm": Training("td3", PENDULUM, {**CRITICS, "resets": 60}),
    "td3, simba, resumed": Training("td3", PENDULUM, {
        **REPLAY, "model.block": "simba", "critic.block": "simba"}, resumed=True),
    "td3, hindsight": Training("td3", walk("Reach"), {**REPLAY, **HINDSIGHT}, members=2),
    "td3, resumed": Training("td3", PENDULUM, REPLAY, resumed=True),
    "tqc": Training("tqc", PENDULUM, REPLAY, members=3),
    "tqc, five critics, sde": Training("tqc", PENDULUM, {
        **REPLAY, "critics": 5, "quantiles": 7, "dropped_quantiles": 0, "use_sde": True, "sde_clip_mean": 2.0}),
    "tqc, dropout": Training("tqc", PENDULUM, {**REPLAY, "critic.dropout": 0.1, "n_step": 3}),
    "tqc, image": Training("tqc", walk(see=36, do="box"), PIXELS),
    "tqc, gru": Training("tqc", PENDULUM, {**REPLAY, **SEQUENCES, **GRU, "epoch_steps": 80}),
    "tqc, image, gru": Training("tqc", walk(see=6, do="box"), {
        **PIXELS, **SEQUENCES, **GRU, "model.encoder": "small", "epoch_steps": 80}),
    "tqc, hindsight": Training("tqc", walk("Reach"), {**REPLAY, **HINDSIGHT, "replay.relabel": "final"}),
    "tqc, rnd, cloning": Training("tqc", PENDULUM, {**REPLAY, **RND, "cloning.use": True}, shown=True),
    "tqc, resumed": Training("tqc", PENDULUM, {**REPLAY, **PRIORITIZED}, resumed=True),
    "crossq": Training("crossq", PENDULUM, {**REPLAY, "model.critic_width": 24}, members=3),
    "crossq, prioritized, n-step": Training("crossq", PENDULUM, {
        **REPLAY, **PRIORITIZED, "model.critic_width": 24, "n_step": 3, "entropy.learn": False}),
    "crossq, resumed": Training("crossq", PENDULUM, {**REPLAY, "model.critic_width": 24}, resumed=True),
    "sac, ensemble": Training("sac", PENDULUM, {
        **REPLAY, "critic.ensemble": 4, "critic.subset": 2, "policy_delay": 2}, members=2),
    "sac, mean, dropout, norm": Training("sac", PENDULUM, {**CRITICS, "critic.mean": True}),
    "sac, masks": Training("sac", walk("Fenced"), REPLAY, members=2),
    "sac, icm": Training("sac", PENDULUM, {**REPLAY, **ICM}),
    "sac, resets, resumed": Training("sac", PENDULUM, {**REPLAY, "resets": 50}, resumed=True),
    "dqn, masks": Training("dqn", walk("Fenced"), REPLAY, members=2),
    "dqn, noisy, categorical": Training("dqn", CART, {
        **REPLAY, "model.noisy": True, "model.dueling": True, "distribution": "categorical", "atoms": 11}),
    "dqn, categorical": Training("dqn", CART, {**REPLAY, "distribution": "categorical", "atoms": 11}, members=3),
    "dqn, gru": Training("dqn", CART, {**REPLAY, **SEQUENCES, **GRU}),
    "dqn, hindsight": Training("dqn", walk("Reach", do="choice"), {**REPLAY, **HINDSIGHT}),
    "qrdqn": Training("qrdqn", CART, {**REPLAY, "quantiles": 7}, members=3),
    "qrdqn, noisy, dueling": Training("qrdqn", CART, {
        **REPLAY, "quantiles": 7, "model.noisy": True, "model.dueling": True}),
    "qrdqn, resumed": Training("qrdqn", CART, {**REPLAY, **PRIORITIZED, "quantiles": 7}, resumed=True),
}  # fmt: skip
STEPPED = {  # other algorithms that learn from what they have just done
    "pqn": Training("pqn", CART, EPOCHS, members=3),
    "pqn, masks": Training("pqn", walk("Fenced"), EPOCHS),
    "pqn, image, resumed": Training("pqn", walk(see=6), {**IMAGE, "model.encoder": "small"}, resumed=True),
    "trpo": Training("trpo", CART, UNCLIPPED, members=3),
    "trpo, Box, resumed": Training("trpo", PENDULUM, {**UNCLIPPED, "use_sde": True}, resumed=True),
    "ars": Training("ars", PENDULUM, {**SEARCH, "normalize_obs": True}, members=3, varied="delta_std"),
    "ars, layers, resumed": Training("ars", CART, {**SEARCH, "model.layers": 1}, resumed=True, varied="delta_std"),
    "ppo, masks": Training("ppo", walk("Fenced"), EPOCHS, members=2),
    "ppo, overlap, resumed": Training("ppo", PENDULUM, {**EPOCHS, "overlap": True}, resumed=True),
    "behaviours": Training("behaviours", GAME, TWO, members=2, varied="x.gamma"),
    "behaviours, self-play, resumed": Training("behaviours", GAME, {
        **TWO, **{f"{name}.self_play.{key}": value for name in "xo" for key, value in SELF_PLAY.items()}},
        resumed=True, varied="o.gamma"),
    "sb3:PPO": Training("sb3:PPO", CART, {**SB3, "n_steps": 32, "n_epochs": 2}),
    "sb3:TD3, resumed": Training("sb3:TD3", PENDULUM, {
        **SB3, "learning_starts": 50, "buffer_size": 500, "train_freq": 16}, resumed=True),
}  # fmt: skip
OTHERS = {
    "surrogate": Training("surrogate", CART, {"noise": 1.0}, members=3, epochs=5),
    "ppo, restarted": Training("ppo", walk(counts=True), EPOCHS, members=3),
    "ppo, lstm, restarted": Training("ppo", walk(counts=True), {**EPOCHS, **LSTM}),
    "a2c, whole episodes, restarted": Training("a2c", walk(counts=True), {**WHOLE, "min_rollouts": 4}),
    "dqn, restarted": Training("dqn", walk(counts=True), {**REPLAY, **PRIORITIZED, "n_step": 3}),
    "sac, lstm, restarted": Training("sac", walk(counts=True), {**REPLAY, **SEQUENCES}),
    "ppo, of a snapshot": Training("ppo", MUJOCO, EPOCHS),
    "sac, of a snapshot": Training("sac", MUJOCO, REPLAY),
    "ppo2, renewed": Training("ppo2", "LunarLander-v3", EPOCHS),
    "a2c, wrapped": Training("a2c", SCALED, {**ROLLOUT, "num_steps": 8}),
    "ppo, toy text": Training("ppo", "FrozenLake-v1", EPOCHS),
    "ppo, processes": Training("ppo", walk(do="box"), EPOCHS, env_processes=2),
    "ppo2, lessons": Training("ppo2", LESSONS, EPOCHS, members=3),
    "dqn, lessons": Training("dqn", LESSONS, REPLAY),
    "ppo, warm": Training("ppo", CART, {**EPOCHS, "normalize_obs": True}, warm=True),
    "dqn, warm": Training("dqn", CART, {**REPLAY, "use_trained_policy_for_refill": True}, warm=True),
    "sac, warm": Training("sac", PENDULUM, REPLAY, warm=True),
    "a2c, warm, cloning": Training("a2c", CART, {**ROLLOUT, **CLONING}, warm=True, shown=True),
    "ppo, resumed": Training("ppo", walk(do="box"), {**EPOCHS, "normalize_reward": True}, resumed=True),
    "ppo, lstm, restarted, resumed": Training("ppo", walk(counts=True), {**EPOCHS, **LSTM}, resumed=True),
    "a2c, whole episodes, resumed": Training("a2c", CART, {**WHOLE, **RND, "min_rollouts": 6}, resumed=True),
    "svpg, resumed": Training("svpg", CART, {**ROLLOUT, "num_particles": 2}, resumed=True),
    "dqn, resumed": Training("dqn", walk(see="dict"), {**REPLAY, **PRIORITIZED}, resumed=True),
    "sac, lstm, resumed": Training("sac", PENDULUM, {**REPLAY, **SEQUENCES}, resumed=True),
    "sac, warm, resumed": Training("sac", MUJOCO, {**REPLAY, "scale_reward": True}, warm=True, resumed=True),
    "ppo, cloning, resumed": Training("ppo", CART, {**EPOCHS, **CLONING}, shown=True, resumed=True),
}
TRAININGS = {**ON_POLICY, **GUIDED, **OFF_POLICY, **FAMILY, **STEPPED, **OTHERS}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters by dotted names as `init` takes them."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return tree


def has(tree: Any, path: str) -> bool:
    """Whether there is a hyperparameter of this dotted name."""
    name, _, rest = path.partition(".")
    return isinstance(tree, Mapping) and name in tree and (not rest or has(tree[name], rest))


def initialized(training: Training, member: int, **options: Any) -> Any:
    """A member's task."""
    from rekindle import EnvSpec
    from rekindle.tasks import load

    values = {**training.values, training.varied: 0.98 - 0.02 * member}
    older = {RENAMES.get(name, name): value for name, value in values.items()}
    options = {"seed": member + 1, "env_processes": training.env_processes, **options}

    def make(values: dict[str, Any]) -> Any:
        return load(training.task)(EnvSpec.of(training.env), **options).init(**nested(values))

    try:
        return make(values)
    except ValueError:
        if older == values:
            raise
    return make(older)


def demonstrations(training: Training) -> Any:
    """What a policy that has learned nothing sees and does."""
    from rekindle import PPO, EnvSpec

    return PPO(EnvSpec.of(training.env), seed=77).init(**nested(EPOCHS)).record(3, deterministic=False)


def train(training: Training) -> Iterator[Result]:
    """What each member came to."""
    from rekindle import Cohort, Store

    options: dict[str, Any] = {"demonstrations": demonstrations(training)} if training.shown else {}
    if training.warm:
        options["warm_start"] = initialized(training, 5, **options)
        options["warm_start"].fit(1)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/studies.db"
        if training.resumed:
            with Store(url) as store:
                initialized(training, 0, **options, storage=store).fit(1)
            with Store(url) as store:
                task = initialized(training, 0, **options, storage=store)
                assert task.resumed, "it began anew"
                task.fit(training.epochs)
                yield result(task)
            return
    tasks = [initialized(training, member, **options) for member in range(training.members)]
    Cohort(tasks).fit(training.epochs)
    yield from map(result, tasks)


def result(task: Any) -> Result:
    """What a task came to."""
    metrics = {name: value for name, value in task.metrics.items() if "second" not in name}  # no measurements of time
    networks = hashlib.sha256()
    for name, tensor in sorted(task.model.items()):
        networks.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        networks.update(tensor.contiguous().numpy().tobytes())
    text = json.dumps({**metrics, "evaluated": task.evaluate(3)}, sort_keys=True)
    return {"uid": task.uid, "digest": task.digest, "networks": networks.hexdigest(),
            "metrics": hashlib.sha256(text.encode()).hexdigest(),
            "renamed": any(has(task.hyperparameters, older) for older in RENAMES.values())}  # fmt: skip


def print_results(pattern: str) -> None:
    """Trains all that the pattern names, and prints a JSON line for each member."""
    for name, training in TRAININGS.items():
        if not fnmatch(name, f"*{pattern}*"):
            continue
        start = time.perf_counter()
        try:
            results = list(train(training))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others shall be compared
            traceback.print_exc()
            results = [{"error": f"{type(error).__name__}: {error}"}]
        seconds = round(time.perf_counter() - start, 2)
        for member, outcome in enumerate(results):
            place = f"{name} [{member}]" if training.members > 1 else name
            print(json.dumps({"name": place, "seconds": seconds, **outcome}), flush=True)


# --- comparing ---


def results_of(side: Path, pattern: str) -> dict[str, Result]:
    """What every member came to in a checkout, or in a file of an earlier run, by its name."""
    if side.is_file():
        saved: dict[str, Result] = json.loads(side.read_text())
        return {name: outcome for name, outcome in saved.items() if fnmatch(name, f"*{pattern}*")}
    from rekindle.benchmarks.checkouts import importable

    if not side.is_dir():
        raise SystemExit(f"{side} is neither a file that --save wrote nor the root of a checkout")
    module = Path(__file__).stem
    command = [sys.executable, "-c", f"import sys, {module}; {module}.print_results(sys.argv[1])", pattern]
    results: dict[str, Result] = {}
    with (
        importable(side, __file__) as environment,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd="/") as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            outcome = json.loads(line)
            results[outcome.pop("name")] = outcome
            if sys.stderr.isatty():
                print(f"\r{side.name}: {len(results)} members", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if child.returncode:
        raise SystemExit(f"{side} ended with status {child.returncode}; see above")
    return results


def differing(old: Result, new: Result) -> list[str]:
    """What of a member is not the same on both sides."""
    if "error" in old or "error" in new:
        return [
            f"{side}: {outcome['error'][:100]}" for side, outcome in (("old", old), ("new", new)) if "error" in outcome
        ]
    compared = COMPARED if old["renamed"] == new["renamed"] else ("networks", "metrics")
    return [name for name in compared if old[name] != new[name]]


def compare(old: Mapping[str, Result], new: Mapping[str, Result]) -> int:
    """Prints a table of what is equal and what differs; how many members are not the same."""
    missing = {"error": "it is not there"}
    different = 0
    for name in [*old, *(name for name in new if name not in old)]:
        sides = old.get(name, missing), new.get(name, missing)
        wrong = differing(*sides)
        different += bool(wrong)
        same_names = sides[0].get("renamed") == sides[1].get("renamed")
        equal = "equal" if same_names else "equal networks and metrics, a name differs"
        digests = " ".join(side.get("digest", "")[:12].ljust(12) for side in sides)
        print(f"{name:42} {digests}  {'DIFFERS: ' + ', '.join(wrong) if wrong else equal}")
    print(f"{len(old.keys() | new.keys())} members, {different} not the same")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout, or what --save wrote of one")
    parser.add_argument("new", type=Path, nargs="?", help="the other one; without, OLD is trained alone")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="trainings with this in their names; * is any text"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="where to write what OLD gave")
    options = parser.parse_args()
    old = results_of(options.old, options.only)
    if not old:
        parser.error(f"no training is named *{options.only}*")
    if options.save is not None:
        options.save.write_text(json.dumps(old, indent=1) + "\n")
    if options.new is None:
        failed = [f"{name}: {outcome['error']}" for name, outcome in old.items() if "error" in outcome]
        print("\n".join([*failed, f"{len(old)} members, {len(failed)} failed"]))
        sys.exit(bool(failed))
    sys.exit(bool(compare(old, results_of(options.new, options.only))))


if __name__ == "__main__":
    main()
