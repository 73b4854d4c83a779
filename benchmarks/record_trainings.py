"""Record trainings of many configurations in many environments, the data behind a study's first trials.

    OMP_NUM_THREADS=1 python benchmarks/record_trainings.py FILE [--task ppo] [--limit 500] [--processes 2] [--only ENV]

Each line of FILE is one configuration in one environment with some seeds, as JSON: the mean return of the training's
episodes in each epoch, and the greedy policy's in a few episodes at the epochs in RUNGS. A file that exists is
continued: what it holds is not trained again. Work goes by blocks of configurations through every environment, so
whatever is there when time is up covers all of them about equally.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium

EPOCHS = 27
RUNGS = {3: 5, 9: 5, EPOCHS: 10}  # episodes of an evaluation at these epochs
BATCH = 16  # configurations
SHORT = ("Breakout", "SpaceInvaders")  # train a third of the epochs
SLOW = 8  # seconds of a training from which each seed trains alone

for game in ("breakout", "space_invaders"):  # MinAtar registers none by itself
    if f"MinAtar-{game}-v1" in gymnasium.registry:  # this module runs under two names
        continue
    gymnasium.register(
        f"MinAtar-{game}-v1", "minatar.gym:BaseEnv", max_episode_steps=2500,
        kwargs={"game": game, "use_minimal_action_set": True},
    )  # fmt: skip
FLAT = [
    {"entry_point": "gymnasium.wrappers:FlattenObservation"},
    {"entry_point": "gymnasium.wrappers:DtypeObservation", "kwargs": {"dtype": "float32"}},
]
MODULE = "rekindle.benchmarks.record_trainings"
# Environments with seconds of one core per training, which only balance the work.
ENVIRONMENTS: dict[str, tuple[dict[str, Any], float]] = {
    "CartPole-v1": ({"id": "CartPole-v1"}, 3),
    "Acrobot-v1": ({"id": "Acrobot-v1"}, 3),
    "MountainCar-v0": ({"id": "MountainCar-v0"}, 3),
    "MountainCarContinuous-v0": ({"id": "MountainCarContinuous-v0"}, 3),
    "Pendulum-v1": ({"id": "Pendulum-v1"}, 3),
    "FrozenLake-v1": ({"id": "FrozenLake-v1"}, 5),
    "FrozenLake8x8-v1": ({"id": "FrozenLake8x8-v1"}, 5),
    "CliffWalkingSlippery-v1": ({"id": "CliffWalkingSlippery-v1", "max_episode_steps": 200}, 5),
    "Taxi-v4": ({"id": "Taxi-v4"}, 6),
    "Blackjack-v1": ({"id": "Blackjack-v1"}, 6),
    "LunarLander-v3": ({"id": "LunarLander-v3"}, 11),
    "LunarLanderContinuous-v3": ({"id": "LunarLanderContinuous-v3"}, 11),
    "LunarLander-windy": ({"id": "LunarLander-v3", "kwargs": {"enable_wind": True}}, 12),
    "Swimmer-v5": ({"id": "Swimmer-v5"}, 12),
    "InvertedPendulum-v5": ({"id": "InvertedPendulum-v5"}, 10),
    "Hopper-v5": ({"id": "Hopper-v5"}, 12),
    "HalfCheetah-v5": ({"id": "HalfCheetah-v5"}, 14),
    "Ant-v5": ({"id": "Ant-v5"}, 30),
    "Breakout": ({"id": f"{MODULE}:MinAtar-breakout-v1", "wrappers": FLAT}, 15),
    "SpaceInvaders": ({"id": f"{MODULE}:MinAtar-space_invaders-v1", "wrappers": FLAT}, 15),
    "CartPole-v0": ({"id": "CartPole-v0"}, 3),
}

# Settings of rl-zoo3 for these and similar environments (github.com/DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml), as
# far as they exist here, and few-step changes of the defaults.
SDE = {"use_sde": True, "normalize_obs": True}
LINEAR = {"lr_schedule.name": "linear", "lr_schedule.horizon": EPOCHS * 4096}
PPO: list[dict[str, Any]] = [
    {},
    {"normalize_obs": True},
    {**SDE, "sde_sample_freq": 16, "gamma": 0.999},
    {
        "normalize_obs": True, "gamma": 0.9999, "gae_lambda": 0.98, "optimizer.lr": 6e-4, "num_envs": 4,
        "num_steps": 1024,
    },
    {**SDE, "sde_sample_freq": 4, "gamma": 0.9, "model.std_init": 0.3, "optimizer.lr": 1e-3, "num_steps": 256},
    {
        **SDE, "sde_sample_freq": -1, "gamma": 0.9999, "gae_lambda": 0.9, "optimizer.lr": 1e-4, "ent_coef": 4e-3,
        "clip_coef": 0.1, "max_grad_norm": 5.0, "vf_coef": 0.2, "model.std_init": 0.3, "num_steps": 32,
    },
    {
        **LINEAR, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0, "num_steps": 32, "num_minibatches": 1,
        "update_epochs": 20, "target_kl": None,
    },
    {
        "normalize_obs": True, "gamma": 0.99, "gae_lambda": 0.98, "ent_coef": 0.0, "update_epochs": 4,
        "num_minibatches": 32,
    },
    {
        "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01, "num_steps": 512, "update_epochs": 4,
        "num_minibatches": 32, "optimizer.lr": 3e-4, "target_kl": None,
    },
    {
        "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "optimizer.lr": 3e-4, "target_kl": None,
        "ent_coef": 0.0,
    },
    {
        "normalize_obs": True, "num_envs": 4, "num_steps": 512, "num_minibatches": 32, "gamma": 0.98,
        "gae_lambda": 0.92, "optimizer.lr": 2e-4, "target_kl": None, "max_grad_norm": 0.8, "vf_coef": 0.6,
        "model.std_init": 0.3, "model.activation": "relu", "model.width": 128,
    },
    {"rnd.use": True, "rnd.strength": 0.3, "gamma": 0.999, "normalize_obs": True},
    {"gamma": 0.9999, "gae_lambda": 0.995, "normalize_obs": True, "ent_coef": 1e-4},
    {"ent_coef": 0.05, "gamma": 0.995, "optimizer.lr": 2.5e-3, "model.activation": "relu"},
    {
        "normalize_obs": True, "optimizer.lr": 3e-3, "num_steps": 64, "num_minibatches": 4, "target_kl": 0.05,
        "gamma": 0.98,
    },
    {**SDE, "sde_sample_freq": 8, "gamma": 0.999, "gae_lambda": 0.98, "model.std_init": 1.5, "num_steps": 512},
]  # fmt: skip
# Little noise at the start, as rl-zoo3 has it for HalfCheetah and similar robots; recorded after those that are drawn,
# as all later ones.
LITTLE_NOISE: list[dict[str, Any]] = [
    {"normalize_obs": True, "model.std_init": 0.135},
    {
        "normalize_obs": True, "gamma": 0.98, "gae_lambda": 0.92, "optimizer.lr": 1e-4, "target_kl": None,
        "clip_coef": 0.1, "ent_coef": 4e-4, "max_grad_norm": 0.8, "vf_coef": 0.58, "model.std_init": 0.135,
        "model.activation": "relu", "model.width": 256,
    },
]  # fmt: skip
# Stable-Baselines3's defaults within the ranges of a search: eight environments in place of one.
LIKE_SB3: list[dict[str, Any]] = [
    {"num_steps": 256, "num_minibatches": 32, "optimizer.lr": 3e-4, "target_kl": None, "ent_coef": 1e-6},
    {
        "num_steps": 256, "num_minibatches": 32, "optimizer.lr": 3e-4, "target_kl": None, "ent_coef": 1e-6,
        "normalize_obs": True,
    },
]  # fmt: skip
# More of rl-zoo3's settings, within the ranges of a search: its batches in eight environments, learning rates at least
# 3e-5, at most ten passes, and no schedule, since a study's length is unknown.
NO_LIMIT = {"target_kl": None, "ent_coef": 1e-6}
ROBOT = {"normalize_obs": True, "target_kl": None, "model.std_init": 0.135, "model.activation": "relu"}
LIKE_ZOO: list[dict[str, Any]] = [
    {  # Hopper
        **ROBOT, "model.width": 256, "gamma": 0.999, "gae_lambda": 0.99, "optimizer.lr": 1e-4, "ent_coef": 2.3e-3,
        "update_epochs": 5, "max_grad_norm": 0.7, "vf_coef": 0.84, "num_steps": 64,
    },
    {  # Humanoid
        **ROBOT, "model.width": 256, "gamma": 0.95, "gae_lambda": 0.9, "optimizer.lr": 3.6e-5, "ent_coef": 2.4e-3,
        "clip_coef": 0.3, "update_epochs": 5, "max_grad_norm": 2.0, "vf_coef": 0.43, "num_steps": 64,
        "num_minibatches": 2,
    },
    {  # PyBullet's robots
        **ROBOT, "model.width": 256, "use_sde": True, "sde_sample_freq": 4, "gae_lambda": 0.9, "optimizer.lr": 1e-4,
        "ent_coef": 1e-6, "clip_coef": 0.4, "num_steps": 512, "num_minibatches": 32,
    },
    {  # between these robots and the defaults
        **ROBOT, "model.width": 128, "model.std_init": 0.3, "optimizer.lr": 5e-4, "num_steps": 256,
        "num_minibatches": 32, "ent_coef": 1e-4, "target_kl": 0.02,
    },
    {  # InvertedPendulum
        **NO_LIMIT, "normalize_obs": True, "gamma": 0.999, "gae_lambda": 0.9, "optimizer.lr": 2.2e-4,
        "clip_coef": 0.4, "update_epochs": 5, "max_grad_norm": 0.3, "vf_coef": 0.2, "num_steps": 32,
        "num_minibatches": 4,
    },
    {  # Atari
        "target_kl": None, "optimizer.lr": 2.5e-4, "clip_coef": 0.1, "ent_coef": 0.01, "update_epochs": 4,
        "num_minibatches": 4,
    },
    {**NO_LIMIT, "normalize_obs": True, "optimizer.lr": 2.5e-4},  # MiniGrid
    {  # Acrobot
        **NO_LIMIT, "normalize_obs": True, "gae_lambda": 0.94, "optimizer.lr": 3e-4, "update_epochs": 4,
        "num_steps": 512, "num_minibatches": 32,
    },
    {  # MountainCar
        **NO_LIMIT, "normalize_obs": True, "gae_lambda": 0.98, "optimizer.lr": 3e-4, "update_epochs": 4,
        "num_steps": 32, "num_minibatches": 4,
    },
    {  # BipedalWalkerHardcore
        "normalize_obs": True, "target_kl": None, "ent_coef": 1e-3, "optimizer.lr": 2.5e-4, "num_steps": 512,
        "num_minibatches": 32,
    },
    {  # Swimmer
        **NO_LIMIT, "normalize_obs": True, "gamma": 0.9999, "gae_lambda": 0.98, "optimizer.lr": 6e-4,
        "num_steps": 512,
    },
    {  # CartPole
        **NO_LIMIT, "normalize_obs": True, "gamma": 0.98, "gae_lambda": 0.8, "num_steps": 32, "num_minibatches": 2,
    },
    {  # LunarLander
        "normalize_obs": True, "target_kl": None, "gamma": 0.999, "gae_lambda": 0.98, "optimizer.lr": 3e-4,
        "ent_coef": 0.01, "update_epochs": 4, "num_steps": 512, "num_minibatches": 32,
    },
    {"ent_coef": 0.03, "optimizer.lr": 3e-3, "gamma": 0.995},  # much exploration, large steps
    {  # Pendulum, with plain noise
        **NO_LIMIT, "normalize_obs": True, "gamma": 0.9, "model.std_init": 0.5, "num_steps": 512,
        "num_minibatches": 32,
    },
    {  # Walker2DBullet's noise, with the defaults' steps
        "use_sde": True, "sde_sample_freq": 4, "normalize_obs": True, "model.std_init": 0.135, "gae_lambda": 0.9,
        "num_steps": 256,
    },
]  # fmt: skip
# Configurations of PPO that somebody tuned in an environment; what is chosen without the environment lacks these, too.
TUNED_IN: Mapping[str, Sequence[int]] = {
    "Pendulum-v1": (4, 62), "MountainCarContinuous-v0": (2, 5), "CartPole-v1": (6, 59), "CartPole-v0": (6, 59),
    "LunarLander-v3": (8, 60), "LunarLanderContinuous-v3": (8, 60), "LunarLander-windy": (8, 60), "Hopper-v5": (48,),
    "HalfCheetah-v5": (10, 65), "Swimmer-v5": (3, 58), "InvertedPendulum-v5": (52,), "Acrobot-v1": (7, 55),
    "MountainCar-v0": (7, 56),
}  # fmt: skip
LARGE = {"model.width": 256, "target_interval": 250, "tau": 1.0, "n_step": 1}
DQN: list[dict[str, Any]] = [
    {},
    {
        **LARGE, "optimizer.lr": 2.3e-3, "num_steps": 256, "num_updates": 128, "target_interval": 1280,
        "exploration.final": 0.04,
    },
    {
        **LARGE, "optimizer.lr": 4e-3, "batch_size": 128, "buffer_size": 10_000, "gamma": 0.98, "num_steps": 16,
        "num_updates": 8, "target_interval": 300, "exploration.final": 0.07,
    },
    {**LARGE, "optimizer.lr": 6.3e-4, "batch_size": 128, "num_updates": 4, "exploration.final": 0.1},
    {**LARGE, "optimizer.lr": 1e-4, "exploration.final": 0.01, "num_updates": 1},
    {"gamma": 0.999, "n_step": 5},
    {"model.dueling": True, "replay.name": "prioritized", "optimizer.lr": 5e-4},
    {"optimizer.lr": 3e-4, "tau": 0.01, "num_updates": 4, "model.width": 128},
    {"normalize_obs": True, "optimizer.lr": 3e-3},
    {"rnd.use": True, "rnd.strength": 0.3, "gamma": 0.999, "n_step": 1},
    {"distribution": "quantile", "quantiles": 50, "n_step": 1, "optimizer.lr": 5e-4},
    {"exploration.horizon": 30_000, "gamma": 0.95, "n_step": 1, "tau": 0.02},
]  # fmt: skip
OF_DQN = {  # DQN's defaults, where those of QR-DQN are for millions of frames
    "target_interval": 1, "tau": 0.005, "n_step": 3, "double": True, "num_updates": 2, "batch_size": 64,
    "max_grad_norm": 10.0,
}  # fmt: skip
FASTER = {"optimizer.lr": 3e-4, "tau": 0.01, "num_updates": 4}
QRDQN: list[dict[str, Any]] = [
    {},
    {**OF_DQN, "optimizer.lr": 1e-3},
    {**OF_DQN, "optimizer.lr": 1e-3, "quantiles": 50},
    {**OF_DQN, **FASTER, "model.width": 128},
    {**OF_DQN, **FASTER, "quantiles": 50},
    {**OF_DQN, "normalize_obs": True, "optimizer.lr": 3e-3, "quantiles": 50},
]  # fmt: skip
SAC: list[dict[str, Any]] = [
    {},
    {
        "use_sde": True, "sde_std_init": 0.0255, "entropy.learn": False, "entropy.alpha": 0.1, "num_steps": 32,
        "num_updates": 32, "gamma": 0.9999, "tau": 0.01, "model.width": 64,
    },
    {
        "use_sde": True, "sde_std_init": 0.05, "optimizer.lr": 7.3e-4, "gamma": 0.98, "tau": 0.02, "num_steps": 8,
        "num_updates": 8,
    },
    {"optimizer.lr": 1e-3, "tau": 0.01},
    {"gamma": 0.9999, "normalize_obs": True},
    {"n_step": 5, "model.width": 128},
    {"optimizer.lr": 2e-3, "model.width": 64, "batch_size": 128},
    {"gamma": 0.97, "scale_reward": True, "optimizer.lr": 1e-3},
]  # fmt: skip


def drawn(rng: random.Random) -> dict[str, Any]:
    """Return a configuration of PPO at random, with settings for hard environments among common ones."""
    values: dict[str, Any] = {
        "optimizer.lr": _log(rng, 1e-4, 4e-3),
        "gamma": rng.choice([0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]),
        "gae_lambda": rng.choice([0.8, 0.9, 0.95, 0.98, 0.995]),
        "ent_coef": _log(rng, 1e-6, 1e-1),
        "vf_coef": round(rng.uniform(0.2, 1.0), 2),
        "max_grad_norm": rng.choice([0.5, 0.5, 1.0, 5.0, None]),
        "clip_coef": rng.choice([0.1, 0.2, 0.3, 0.4]),
        "target_kl": rng.choice([None, 0.01, 0.02, 0.05]),
        "update_epochs": rng.choice([3, 5, 10, 10]),
        "num_minibatches": rng.choice([2, 4, 8, 16, 32]),
        "num_steps": rng.choice([32, 64, 128, 256, 512]),
        "normalize_obs": rng.random() < 0.5,
        "normalize_reward": rng.random() < 0.85,
        "model.activation": rng.choice(["tanh", "tanh", "relu", "silu"]),
        "model.width": rng.choice([32, 64, 64, 128]),
        "model.layers": rng.choice([1, 2, 2]),
        "model.std_init": _log(rng, 0.1, 1.5),
    }
    if rng.random() < 0.3:
        values |= {"use_sde": True, "sde_sample_freq": rng.choice([-1, 4, 8, 16, 64])}
    if rng.random() < 0.25:
        values |= LINEAR
    if rng.random() < 0.12:
        values |= {"rnd.use": True, "rnd.strength": _log(rng, 1e-2, 1.0)}
    return values


def _log(rng: random.Random, low: float, high: float) -> float:
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


@dataclass(frozen=True)
class Recording:
    """Trainings of one algorithm.

    Attributes:
        configurations: hyperparameters by dotted name, the defaults first.
        environments: names of ENVIRONMENTS.
        epoch_steps: environment steps of an epoch.
        seeds: number of seeds in each environment.
    """

    configurations: Sequence[Mapping[str, Any]]
    environments: Sequence[str] = tuple(ENVIRONMENTS)
    epoch_steps: int = 4096
    seeds: int = 2


OF_CHOICES = (
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake8x8-v1", "Taxi-v4", "LunarLander-v3", "Breakout",
)  # fmt: skip
OF_BOXES = ("Pendulum-v1", "MountainCarContinuous-v0", "InvertedPendulum-v5", "Swimmer-v5", "Hopper-v5")


@cache
def recordings() -> Mapping[str, Recording]:
    """Return what is recorded of each algorithm; of PPO 68 configurations, half of them drawn."""
    rng = random.Random(36)
    of_ppo = [*PPO, *(drawn(rng) for _ in range(48 - len(PPO))), *LIKE_ZOO, *LITTLE_NOISE, *LIKE_SB3]
    return {
        "ppo": Recording(of_ppo),
        "dqn": Recording(DQN, OF_CHOICES, epoch_steps=2048),
        "qrdqn": Recording(QRDQN, OF_CHOICES, epoch_steps=2048),
        "sac": Recording(SAC, OF_BOXES, epoch_steps=256, seeds=1),
    }


def fitting(env: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values without those that the environment's actions cannot have."""
    from rekindle.tasks.envs import EnvSpec, spaces_of

    if hasattr(spaces_of(EnvSpec.of(env)).action, "low"):
        return values
    return {name: value for name, value in values.items() if "sde" not in name and name != "model.std_init"}


