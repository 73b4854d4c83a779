"""Learners and suites with signals, cloning and random demonstrations."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from rekindle import PPO
from rekindle.spaces import flatten, unflatten
from rekindle.tasks.signals.demonstrations import Demonstrations
from rekindle.tasks.task import Task
from rekindle.tasks.testing import VariantSuite

SMALL: dict[str, Any] = {
    "epoch_steps": 128,
    "num_steps": 16,
    "num_envs": 4,
    "update_epochs": 2,
    "optimizer.lr": 0.03,
    "max_grad_norm": 0.1,
    "model.width": 16,
}
ICM = {"icm.use": True, "icm.strength": 0.1, "icm.width": 16}
RND = {"rnd.use": True, "rnd.width": 17}
GAIL = {"gail.use": True, "gail.width": 16}
VAIL = {**GAIL, "gail.variational": True, "gail.code_width": 17}
CLONING = {"cloning.use": True, "cloning.batch_size": 32, "cloning.samples_per_update": 64}


@cache
def shown(env: str = "CartPole-v1", steps: int = 60, seed: int = 0) -> Demonstrations:
    """Return demonstrations of random actions."""
    world, rng, episodes = gym.make(env), np.random.default_rng(seed), []
    world.action_space.seed(seed)
    for episode in range(3):
        obs, _ = world.reset(seed=seed + episode)
        saw, did = [], []
        for _ in range(int(rng.integers(steps // 4, steps // 3))):
            saw.append(obs)
            did.append(world.action_space.sample())
            obs, _, terminated, truncated, _ = world.step(did[-1])
            if terminated or truncated:
                break
        episodes.append((saw, did))
    world.close()
    return Demonstrations.of(env, *episodes)


class DemonstratedSuite(VariantSuite):
    """The exactness suite for tasks with demonstrations."""

    task = PPO
    inert = frozenset({"model.std_init"})  # affects only the initial state

    def make(self, seed: int = 3, **changes: Any) -> Task:
        values = {**flatten(self.hyperparameters), **flatten(changes)}
        learns = values.get("gail.use") or values.get("cloning.use")
        examples = shown(str(self.env)) if learns else None
        return self.task(self.env, seed=seed, demonstrations=examples, device=self.device).init(**unflatten(values))


def built(task: type[Any] = PPO, env: str = "CartPole-v1", members: int = 2, **hyperparameters: Any) -> Any:
    """Return a learner, of two members by default."""
    values = unflatten({"num_steps": 16, "num_envs": 3, "num_minibatches": 1, **flatten(hyperparameters)})
    learns = "cloning" in values or "gail" in values
    tasks = [
        task(env, seed=seed, demonstrations=shown(env) if learns else None).init(**values) for seed in range(members)
    ]
    return tasks[0].build_learner(tasks)


def signals_of(learner: Any) -> dict[str, Any]:
    return {signal.name: signal for signal in learner.guidance.signals}
