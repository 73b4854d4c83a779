"""Environment steps per second of PPO beside Stable-Baselines3, in one run, on one thread, with the same settings.

    python benchmarks/speed.py [--repeat 3]

CartPole-v1, 8 environments x 128 steps, 4 epochs x 4 minibatches, two networks of 64-64, Adam. The two take turns; the
median of each is compared. A cohort's figure is the sum over its members.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import rekindle
import torch

SETTINGS: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 128,
    "update_epochs": 4,
    "num_minibatches": 4,
    "epoch_steps": 1024,
}


def stable_baselines(steps: int) -> float:
    """Steps per second of Stable-Baselines3's PPO."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    nets = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=256, n_epochs=4, seed=0, device="cpu", policy_kwargs=nets)
    model.learn(2 * 1024)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def cohort(members: int, steps: int) -> float:
    """Steps per second, summed over the members, of a cohort."""
    tasks = [rekindle.PPO("CartPole-v1", seed=seed).init(**SETTINGS) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(epochs=2)
    epochs = max(1, steps // 1024)
    start = time.perf_counter()
    group.fit(epochs=2 + epochs)
    return members * epochs * 1024 / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    torch.set_num_threads(1)
    runs: dict[str, Callable[[], float]] = {
        "Stable-Baselines3 PPO": lambda: stable_baselines(20 * 1024),
        "Rekindle, one task": lambda: cohort(1, 60 * 1024),
        "Rekindle, cohort of 8 (sum)": lambda: cohort(8, 20 * 1024),
        "Rekindle, cohort of 32 (sum)": lambda: cohort(32, 8 * 1024),
    }
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            figures[name].append(run())
    base = statistics.median(figures["Stable-Baselines3 PPO"])
    print(f"{'':32}{'env steps/s':>12}{'ratio':>8}")
    for name, values in figures.items():
        print(f"{name:32}{statistics.median(values):12,.0f}{statistics.median(values) / base:8.2f}")


if __name__ == "__main__":
    main()
