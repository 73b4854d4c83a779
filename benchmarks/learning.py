"""Returns of PPO or A2C beside Stable-Baselines3, at the same settings, seeds and steps.

    python benchmarks/learning.py CartPole-v1 [--task a2c] --steps 100000 [--seeds 5] [--set optimizer.lr=3e-4 ...]

Both are evaluated greedily on the same 50 episodes after the last step. Rekindle trains its seeds as one cohort.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import rekindle
import torch
from rekindle.spaces import flatten, unflatten
from rekindle.tasks import load


def values_of(task: rekindle.Task) -> dict[str, Any]:
    """The task's complete hyperparameters, dotted."""
    assert task.hyperparameters is not None
    return flatten(task.hyperparameters)


def mean_return(env: str, act: Callable[[Any], Any], episodes: int = 50) -> float:
    """The mean return of greedy episodes on Gymnasium's seeds 10000, 10001, ...: the same ones for everybody."""
    world, total = gym.make(env), 0.0
    for seed in range(10_000, 10_000 + episodes):
        obs, _ = world.reset(seed=seed)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = world.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
    return total / episodes


def ours(
    algorithm: str, env: str, seeds: int, steps: int, given: dict[str, Any]
) -> tuple[list[float], float, dict[str, Any]]:
    """Returns by seed, seconds, and the settings used."""
    tasks = [load(algorithm)(env, seed=seed).init(**unflatten(given)) for seed in range(seeds)]
    hp = values_of(tasks[0])
    start = time.perf_counter()
    rekindle.Cohort(tasks).fit(-(-steps // hp["epoch_steps"]))
    took = time.perf_counter() - start
    return [mean_return(env, task.act) for task in tasks], took, hp


def stable_baselines(algorithm: str, env: str, seed: int, steps: int, hp: dict[str, Any]) -> float:
    """One seed's return after the same steps with the same settings."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    nets = [hp["model.width"]] * hp["model.layers"]
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[hp["model.activation"]]
    more: dict[str, Any] = {}
    if algorithm == "ppo":
        size = hp["num_envs"] * hp["num_steps"] // hp["num_minibatches"]
        more = {"n_epochs": hp["update_epochs"], "batch_size": size, "clip_range": hp["clip_coef"]}
    model = getattr(stable_baselines3, algorithm.upper())(
        "MlpPolicy", make_vec_env(env, n_envs=hp["num_envs"], seed=seed), seed=seed, device="cpu",
        learning_rate=hp["optimizer.lr"], n_steps=hp["num_steps"], gamma=hp["gamma"], gae_lambda=hp["gae_lambda"],
        ent_coef=hp["ent_coef"], vf_coef=hp["vf_coef"] / 2,  # its value loss lacks the factor 1/2
        max_grad_norm=hp["max_grad_norm"] or 1e9, normalize_advantage=hp["normalize_advantage"],
        policy_kwargs={"net_arch": {"pi": nets, "vf": nets}, "activation_fn": activation}, **more,
    )  # fmt: skip
    model.learn(steps)
    return mean_return(env, lambda obs: model.predict(obs, deterministic=True)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--task", choices=("ppo", "a2c"), default="ppo")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--alone", action="store_true", help="leave Stable-Baselines3 out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = {name: ast.literal_eval(value) for name, _, value in (item.partition("=") for item in options.set)}
    returns, took, hp = ours(options.task, options.env, options.seeds, options.steps, given)
    print(f"{options.env}, {options.steps} steps, seeds 0..{options.seeds - 1}")
    print(f"Rekindle           mean {statistics.mean(returns):8.1f}  {[round(r, 1) for r in returns]}  {took:.0f} s")
    if not options.alone:
        start = time.perf_counter()
        theirs = [stable_baselines(options.task, options.env, seed, options.steps, hp) for seed in range(options.seeds)]
        took = time.perf_counter() - start
        print(f"Stable-Baselines3  mean {statistics.mean(theirs):8.1f}  {[round(r, 1) for r in theirs]}  {took:.0f} s")


if __name__ == "__main__":
    main()
