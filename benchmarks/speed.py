"""Environment steps per second beside Stable-Baselines3, in one run, on one thread, with the same settings.

    python benchmarks/speed.py [ppo] [a2c] [--repeat 3]

CartPole-v1, 8 environments, two networks of 64-64. PPO: 128 steps, 4 epochs x 4 minibatches, Adam. A2C: 5 steps, one
gradient step, RMSprop. All take turns; the median of each is compared. A cohort's figure is the sum over its members.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rekindle
import torch
from rekindle.tasks import load

EPOCH = 1000  # steps, about
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 128, "update_epochs": 4, "num_minibatches": 4, "epoch_steps": 1024},
    "a2c": {"num_envs": 8, "num_steps": 5, "epoch_steps": EPOCH},
}
THEIRS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 128, "batch_size": 256, "n_epochs": 4},
    "a2c": {"n_steps": 5},
}
COHORTS = {"ppo": (1, 8, 32), "a2c": (1, 8, 16)}


def stable_baselines(algorithm: str, steps: int) -> float:
    """Steps per second of Stable-Baselines3."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    model = getattr(stable_baselines3, algorithm.upper())(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), seed=0, device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}}, **THEIRS[algorithm],
    )  # fmt: skip
    model.learn(2 * EPOCH)
    start, before = time.perf_counter(), model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return float(model.num_timesteps - before) / (time.perf_counter() - start)


def cohort(algorithm: str, members: int, steps: int) -> float:
    """Steps per second, summed over the members, of a cohort."""
    tasks = [load(algorithm)("CartPole-v1", seed=seed).init(**SETTINGS[algorithm]) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(epochs=2)
    start, before = time.perf_counter(), tasks[0].env_steps
    group.fit(epochs=2 + max(1, steps // EPOCH))
    return members * (tasks[0].env_steps - before) / (time.perf_counter() - start)


def compare(algorithm: str, repeat: int) -> None:
    """Prints the figures of one algorithm."""
    base = f"Stable-Baselines3 {algorithm.upper()}"
    runs: dict[str, Callable[[], float]] = {base: partial(stable_baselines, algorithm, 20 * EPOCH)}
    for members in COHORTS[algorithm]:
        name = "one task" if members == 1 else f"cohort of {members} (sum)"
        runs[f"Rekindle, {name}"] = partial(cohort, algorithm, members, max(8, 60 // members) * EPOCH)
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            figures[name].append(run())
    reference = statistics.median(figures[base])
    print(f"{algorithm.upper():32}{'env steps/s':>12}{'ratio':>8}")
    for name, values in figures.items():
        print(f"{name:32}{statistics.median(values):12,.0f}{statistics.median(values) / reference:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=sorted(SETTINGS, reverse=True), help="ppo, a2c (both)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if unknown := [name for name in options.algorithms if name not in SETTINGS]:
        parser.error(f"the algorithms are {', '.join(SETTINGS)}, but got {', '.join(unknown)}")
    torch.set_num_threads(1)
    for algorithm in options.algorithms:
        compare(algorithm, options.repeat)


if __name__ == "__main__":
    main()
