"""Environment steps per second beside Stable-Baselines3, in one run, on one thread, with the same settings.

    python benchmarks/speed.py [ppo] [a2c] [dqn] [sac] [--repeat 3]

PPO, A2C: CartPole-v1, 8 environments, two networks of 64-64; PPO 128 steps, 4 epochs x 4 minibatches, Adam; A2C
5 steps, one gradient step, RMSprop. DQN: CartPole-v1, one environment, 64-64, 4 steps per gradient step on a batch of
64. SAC: Pendulum-v1, one environment, a gradient step per step on a batch of 256, networks of 64-64 and of 256-256.

All take turns, and the median of each is compared. A cohort's figure is the sum over its members. Steps are divided by
seconds of processor time, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rekindle
import torch
from rekindle.benchmarks.peers import stable_baselines
from rekindle.spaces import flatten, unflatten
from rekindle.tasks import load


@dataclass(frozen=True)
class Setting:
    """What is timed: `steps` of a peer and of one task, and as many in all of a cohort."""

    title: str
    task: str
    env: str
    steps: int
    cohorts: Sequence[int]
    hyperparameters: dict[str, Any] = field(default_factory=dict)


def _sac(width: int, batch: int, cohorts: Sequence[int]) -> Setting:
    values = {"model.width": width, "batch_size": batch, "learning_starts": 256, "buffer_size": 50_000}
    values["epoch_steps"] = 256
    return Setting(f"SAC {width}-{width}, batch {batch}", "sac", "Pendulum-v1", 512, cohorts, values)


SETTINGS: dict[str, list[Setting]] = {
    "ppo": [Setting("PPO", "ppo", "CartPole-v1", 20_480, (1, 8, 32), {"epoch_steps": 1024})],
    "a2c": [Setting("A2C", "a2c", "CartPole-v1", 20_000, (1, 8, 16), {"num_steps": 5, "epoch_steps": 1000})],
    "dqn": [
        Setting("DQN", "dqn", "CartPole-v1", 8192, (1, 16),
                {"num_steps": 4, "num_updates": 1, "double": False, "n_step": 1, "target_interval": 250, "tau": 1.0,
                 "buffer_size": 100_000, "epoch_steps": 2048})
    ],
    "sac": [_sac(64, 256, (1, 16)), _sac(64, 64, (1, 16)), _sac(256, 256, (1,)), _sac(256, 64, (1,))],
}  # fmt: skip


def their_speed(setting: Setting) -> float:
    """Steps per second of Stable-Baselines3, once it has begun to learn."""
    task = load(setting.task)(setting.env).init(**unflatten(setting.hyperparameters))
    assert task.hyperparameters is not None
    hp = flatten(task.hyperparameters)
    model = stable_baselines(setting.task, setting.env, 0, hp, setting.steps)
    model.learn(2 * hp["epoch_steps"])
    start, before = time.process_time(), model.num_timesteps
    model.learn(setting.steps, reset_num_timesteps=False)
    return float(model.num_timesteps - before) / (time.process_time() - start)


def our_speed(setting: Setting, members: int) -> float:
    """Steps per second, summed over the members, of a cohort that has begun to learn."""
    given = unflatten(setting.hyperparameters)
    tasks = [load(setting.task)(setting.env, seed=seed).init(**given) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(2)
    start, before = time.process_time(), tasks[0].env_steps
    share = setting.steps * 4 // members if members > 1 else setting.steps
    group.fit(2 + max(1, share // setting.hyperparameters["epoch_steps"]))
    return members * (tasks[0].env_steps - before) / (time.process_time() - start)


def compare(setting: Setting, repeat: int) -> None:
    """Prints the figures of one setting."""
    base = "Stable-Baselines3"
    runs: dict[str, Callable[[], float]] = {base: partial(their_speed, setting)}
    for members in setting.cohorts:
        name = "one task" if members == 1 else f"a cohort of {members} (sum)"
        runs[f"Rekindle, {name}"] = partial(our_speed, setting, members)
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            figures[name].append(run())
    reference = statistics.median(figures[base])
    print(f"{setting.title:32}{'env steps/s':>12}{'ratio':>8}")
    for name, values in figures.items():
        print(f"  {name:30}{statistics.median(values):12,.0f}{statistics.median(values) / reference:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(SETTINGS), help=f"{', '.join(SETTINGS)} (all)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if unknown := [name for name in options.algorithms if name not in SETTINGS]:
        parser.error(f"the algorithms are {', '.join(SETTINGS)}, but got {', '.join(unknown)}")
    torch.set_num_threads(1)
    for algorithm in options.algorithms:
        for setting in SETTINGS[algorithm]:
            compare(setting, options.repeat)


if __name__ == "__main__":
    main()
