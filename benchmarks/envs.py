"""Environment steps per second beside Gymnasium: classic control, vectorised here, and other environments in a loop.

    python benchmarks/envs.py [--seconds 0.5]

Actions are random and made beforehand, resets are included. Figures are the best of three, measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from rekindle.tasks.envs import EnvSpec, make_envs
from rekindle.tasks.envs.dynamics import MODELS
from rekindle.tasks.envs.encode import Actions

IDS = sorted(set(MODELS) - {"CartPole-v0"})
LOOPED = ("LunarLander-v3", "BipedalWalker-v3", "Hopper-v5", "FrozenLake-v1")
VARIETY = 64  # different actions


def steps_per_second(step: Callable[[int], Any], num_envs: int, seconds: float) -> float:
    """Calls ``step`` for that long."""
    calls, end, begin = 0, 0.0, time.perf_counter()
    while (end := time.perf_counter()) < begin + seconds:
        for _ in range(16):
            step(calls % VARIETY)
            calls += 1
    return calls * num_envs / (end - begin)


def ours(id: str, num_envs: int) -> Callable[[int], Any]:
    """A step of our environments."""
    envs = make_envs(EnvSpec(id), [0], num_envs)
    actions = draw(envs.action_space, num_envs).reshape(VARIETY, 1, num_envs, *(envs.action_space.shape or ()))
    return lambda k: envs.step(actions[k])


def gymnasiums(id: str, num_envs: int) -> Callable[[int], Any]:
    """A step of Gymnasium's vector environment: its own vectorisation where it has one, else its loop."""
    own = gym.spec(id).vector_entry_point is not None
    envs = gym.make_vec(id, num_envs, vectorization_mode="vector_entry_point" if own else "sync")
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


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    seconds = parser.parse_args().seconds
    print(f"{'environment':26} {'N':>5} {'us / step':>10} {'env steps / s':>15} {'Gymnasium':>12} {'ratio':>7}")
    for id, num_envs in [(id, n) for id in IDS for n in (8, 4096)] + [(id, 8) for id in LOOPED]:
        mine, theirs = ours(id, num_envs), gymnasiums(id, num_envs)
        pairs = [[steps_per_second(step, num_envs, seconds) for step in (mine, theirs)] for _ in range(3)]
        a, b = (max(figures) for figures in zip(*pairs, strict=True))
        print(f"{id:26} {num_envs:5} {num_envs / a * 1e6:10.1f} {a:15,.0f} {b:12,.0f} {a / b:6.1f}x", flush=True)


if __name__ == "__main__":
    main()
