"""Settings of rl-zoo3 for Stable-Baselines3's PPO, as tasks `sb3:PPO` and classes of it.

They are those of github.com/DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, commit 22e3ff24, for the newest version of
an environment that it has. What is no hyperparameter of the task is chosen by a class. `ent_coef` of 0 is 1e-8, the
least that the task takes.
"""

from __future__ import annotations

from functools import partial
from operator import mul
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv
from torch import nn


class Falling(PPO):
    """PPO with a learning rate and a clip range that fall to 0."""

    def __init__(self, policy: str, env: VecEnv, **options: Any):
        falling = {name: partial(mul, options[name]) for name in ("learning_rate", "clip_range")}
        super().__init__(policy, env, **{**options, **falling})


class OftenNewNoise(PPO):
    """PPO with noise that depends on the state and is new every fourth step."""

    def __init__(self, policy: str, env: VecEnv, **options: Any):
        super().__init__(policy, env, **{**options, "use_sde": True, "sde_sample_freq": 4})


class LittleNoise(PPO):
    """PPO with little noise that depends on the state."""

    def __init__(self, policy: str, env: VecEnv, **options: Any):
        networks = {"log_std_init": -3.29, "ortho_init": False}
        super().__init__(policy, env, **{**options, "use_sde": True, "policy_kwargs": networks})


class Wide(PPO):
    """PPO with networks of 256 and 256 ReLU and little noise."""

    def __init__(self, policy: str, env: VecEnv, **options: Any):
        networks = {"net_arch": [256, 256], "activation_fn": nn.ReLU, "log_std_init": -2.0, "ortho_init": False}
        super().__init__(policy, env, **{**options, "policy_kwargs": networks})


DEFAULTS: dict[str, Any] = {"n_steps": 2048, "ent_coef": 1e-8}  # of SB3, where those of the task differ
CARTPOLE = {
    "num_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
    "learning_rate": 1e-3,
}  # fmt: skip
LANDER = {"num_envs": 16, "n_steps": 1024, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01}
TUNED: dict[str, tuple[type[PPO], dict[str, Any]]] = {
    "CartPole-v0": (Falling, CARTPOLE),  # those of CartPole-v1, which only lasts longer
    "CartPole-v1": (Falling, CARTPOLE),
    "Acrobot-v1": (PPO, {"normalize": "both", "num_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4}),
    "MountainCar-v0": (PPO, {"normalize": "both", "num_envs": 16, "n_steps": 16, "gae_lambda": 0.98, "n_epochs": 4}),
    "MountainCarContinuous-v0": (
        LittleNoise,
        {
            "normalize": "both", "n_steps": 8, "batch_size": 256, "gamma": 0.9999, "learning_rate": 7.77e-5,
            "ent_coef": 0.00429, "clip_range": 0.1, "gae_lambda": 0.9, "max_grad_norm": 5.0, "vf_coef": 0.19,
        },
    ),
    "Pendulum-v1": (OftenNewNoise, {"num_envs": 4, "n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3}),
    "LunarLander-v3": (PPO, LANDER),
    "LunarLanderContinuous-v3": (PPO, LANDER),
    "LunarLander-windy": (PPO, LANDER),
    "Swimmer-v5": (
        PPO,
        {
            "normalize": "both", "num_envs": 4, "n_steps": 1024, "batch_size": 256, "gamma": 0.9999,
            "learning_rate": 6e-4, "gae_lambda": 0.98,
        },
    ),
    "InvertedPendulum-v5": (
        PPO,
        {
            "normalize": "both", "n_steps": 32, "gamma": 0.999, "learning_rate": 0.000222425, "ent_coef": 1.37976e-7,
            "clip_range": 0.4, "n_epochs": 5, "gae_lambda": 0.9, "max_grad_norm": 0.3, "vf_coef": 0.19816,
        },
    ),
    "Hopper-v5": (
        Wide,
        {
            "normalize": "both", "batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-5,
            "ent_coef": 0.00229519, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671,
        },
    ),
    "HalfCheetah-v5": (
        Wide,
        {
            "normalize": "both", "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-5, "ent_coef": 0.000401762,
            "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
        },
    ),
}  # fmt: skip
