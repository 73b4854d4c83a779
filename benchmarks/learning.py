"""Returns beside Stable-Baselines3 and its contrib package, at the same settings, seeds and steps.

    python benchmarks/learning.py ppo CartPole-v1 --steps 100000 [--seeds 5] [--set optimizer.lr=3e-4 ...]
        [--only rekindle]

The environment is an ID, or the JSON or @FILE that commands take, such as '{"id": "CartPole-v1", "kwargs": {...}}'.
Settings are Rekindle's defaults, changed by --set, and given to both as far as both have them. Steps are rounded up to
whole epochs. Both are evaluated greedily on the same 50 episodes after the last step. Rekindle trains its seeds as one
cohort.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import rekindle
import torch
from rekindle.benchmarks.peers import mean_return, player, stable_baselines
from rekindle.spaces import flatten, unflatten
from rekindle.studies.cli.commands.options import parse_env
from rekindle.tasks import load
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.envs.base.joined import JoinedActions
from rekindle.tasks.envs.gym.make import make_env


def values_of(task: rekindle.Task) -> dict[str, Any]:
    """The task's complete hyperparameters, dotted."""
    assert task.hyperparameters is not None
    return flatten(task.hyperparameters)


def our_player(task: rekindle.Task) -> Callable[[Any, bool], Any]:
    """The task's greedy policy: the action for an observation, and whether it begins an episode."""
    play = task.player()

    def act(obs: Any, begins: bool) -> Any:
        nonlocal play
        if begins:
            play = task.player()
        return play(obs)

    return act


def world_of(spec: EnvSpec) -> Any:
    """The environment, which takes actions in its own form."""
    env = make_env(spec)
    return env.env if isinstance(env, JoinedActions) else env


def show(name: str, returns: list[float], took: float) -> None:
    """One line of figures."""
    mean, median = statistics.mean(returns), statistics.median(returns)
    listed = ", ".join(f"{value:.1f}" for value in returns)
    print(f"{name:20}mean {mean:8.1f}  median {median:8.1f}  ({listed})  {took:.0f} s of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "task",
        choices=("ppo", "ppo2", "a2c", "trpo", "ars", "pqn", "dqn", "qrdqn", "sac", "ddpg", "td3", "tqc", "crossq"),
    )
    parser.add_argument("env", help="an id, JSON, or @FILE")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", choices=("rekindle", "peer"), help="one of the two")
    options = parser.parse_args()
    torch.set_num_threads(1)
    values = {name: ast.literal_eval(value) for name, _, value in (item.partition("=") for item in options.set)}
    try:
        spec = EnvSpec.of(parse_env(options.env))
    except ValueError as error:
        parser.error(str(error))
    algorithm, make = load(options.task), partial(world_of, spec)
    tasks = [algorithm(spec, seed=seed).init(**unflatten(values)) for seed in range(options.seeds)]
    hp = values_of(tasks[0])
    epochs = -(-options.steps // hp["epoch_steps"])
    steps = epochs * hp["epoch_steps"]
    print(options.task, "on", options.env, f"{steps:,} steps, {options.seeds} seeds", *options.set, flush=True)
    if options.only != "peer":
        start = time.process_time()
        rekindle.Cohort(tasks).fit(epochs)
        took = time.process_time() - start
        show("Rekindle", [mean_return(make, our_player(task), options.episodes) for task in tasks], took)
    if options.only == "rekindle" or options.task == "pqn":  # which they do not have
        return
    returns, took = [], 0.0
    for seed in range(options.seeds):
        model = stable_baselines(options.task, make, seed, hp, steps)
        start = time.process_time()
        model.learn(steps)
        took += time.process_time() - start
        returns.append(mean_return(make, player(model), options.episodes))
        print(f"  seed {seed} of Stable-Baselines3: {returns[-1]:.1f}", flush=True)  # each may take half an hour
    show("Stable-Baselines3", returns, took)


if __name__ == "__main__":
    main()
