"""Environment steps per second beside Gymnasium: classic control, vectorised here, and other environments in a loop.

    python benchmarks/envs.py [--seconds 0.5] [--processes 1 2] [--pool]

With --processes the others are stepped by so many processes, with --pool by EnvPool on one thread, instead. Actions are
random and made beforehand, resets are included. Figures are the best of three, measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from rekindle.tasks.envs import EnvSpec, make_envs
from rekindle.tasks.envs.base.actions import Actions
from rekindle.tasks.envs.classic.dynamics import MODELS

IDS = sorted(set(MODELS) - {"CartPole-v0"})
LOOPED = ("LunarLander-v3", "BipedalWalker-v3", "Hopper-v5", "HalfCheetah-v5", "FrozenLake-v1")
VARIETY = 64  # different actions


def steps_per_second(step: Callable[[int], Any], num_envs: int, seconds: float) -> float:
    """Calls ``step`` for that long."""
    calls, end, begin = 0, 0.0, time.perf_counter()
    while (end := time.perf_counter()) < begin + seconds:
        for _ in range(16):
            step(calls % VARIETY)
            calls += 1
    return calls * num_envs / (end - begin)


def ours(id: str, num_envs: int, processes: int = 0) -> Callable[[int], Any]:
    """A step of our environments."""
    envs = make_envs(EnvSpec(id), [0], num_envs, processes=processes)
    actions = draw(envs.action_space, num_envs).reshape(VARIETY, 1, num_envs, *(envs.action_space.shape or ()))
    return lambda k: envs.step(actions[k])


def gymnasiums(id: str, num_envs: int) -> Callable[[int], Any]:
    """A step of Gymnasium's vector environment: its own vectorisation where it has one, else its loop."""
    is_vectorized = gym.spec(id).vector_entry_point is not None
    envs = gym.make_vec(id, num_envs, vectorization_mode="vector_entry_point" if is_vectorized else "sync")
    envs.reset(seed=0)
    actions = draw(envs.single_action_space, num_envs).reshape(
        VARIETY, num_envs, *(envs.single_action_space.shape or ())
    )
    return lambda k: envs.step(actions[k])


def draw(space: gym.Space[Any], num_envs: int) -> np.ndarray:
    """Random actions, (VARIETY * num_envs, ...)."""
    actions = Actions(space, "benchmark")
    width = int(np.prod(actions.learner_shape))
    return actions.pick(np.random.default_rng(0).uniform(size=(VARIETY * num_envs, width)))


def compare(columns: Sequence[Callable[[], Callable[[int], Any]]], num_envs: int, seconds: float) -> list[float]:
    """Steps per second of each, the best of three."""
    steps = [make() for make in columns]
    return [
        max(figures)
        for figures in zip(
            *([steps_per_second(step, num_envs, seconds) for step in steps] for _ in range(3)), strict=True
        )
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    parser.add_argument("--processes", type=int, nargs="+", default=[], help="how many step the environments")
    parser.add_argument("--pool", action="store_true", help="compare with EnvPool")
    arguments = parser.parse_args()
    if arguments.processes or arguments.pool:
        names = [f"{n} processes" for n in arguments.processes] + ["EnvPool"] * arguments.pool
        print(f"{'environment':26} {'N':>5} {'in a loop':>12}" + "".join(f"{name:>20}" for name in names))
        for id, num_envs in [(id, n) for id in LOOPED for n in (8, 64)]:
            ways = [partial(ours, id, num_envs)] + [partial(ours, id, num_envs, n) for n in arguments.processes]
            ways += [partial(ours, f"envpool/{id}", num_envs)] * arguments.pool
            loop, *others = compare(ways, num_envs, arguments.seconds)
            row = "".join(f"{figure:12,.0f} {figure / loop:6.2f}x" for figure in others)
            print(f"{id:26} {num_envs:5} {loop:12,.0f}{row}", flush=True)
        return
    print(f"{'environment':26} {'N':>5} {'us / step':>10} {'env steps / s':>15} {'Gymnasium':>12} {'ratio':>7}")
    for id, num_envs in [(id, n) for id in IDS for n in (8, 4096)] + [(id, 8) for id in LOOPED]:
        a, b = compare([partial(make, id, num_envs) for make in (ours, gymnasiums)], num_envs, arguments.seconds)
        print(f"{id:26} {num_envs:5} {num_envs / a * 1e6:10.1f} {a:15,.0f} {b:12,.0f} {a / b:6.1f}x", flush=True)


if __name__ == "__main__":
    main()