Job = tuple[str, str, int, tuple[int, ...], int, float]


def train(job: Job) -> dict[str, Any]:
    """Train one configuration in one environment with these seeds until a time; return its line."""
    import rekindle
    import torch
    from rekindle.spaces import unflatten
    from rekindle.tasks import load
    from rekindle.tasks.errors import TaskError

    torch.set_num_threads(1)
    algorithm, name, index, seeds, epochs, ends = job
    recording = recordings()[algorithm]
    line: dict[str, Any] = {"env": name, "configuration": index, "seeds": seeds}
    if time.time() > ends:
        return line | {"error": "no time"}
    env = ENVIRONMENTS[name][0]
    training: list[list[float | None]] = [[] for _ in seeds]
    scores: dict[int, list[float | None]] = {}
    began = time.time()
    try:
        values = {**fitting(env, recording.configurations[index]), "epoch_steps": recording.epoch_steps}
        tasks: list[Any] = [load(algorithm)(env, seed=seed).init(**unflatten(values)) for seed in seeds]
        cohort = rekindle.Cohort(tasks)
        for epoch in range(1, epochs + 1):
            if time.time() > ends:
                return line | {"error": "no time"}
            cohort.fit(epoch)
            for curve, task in zip(training, tasks, strict=True):
                curve.append(_short(task.metrics.get("episode_return")))
            if epoch in RUNGS:
                scores[epoch] = [_short(task.evaluate(RUNGS[epoch])) for task in tasks]
    except (TaskError, ValueError, RuntimeError) as error:
        line["error"] = f"{type(error).__name__}: {error}"[:300]
    return line | {"training": training, "scores": scores, "seconds": round(time.time() - began, 2)}


