"""DQN beside Stable-Baselines3 on CartPole-v1, at the same settings, on one thread: steps per second, and returns.

    python benchmarks/dqn.py speed [--repeat 3]
    python benchmarks/dqn.py learning [--seeds 5] [--steps 50000]

Speed: 64-64 networks, 4 environment steps per gradient step on a batch of 64. The systems take turns, the median of
each is compared, and a cohort's figure is the sum over its members. Learning: the defaults of Rekindle, given to both;
returns are of 20 greedy episodes after the last step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import rekindle
import torch
from rekindle.spaces import flatten, unflatten

SPEED: dict[str, Any] = {"num_updates": 1, "buffer_size": 100_000, "target_interval": 250, "epoch_steps": 2048}


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """The complete hyperparameters, dotted."""
    values = rekindle.DQN("CartPole-v1").init(**unflatten(given)).hyperparameters
    assert values is not None
    return flatten(values)


def stable_baselines(hp: dict[str, Any], seed: int, horizon: int) -> Any:
    """The same algorithm there; its exploration is scheduled as a fraction of the call's steps."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[hp["model.activation"]]
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=hp["num_envs"], seed=seed),
        learning_rate=hp["optimizer.lr"],
        buffer_size=hp["buffer_size"],
        learning_starts=hp["learning_starts"],
        batch_size=hp["batch_size"],
        tau=hp["tau"],
        gamma=hp["gamma"],
        train_freq=hp["num_steps"],
        gradient_steps=hp["num_updates"],
        # theirs counts environment steps
        target_update_interval=hp["target_interval"] * hp["num_steps"] * hp["num_envs"] // hp["num_updates"],
        exploration_fraction=hp["exploration.horizon"] / horizon,
        exploration_initial_eps=hp["exploration.start"],
        exploration_final_eps=hp["exploration.final"],
        max_grad_norm=hp["max_grad_norm"],
        policy_kwargs={"net_arch": [hp["model.width"]] * hp["model.layers"], "activation_fn": activation},
        seed=seed,
        device="cpu",
    )


def their_speed(hp: dict[str, Any], steps: int) -> float:
    model = stable_baselines(hp, 0, steps)
    model.learn(2048)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def our_speed(members: int, epochs: int) -> float:
    tasks = [rekindle.DQN("CartPole-v1", seed=seed).init(**SPEED) for seed in range(members)]
    group = rekindle.Cohort(tasks)
    group.fit(2)
    start = time.perf_counter()
    group.fit(2 + epochs)
    return members * epochs * SPEED["epoch_steps"] / (time.perf_counter() - start)


def speed(repeat: int) -> None:
    hp = settings(SPEED)
    runs: dict[str, Callable[[], float]] = {
        "Stable-Baselines3 DQN": lambda: their_speed(hp, 8192),
        "Rekindle, one task": lambda: our_speed(1, 8),
        "Rekindle, cohort of 16 (sum)": lambda: our_speed(16, 3),
    }
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            figures[name].append(run())
    base = statistics.median(figures["Stable-Baselines3 DQN"])
    print(f"{'':32}{'env steps/s':>12}{'ratio':>8}")
    for name, values in figures.items():
        print(f"{name:32}{statistics.median(values):12,.0f}{statistics.median(values) / base:8.2f}")


def show(name: str, returns: list[float], took: float) -> None:
    listed = [round(value, 1) for value in returns]
    mean, median = statistics.mean(returns), statistics.median(returns)
    print(f"{name:20}mean {mean:7.1f}  median {median:7.1f}  {listed}  {took:.0f} s", flush=True)


def learning(seeds: int, steps: int, given: dict[str, Any]) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    hp = settings(given)
    tasks = [rekindle.DQN("CartPole-v1", seed=seed).init(**unflatten(given)) for seed in range(seeds)]
    start = time.perf_counter()
    rekindle.Cohort(tasks).fit(-(-steps // hp["epoch_steps"]))
    show("Rekindle", [task.evaluate() for task in tasks], time.perf_counter() - start)
    returns = []
    start = time.perf_counter()
    for seed in range(seeds):
        model = stable_baselines(hp, seed, steps)
        model.learn(steps)
        mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", n_envs=1, seed=10_000), n_eval_episodes=20)
        returns.append(float(str(mean)))
    show("Stable-Baselines3", returns, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "learning"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another hyperparameter")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "speed":
        speed(options.repeat)
    else:
        space = rekindle.DQN("CartPole-v1").learner.hyperparameters
        learning(options.seeds, options.steps, flatten(space.parse(*options.set)))


if __name__ == "__main__":
    main()
