"""Stable-Baselines3's algorithms, and those of its contrib package, with the hyperparameters of Rekindle's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch

NAMES = {"ppo2": "ppo"}  # theirs, where another one


def stable_baselines(algorithm: str, env: Any, seed: int | None, hp: dict[str, Any], steps: int) -> Any:
    """Their algorithm for our complete hyperparameters `hp`, dotted; `steps` are those of the whole training.

    `env` is an environment's ID, a function that makes one, or a vector environment of theirs.
    """
    from stable_baselines3.common.env_util import make_vec_env

    name = NAMES.get(algorithm, algorithm)
    if name == "ars":
        return _ars(env() if callable(env) else env, seed, hp)
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}[hp["model.activation"]]
    common: dict[str, Any] = {"seed": seed, "device": "cpu", "learning_rate": _lr(hp, steps), "gamma": hp["gamma"]}
    worlds = make_vec_env(env, n_envs=hp["num_envs"], seed=seed) if isinstance(env, str) or callable(env) else env
    nets = [hp["model.width"]] * hp["model.layers"]
    if name in ("ppo", "a2c", "trpo"):
        common["policy_kwargs"] = {"net_arch": {"pi": nets, "vf": nets}, "activation_fn": activation}
        return _on_policy(algorithm, worlds, hp, common)
    common["policy_kwargs"] = {"net_arch": nets, "activation_fn": activation}
    return _off_policy(name, worlds, hp, common, steps)


def _lr(hp: dict[str, Any], steps: int) -> float | Callable[[float], float]:
    """The learning rate, or a function of the part of the training that is left."""
    lr: float = hp["optimizer.lr"]
    if hp["lr_schedule.name"] == "constant":
        return lr
    if hp["lr_schedule.name"] != "linear" or hp["lr_schedule.warmup"]:
        raise SystemExit("they are given a constant or a linear learning rate only; give --only rekindle")
    return lambda left: lr * max(0.0, 1.0 - (1.0 - left) * steps / hp["lr_schedule.horizon"])


def _on_policy(algorithm: str, worlds: Any, hp: dict[str, Any], common: dict[str, Any]) -> Any:
    import stable_baselines3
    from stable_baselines3.common.vec_env import VecNormalize

    if hp["normalize_obs"]:
        raise SystemExit("their policies are evaluated on observations as they are; leave normalize_obs out")
    if hp["normalize_reward"]:
        worlds = VecNormalize(worlds, norm_obs=False, gamma=hp["gamma"])
    name = NAMES.get(algorithm, algorithm)
    if name == "trpo":
        return _trpo(worlds, hp, common)
    model_class, policy = getattr(stable_baselines3, name.upper()), "MlpPolicy"
    if (memory := hp.get("model.memory", "none")) != "none":
        from sb3_contrib import RecurrentPPO

        if (name, memory) != ("ppo", "lstm"):
            raise SystemExit(f"they have PPO with an LSTM only, not {name} with {memory}; give --only rekindle")
        model_class, policy = RecurrentPPO, "MlpLstmPolicy"
        common["policy_kwargs"]["lstm_hidden_size"] = hp["model.width"]
    sde = {"use_sde": hp["use_sde"], "sde_sample_freq": hp.get("sde_sample_freq", -1)}
    if hp["use_sde"]:  # theirs is the deviation of each activation's weight, ours that of an action where all are 1
        log_std = math.log(hp["model.std_init"]) - math.log(hp["model.width"]) / 2
        common["policy_kwargs"] |= {"log_std_init": log_std}
    more: dict[str, Any] = {}
    if name == "ppo":
        clip_value = hp["clip_value"] or (hp["clip_coef"] if algorithm == "ppo2" else None)
        size = hp["num_envs"] * hp["num_steps"] // hp["num_minibatches"]
        more = {
            "n_epochs": hp["update_epochs"],
            "batch_size": size,
            "clip_range": hp["clip_coef"],
            "clip_range_vf": clip_value,
            "target_kl": hp["target_kl"],
        }
    return model_class(
        policy,
        worlds,
        n_steps=hp["num_steps"],
        gae_lambda=hp["gae_lambda"],
        ent_coef=hp["ent_coef"],
        vf_coef=hp["vf_coef"] / 2,  # their value loss lacks the factor 1/2
        max_grad_norm=hp["max_grad_norm"] or 1e9,
        normalize_advantage=hp.get("normalize_advantage", True),
        **sde,
        **common,
        **more,
    )


def _ars(env: Any, seed: int | None, hp: dict[str, Any]) -> Any:
    import sb3_contrib

    if hp["model.layers"] or hp["normalize_obs"]:
        raise SystemExit("ARS is compared with linear policies of observations as they are; leave both out")
    rest = {name: hp[name] for name in ("delta_std", "zero_policy", "alive_bonus_offset")}
    top = max(1, round(hp["top_fraction"] * hp["deltas"]))
    return sb3_contrib.ARS(
        "LinearPolicy", env, n_delta=hp["deltas"], n_top=top, learning_rate=hp["lr"], seed=seed, **rest
    )


def _trpo(worlds: Any, hp: dict[str, Any], common: dict[str, Any]) -> Any:
    import sb3_contrib

    if hp["use_sde"]:
        raise SystemExit("TRPO is compared without use_sde; leave it out")
    return sb3_contrib.TRPO(
        "MlpPolicy",
        worlds,
        n_steps=hp["num_steps"],
        batch_size=hp["num_envs"] * hp["num_steps"] // hp["num_minibatches"],
        gae_lambda=hp["gae_lambda"],
        target_kl=hp["target_kl"],
        cg_max_steps=hp["cg_steps"],
        cg_damping=hp["cg_damping"],
        line_search_shrinking_factor=hp["line_search_factor"],
        line_search_max_iter=hp["line_search_steps"],
        n_critic_updates=hp["update_epochs"],
        normalize_advantage=hp["normalize_advantage"],
        **common,
    )


def _off_policy(name: str, worlds: Any, hp: dict[str, Any], common: dict[str, Any], steps: int) -> Any:
    import stable_baselines3

    common |= {key: hp[key] for key in ("buffer_size", "learning_starts", "batch_size", "tau") if key in hp}
    common |= {"train_freq": hp["num_steps"], "gradient_steps": hp["num_updates"], "n_steps": hp["n_step"]}
    if name in ("sac", "tqc", "crossq"):
        return _soft(name, worlds, hp, common)
    if name in ("td3", "ddpg"):
        return getattr(stable_baselines3, name.upper())("MlpPolicy", worlds, **_deterministic(worlds, hp), **common)
    interval = hp["target_interval"] * hp["num_steps"] * hp["num_envs"] // hp["num_updates"]  # in environment steps
    model_class: Any = stable_baselines3.DQN
    if name == "qrdqn":
        import sb3_contrib

        model_class = sb3_contrib.QRDQN
        common["policy_kwargs"] |= {"n_quantiles": hp["quantiles"], "optimizer_kwargs": {"eps": hp["optimizer.eps"]}}
    return model_class(
        "MlpPolicy",
        worlds,
        target_update_interval=max(1, interval),
        max_grad_norm=hp["max_grad_norm"] or 1e9,
        exploration_fraction=hp["exploration.horizon"] / steps,  # theirs is a fraction of this call's steps
        exploration_initial_eps=hp["exploration.start"],
        exploration_final_eps=hp["exploration.final"],
        **common,
    )


def _soft(name: str, worlds: Any, hp: dict[str, Any], common: dict[str, Any]) -> Any:
    """SAC, TQC or CrossQ."""
    import sb3_contrib
    import stable_baselines3

    alpha, nets = hp["entropy.alpha"], common["policy_kwargs"]
    common["ent_coef"] = f"auto_{alpha}" if hp["entropy.learn"] else alpha
    if name == "crossq":
        nets["net_arch"] = {"pi": nets["net_arch"], "qf": [hp["model.critic_width"]] * hp["model.layers"]}
        return sb3_contrib.CrossQ("MlpPolicy", worlds, policy_delay=hp["policy_delay"], **common)
    common["target_update_interval"] = hp["target_update_interval"]
    if name == "sac":
        return stable_baselines3.SAC("MlpPolicy", worlds, **common)
    nets |= {"n_critics": hp["critics"], "n_quantiles": hp["quantiles"]}
    dropped = hp["dropped_quantiles"]
    return sb3_contrib.TQC("MlpPolicy", worlds, top_quantiles_to_drop_per_net=dropped, **common)


def _deterministic(worlds: Any, hp: dict[str, Any]) -> dict[str, Any]:
    """The arguments of TD3 and DDPG, for actions between -1 and 1."""
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    if hp["exploration.noise"] != "gaussian":
        raise SystemExit("their Ornstein-Uhlenbeck noise has another scale; give --set exploration.noise=gaussian")
    if hp["critic_lr"] not in (None, hp["optimizer.lr"]):
        raise SystemExit("they have one learning rate; give --set critic_lr=null")
    zeros = np.zeros(worlds.action_space.shape)
    noise: dict[str, Any] = {"action_noise": NormalActionNoise(zeros, zeros + hp["exploration.std"])}
    if "policy_delay" in hp:
        noise |= {name: hp[name] for name in ("policy_delay", "target_policy_noise", "target_noise_clip")}
    return noise


def player(model: Any) -> Callable[[Any, bool], Any]:
    """Their greedy policy: the action for an observation, and whether it begins an episode."""
    memory: list[Any] = [None]

    def act(obs: Any, begins: bool) -> Any:
        action, memory[0] = model.predict(
            obs, None if begins else memory[0], episode_start=[begins], deterministic=True
        )
        return action

    return act


def mean_return(env: str | Callable[[], Any], act: Callable[[Any, bool], Any], episodes: int) -> float:
    """The mean return of episodes on Gymnasium's seeds 10000, 10001, ...: the same ones for everybody.

    `env` is an environment's ID, or a function that makes one.
    """
    world, total = env() if callable(env) else gym.make(env), 0.0
    for seed in range(10_000, 10_000 + episodes):
        obs, _ = world.reset(seed=seed)
        begins = True
        while True:
            obs, reward, terminated, truncated, _ = world.step(act(obs, begins))
            total, begins = total + float(reward), False
            if terminated or truncated:
                break
    return total / episodes
