"""Training of a model by one call of its `learn`, as its library does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rekindle.spaces.choices import Argument
from rekindle.tasks import Task
from rekindle.tasks.adapters.model_envs import TaskVecEnv
from rekindle.tasks.adapters.model_spaces import OWN, POLICIES
from rekindle.tasks.envs import make_envs
from rekindle.tasks.rng import streams
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize


def one_call_of_learn(algorithm: type[Any], task: Task, steps: int) -> Any:
    """Return a model of the library's own class, trained in a task's environments with its values."""
    values, space = task.hyperparameters or {}, task.learner.hyperparameters.flat()
    envs: VecEnv = TaskVecEnv(make_envs(task.env, [task.seed], values["num_envs"]), task.env)
    if values["normalize"] == "both":
        envs = VecNormalize(envs, gamma=0.99)
    options = {name: value for name, value in values.items() if name not in OWN and value is not None}
    for name in options:
        if isinstance(dimension := space[name], Argument):
            options[name] = dimension.value(options[name])
    if "noise_std" in values:
        options["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, values["noise_std"]))
    seed, threads, before = streams.seed_of(task.seed, "sb3"), torch.get_num_threads(), np.random.get_state()
    with torch.random.fork_rng():
        torch.set_num_threads(1)
        policy = options.pop("policy", POLICIES.get(algorithm.__name__, ("MlpPolicy",))[0])
        alone = algorithm(policy, envs, seed=seed, device="cpu", **options)
        alone.learn(steps)
        torch.set_num_threads(threads)
    np.random.set_state(before)
    return alone
