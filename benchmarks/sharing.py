"""Returns of agents that share a policy, beside Stable-Baselines3 with SuperSuit, at the same settings and steps.

    python benchmarks/sharing.py sisl:pursuit_v5 --steps 300000 [--seeds 3] [--set optimizer.lr=3e-4 ...]
        [--only rekindle]

Both train PPO for the one behaviour of an environment whose agents all stay to the end of an episode, and are evaluated
on the same episodes after the last step, with sampled actions. Settings are Rekindle's defaults, changed by --set.
Steps are those of single agents, rounded up to whole epochs. Processor time is that of training.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from rekindle import Behaviours
from rekindle.benchmarks.learning import show, values_of
from rekindle.benchmarks.peers import stable_baselines
from rekindle.spaces import unflatten

Play = Callable[[dict[str, Any]], dict[str, Any]]


def mean_return(module: Any, play: Play, episodes: int) -> float:
    """The mean of an agent's undiscounted returns of episodes, which are the same for every policy."""
    env, totals = module.parallel_env(), []
    for episode in range(episodes):
        observations, _ = env.reset(seed=10_000 + episode)
        total = 0.0
        while env.agents:
            observations, rewards, *_ = env.step(play(observations))
            total += sum(rewards.values())
        totals.append(total / len(env.possible_agents))
    return statistics.mean(totals)


def agents_of(module: Any) -> int:
    """The number of agents at the start of an episode."""
    return len(module.parallel_env().possible_agents)


def ours(env: str, module: Any, seed: int, values: dict[str, Any]) -> tuple[Behaviours, dict[str, Any]]:
    """Rekindle's task, and the complete hyperparameters of its only behaviour."""
    task = Behaviours(f"pettingzoo/{env}", seed=seed)
    [prefix] = {agent.rpartition("_")[0] + "." for agent in module.parallel_env().possible_agents}
    common = {name: values.pop(name) for name in ("num_envs", "epoch_steps") if name in values}
    task.init(**unflatten(common | {prefix + name: value for name, value in values.items()}))
    hp = values_of(task)
    behaviour = {name.removeprefix(prefix): value for name, value in hp.items() if name.startswith(prefix)}
    return task, behaviour | {name: hp[name] for name in ("num_envs", "epoch_steps")}


def theirs(module: Any, seed: int, hp: dict[str, Any], steps: int) -> Any:
    """Their PPO on as many rows: each agent of each copy is one of their environments."""
    import supersuit
    from stable_baselines3.common.utils import set_random_seed
    from stable_baselines3.common.vec_env import VecMonitor

    rows = supersuit.pettingzoo_env_to_vec_env_v1(module.parallel_env())
    rows = supersuit.concat_vec_envs_v1(rows, hp["num_envs"], base_class="stable_baselines3")
    set_random_seed(seed)  # SuperSuit's rows take no seed, so the algorithm is given none
    return stable_baselines("ppo", VecMonitor(rows), None, hp | {"num_envs": rows.num_envs}, steps)


def compare(name: str, options: argparse.Namespace, module: Any, values: Any, hp: dict[str, Any], steps: int) -> None:
    """Train and evaluate the seeds of one of the two."""
    returns, took = [], 0.0
    for seed in range(options.seeds):
        if name == "rekindle":
            task, _ = ours(options.env, module, seed, dict(values))
            train, play = partial(task.fit, steps // (hp["epoch_steps"] * agents_of(module))), partial(own_policy, task)
        else:
            model = theirs(module, seed, hp, steps)
            train, play = partial(model.learn, steps), partial(shared_policy, model)
        start = time.process_time()
        train()
        took += time.process_time() - start
        returns.append(mean_return(module, play, options.episodes))
        print(f"  seed {seed} of {name}: {returns[-1]:.2f}", flush=True)
    show(name, returns, took)


def own_policy(task: Behaviours, observations: dict[str, Any]) -> dict[str, Any]:
    """Actions of Rekindle's policy for all agents."""
    actions: dict[str, Any] = task.predict(observations, deterministic=False)[0]
    return actions


def shared_policy(model: Any, observations: dict[str, Any]) -> dict[str, Any]:
    """Actions of their policy for all agents."""
    actions, _ = model.predict(np.stack([*observations.values()]), deterministic=False)
    return dict(zip(observations, actions, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", choices=("rekindle", "peer"), help="one of the two")
    options = parser.parse_args()
    torch.set_num_threads(1)
    package = "" if options.env.startswith("mpe2") else "pettingzoo."
    module = importlib.import_module(package + options.env.replace(":", "."))
    try:
        values = {name: ast.literal_eval(value) for name, _, value in (item.partition("=") for item in options.set)}
    except (ValueError, SyntaxError) as error:
        parser.error(f"--set takes NAME=VALUE, with a literal of Python as value: {error}")
    _, hp = ours(options.env, module, 0, dict(values))
    agents = agents_of(module)
    epochs = -(-options.steps // (hp["epoch_steps"] * agents))
    steps = epochs * hp["epoch_steps"] * agents
    print("ppo on", options.env, f"{steps:,} steps of {agents} agents, {options.seeds} seeds", *options.set, flush=True)
    random = np.random.default_rng(1)
    spaces = module.parallel_env().action_space
    print("random actions", mean_return(module, lambda obs: {a: int(random.integers(spaces(a).n)) for a in obs}, 20))
    for name in ("rekindle", "peer"):
        if options.only in (None, name):
            compare(name, options, module, values, hp, steps)


if __name__ == "__main__":
    main()
