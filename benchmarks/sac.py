"""SAC beside Stable-Baselines3 on Pendulum-v1, at the same settings, on one thread: steps per second, and returns.

    python benchmarks/sac.py speed [--repeat 5]
    python benchmarks/sac.py learning [--seeds 5] [--steps 10000] [--env Pendulum-v1] [--set model.width=64 ...]

Speed: one environment, a gradient step per environment step. The systems take turns, the median of each is compared,
and a cohort's figure is the sum over its members. Steps are divided by the seconds of processor time, so that other
work on the machine counts less. Learning: settings of Rekindle, given to both; returns are of 100 greedy episodes,
the same for both, after the last step.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import rekindle
import torch
from rekindle.spaces import flatten, unflatten
from rekindle.tasks.envs import make_envs
from rekindle.tasks.learner import EVALUATION_SEED

STARTS = 256
EPISODES = 100


def settings(env: str, given: dict[str, Any]) -> dict[str, Any]:
    """The complete hyperparameters, dotted."""
    values = rekindle.SAC(env).init(**unflatten(given)).hyperparameters
    assert values is not None
    return flatten(values)


def stable_baselines(env: str, hp: dict[str, Any], seed: int) -> Any:
    """The same algorithm there."""
    from stable_baselines3 import SAC

    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "elu": torch.nn.ELU}[hp["model.activation"]]
    alpha = hp["entropy.alpha"]
    return SAC(
        "MlpPolicy",
        env,
        learning_rate=hp["optimizer.lr"],
        buffer_size=hp["buffer_size"],
        learning_starts=hp["learning_starts"],
        batch_size=hp["batch_size"],
        tau=hp["tau"],
        gamma=hp["gamma"],
        train_freq=hp["num_steps"],
        gradient_steps=hp["num_updates"],
        ent_coef=f"auto_{alpha}" if hp["entropy.learn"] else alpha,
        target_update_interval=hp["target_update_interval"],
        policy_kwargs={"net_arch": [hp["model.width"]] * hp["model.layers"], "activation_fn": activation},
        seed=seed,
        device="cpu",
    )


def their_speed(given: dict[str, Any], steps: int) -> float:
    model = stable_baselines("Pendulum-v1", settings("Pendulum-v1", given), 0)
    model.learn(STARTS + 100)
    start = time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.process_time() - start)


def our_speed(given: dict[str, Any], members: int, steps: int) -> float:
    given = {**given, "epoch_steps": steps}
    tasks = [rekindle.SAC("Pendulum-v1", seed=seed).init(**unflatten(given)) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(1)
    start = time.process_time()
    group.fit(2)
    return members * steps / (time.process_time() - start)


def speed(repeat: int) -> None:
    print(f"{'':44}{'env steps/s':>12}{'ratio':>8}")
    for width, batch, cohorts in ((64, 256, (1, 16)), (64, 64, (1, 16)), (256, 256, (1,)), (256, 64, (1,))):
        given = {"model.width": width, "batch_size": batch, "learning_starts": STARTS, "buffer_size": 50_000}
        runs: dict[str, Callable[[], float]] = {"Stable-Baselines3": partial(their_speed, given, 400)}
        for members in cohorts:
            name = "Rekindle, one task" if members == 1 else f"Rekindle, cohort of {members} (sum)"
            runs[name] = partial(our_speed, given, members, 400 if members == 1 else 300)
        figures: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeat):
            for name, run in runs.items():
                figures[name].append(run())
        base = statistics.median(figures["Stable-Baselines3"])
        for name, values in figures.items():
            label = f"{width}-{width}, batch {batch}: {name}"
            print(f"{label:44}{statistics.median(values):12,.0f}{statistics.median(values) / base:8.2f}", flush=True)


def return_of(model: Any, env: str) -> float:
    """The mean return of its greedy policy on the episodes that Rekindle's tasks are evaluated on."""
    envs = make_envs(env, [EVALUATION_SEED], EPISODES, purpose="evaluation")
    total, running = np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
    while running.any():
        actions, _ = model.predict(envs.obs[0], deterministic=True)
        step = envs.step(actions[None])
        total += step.reward[0] * running
        running &= ~(step.terminated | step.truncated)[0]
    envs.close()
    return float(total.mean())


def show(name: str, returns: list[float], took: float) -> None:
    listed = [round(value, 1) for value in returns]
    print(f"{name:20}mean {statistics.mean(returns):8.1f}  {listed}  {took:.0f} s", flush=True)


def learning(env: str, seeds: int, steps: int, given: dict[str, Any], alone: bool) -> None:
    hp = settings(env, given)
    tasks = [rekindle.SAC(env, seed=seed).init(**unflatten(given)) for seed in range(seeds)]
    start = time.perf_counter()
    rekindle.Cohort(tasks).fit(-(-steps // hp["epoch_steps"]))
    show("Rekindle", [task.evaluate(EPISODES) for task in tasks], time.perf_counter() - start)
    if alone:
        return
    returns = []
    start = time.perf_counter()
    for seed in range(seeds):
        model = stable_baselines(env, hp, seed)
        model.learn(steps)
        returns.append(return_of(model, env))
    show("Stable-Baselines3", returns, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "learning"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--alone", action="store_true", help="leave Stable-Baselines3 out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "speed":
        speed(options.repeat)
        return
    given = {name: ast.literal_eval(value) for name, _, value in (item.partition("=") for item in options.set)}
    learning(options.env, options.seeds, options.steps, given, options.alone)


if __name__ == "__main__":
    main()