def _short(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def jobs(task: str, done: set[tuple[str, int, int]], only: Sequence[str], count: int, ends: float) -> Iterator[Job]:
    """Yield what is to be trained, block by block of configurations, in each the longest first.

    Both seeds of a fast environment train as one cohort. The second seed of a slow one comes after others' first.
    """
    recording = recordings()[task]
    count = min(count, len(recording.configurations))
    names = sorted(only or recording.environments, key=lambda name: -ENVIRONMENTS[name][1])
    blocks = [range(first, min(first + BATCH, count)) for first in range(0, count, BATCH)]
    order = [(block, place + 2 * later, later) for place, block in enumerate(blocks) for later in (0, 1)]
    for block, _, later in sorted(order, key=lambda entry: entry[1:]):
        for name in names:
            seeds, first = range(recording.seeds), recording.seeds if ENVIRONMENTS[name][1] < SLOW else 1
            now = seeds[first:] if later else seeds[:first]
            for index in block:
                missing = tuple(seed for seed in now if (name, index, seed) not in done)
                if missing:
                    yield task, name, index, missing, 9 if name in SHORT else EPOCHS, ends


def main() -> None:
    """Train what is missing until all is there or time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--task", default="ppo", choices=list(recordings()))
    parser.add_argument("--count", type=int, default=68, help="of configurations")
    parser.add_argument("--only", action="append", default=[], metavar="ENV", choices=list(ENVIRONMENTS))
    options = parser.parse_args()
    ends = time.time() + options.limit
    lines = [json.loads(text) for text in options.file.read_text().splitlines()] if options.file.exists() else []
    done = {(line["env"], line["configuration"], seed) for line in lines for seed in line["seeds"]}
    todo = list(jobs(options.task, done, options.only, options.count, ends))
    print(f"{len(todo)} cohorts to train, {len(lines)} there", flush=True)
    context = multiprocessing.get_context("fork")
    with context.Pool(min(options.processes, 4)) as pool:  # compiles kernels into the cache, before many would
        first = recordings()[options.task].environments[:5]
        pool.map(train, [(options.task, name, 0, (0, 1), 3, ends) for name in first], chunksize=1)
    print(f"kernels are compiled, {ends - time.time():.0f} s left", flush=True)
    with context.Pool(options.processes) as pool, options.file.open("a") as out:
        for number, line in enumerate(pool.imap_unordered(train, todo), 1):
            error = line.get("error")
            if error != "no time":
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
                out.flush()
            if error not in (None, "no time"):
                print(line["env"], line["configuration"], error, flush=True)
            if number % 50 == 0 and error is None:
                print(f"{number} of {len(todo)}, {ends - time.time():.0f} s left", flush=True)


if __name__ == "__main__":
    main()
