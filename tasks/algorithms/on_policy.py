"""Hyperparameters, checks and construction of algorithms that learn from rollouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...spaces import Dimension, Space, categorical, integer, log_real, maybe, near_one, ordinal, real
from ..envs import EnvSpec, spaces_of
from ..envs.base.masks import mask_in
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..evaluation.seeds import evaluation_keys
from ..experience.normalizers import ObservationNormalizer, RewardNormalizer
from ..experience.recurrent_rollout import RecurrentAgent
from ..experience.returns import critic_loss_choice
from ..experience.rollout import Agent, Noise, StepNoise
from ..experience.whole_episodes import whole_episodes_space
from ..learner import Learner
from ..networks.actor_critic import ActorCriticForm, model_space
from ..networks.compiled_actor_critic import actor_critic
from ..networks.distributions import Gaussian, distribution_for, units_in
from ..networks.encoders import ENCODERS, check_encoder, unused_by_networks
from ..networks.goal_conditioning import goal_of
from ..networks.optimizers import SCHEDULED, decay_space, optimizer_space, schedule_space
from ..networks.recurrent import RecurrentActorCritic
from ..networks.sde import Perturbations, StateDependentGaussian, state_dependent
from ..rng.streams import Keys
from ..runtime.episode_window import window_size
from ..signals.guidance import check_guidance, guidance_space
from .collectors import overlap_choice


def on_policy_space(
    lr: float, optimizer: str = "adam", num_steps: int = 128, steps: Sequence[int] = (32, 64, 128, 256), **more: Any
) -> Space:
    """Return the hyperparameters of every on-policy algorithm.

    Advantages are always standardized, unless there is a hyperparameter `normalize_advantage`.

    Args:
        lr: default learning rate.
        optimizer: default optimizer.
        num_steps: default number of steps in a rollout.
        steps: values of num_steps to search.
        more: further hyperparameters of the algorithm, or others in place of those of the same name; None leaves one
            out.
    """
    first: dict[str, Dimension | Space] = {
        "optimizer": optimizer_space(lr=lr, name=optimizer, eps=1e-5),
        "lr_schedule": schedule_space(),
        "model": model_space(),
        "gamma": near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        "gae_lambda": near_one(0.8, 0.995, default=0.95, accept=(0.0, 1.0)),
        "ent_coef": log_real(1e-6, 1e-1, default=1e-3, accept=(0.0, 1e3)),
        "ent_coef_schedule": decay_space(),
        "vf_coef": real(0.2, 1.0, default=0.5, accept=(0.0, 1e3)),
        "critic_loss": critic_loss_choice(),
        "max_grad_norm": maybe(log_real(0.1, 5.0, accept=(1e-6, 1e6)), default=0.5),
        # Learning rate of the critic's parameters, on the same schedule; None for the optimizer's.
        "critic_lr": maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False, silent=True),
    }
    last: dict[str, Dimension | Space] = {
        "update_epochs": integer(1, 10, default=1, accept=(1, 1000), structural=True, search=False),
        "num_minibatches": ordinal(1, 2, 4, default=1, accept=(1, 65536), structural=True, search=False),
        # State-dependent exploration in a Box, see `sde`; its noise is drawn every sde_sample_freq steps, or with -1
        # once per rollout.
        "use_sde": categorical(False, True, default=False, structural=True, search=False),
        "sde_sample_freq": integer(-1, 1_000_000, default=-1, structural=True, search=False, when={"use_sde": True}),
        "num_steps": ordinal(*steps, default=num_steps, accept=(1, 1_000_000), structural=True),
        "num_envs": integer(1, 65536, default=8, structural=True, search=False),
        "epoch_steps": integer(1, 10**9, default=4096, structural=True, search=False),
        "normalize_obs": categorical(False, True, default=False, structural=True, search=False),
        # The critic's gradient would outweigh the actor's where returns are large: both share max_grad_norm.
        "normalize_reward": categorical(False, True, default=True, structural=True, search=False),
        "stats_window_size": window_size(),
        "overlap": overlap_choice(),
        **whole_episodes_space(silent=True),
        **guidance_space(),
    }
    entries = {**first, **dict.fromkeys(more), **last, **more}
    return Space(**{name: entry for name, entry in entries.items() if entry is not None})


def hard_environments() -> dict[str, Any]:
    """Return hyperparameters that few environments need changed.

    A change has a small prior probability. These decide where random actions earn nothing (state-dependent noise,
    which lasts), or where observations and returns have other scales than 1.
    """
    return {
        "use_sde": categorical(False, True, default=False, structural=True, weights=(7, 1)),
        "sde_sample_freq": ordinal(
            -1, 4, 8, 16, 64, default=-1, accept=(-1, 1_000_000), structural=True, when={"use_sde": True}
        ),
        "normalize_obs": categorical(False, True, default=False, structural=True, weights=(2, 1)),
        "normalize_reward": categorical(False, True, default=True, structural=True, weights=(1, 7)),
    }


def normalize_advantage(default: bool | str, search: bool = False) -> Dimension:
    """Return the hyperparameter for the standardization of advantages.

    False turns it off, True standardizes within each minibatch, "running" by running moments.
    """
    return categorical(False, True, "running", default=default, structural=True, search=search)


def check_on_policy(learner: type[Learner], values: Mapping[str, Any]) -> None:
    """Raise ValueError if on-policy hyperparameters contradict each other.

    The values of `on_policy_space` and `guidance_space` are checked.
    """
    algorithm = learner.algorithm()
    check_guidance(values, algorithm)
    check_minibatches(values, "num_minibatches", values.get("num_minibatches", 1), algorithm)
    if values["model"]["shared_critic"] and values["model"]["critic_hidden"]:
        raise ValueError(
            f"{algorithm}: model.shared_critic gives the critic the actor's layers, but model.critic_hidden is "
            f"{values['model']['critic_hidden']}; leave one of them out"
        )
    if values.get("sde_sample_freq") == 0:
        raise ValueError(
            f"{algorithm}: sde_sample_freq must be -1, for once per rollout, or a number of steps, but got 0; try 1"
        )
    for name in SCHEDULED:
        schedule = f"{name}_schedule"
        if schedule in values and values[schedule]["name"] != "constant" and values[name] is None:
            raise ValueError(
                f"{algorithm}: {schedule} needs a {name} to act on, but {name} is None; give {name}, or leave "
                f"{schedule} out"
            )


def check_minibatches(values: Mapping[str, Any], name: str, parts: int, algorithm: str) -> None:
    """Raise ValueError unless a rollout splits evenly into `parts` minibatches.

    With a memory, minibatches consist of whole environments, and there are at most num_envs.
    """
    size, quantity = values["num_steps"] * values["num_envs"], "num_steps * num_envs"
    if values["model"]["memory"] != "none":
        size, quantity, parts = values["num_envs"], "with a memory, num_envs", min(parts, values["num_envs"])
    if size % parts:
        raise ValueError(
            f"{algorithm}: {quantity} ({size}) must be divisible by {name} ({parts}); try "
            f"{name}={math.gcd(size, parts)}"
        )


def check_model(learner: type[Learner], env: EnvSpec, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedSpace if the environment's spaces rule out the model.

    State-dependent exploration is checked, too.
    """
    subject = f"{learner.algorithm()} on {env.id}"
    check_encoder(values["model"], env, subject)
    if goal_of(values["model"], env, subject) is not None and values["model"]["encoder"] not in ENCODERS:
        raise UnsupportedSpace(
            f"{subject}: model.goal_conditioning makes the first layer, and so does model.encoder "
            f"{values['model']['encoder']!r}; leave one of them out"
        )
    masked = Observations(spaces_of(env).observation, subject).mask is not None
    if masked and values["model"]["goal_conditioning"] != "none":
        raise UnsupportedSpace(
            f"{subject}: model.goal_conditioning takes the whole observation, but a part is an action mask; leave it "
            "out"
        )
    if values["use_sde"]:
        state_dependent(spaces_of(env).action, 1, subject)


def units(learner: type[Learner], env: EnvSpec) -> tuple[str, ...]:
    """Return the names of data in units of the bounds of spaces."""
    scaled = units_in(spaces_of(env).action, f"{learner.algorithm()} on {env.id}") is not None
    return (*Learner.units(env), *["actions"] * scaled)


def check_actions(learner: type[Learner], env: EnvSpec) -> None:
    """Raise UnsupportedSpace unless a policy can act in the environment."""
    distribution_for(spaces_of(env).action, f"{learner.algorithm()} on {env.id}")


def without_effect(learner: type[Learner], env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
    """Return on-policy hyperparameters that have no effect in an environment."""
    distribution = distribution_for(spaces_of(env).action, f"{learner.algorithm()} on {env.id}")
    of_joint_critic = ["vf_coef", "clip_value"] if fixed.get("critic.name") == "separate" else []
    of_a_box = [] if distribution.log_std_shape else ["model.std_init"]
    if not isinstance(distribution, Gaussian):
        of_a_box += ["use_sde", "sde_sample_freq"]
    return of_joint_critic + of_a_box + unused_by_networks(env, fixed)


def make_agent(learner: Learner) -> Agent:
    """Build the agent that acts for a learner's members.

    The learner must have the hyperparameters of `on_policy_space`.
    """
    hp, envs, subject = learner.hp, learner.envs, f"{learner.algorithm()} on {learner.env.id}"
    build = actor_critic if hp.model.memory == "none" else RecurrentActorCritic
    goal = goal_of(vars(hp.model), learner.env, subject)
    form = ActorCriticForm(envs.obs_shape, envs.action_space, hp.model, subject, hp.use_sde, goal)
    policy = build(form, learner.seeds, learner.device)
    dist, parameters = policy.distribution, policy.parameters

    def noise(keys: Keys, num_envs: int, steps: int) -> Noise:
        if isinstance(dist, StateDependentGaussian):
            log_std = parameters.views["actor.log_std"]
            return Perturbations(keys("sde"), num_envs, dist, log_std, hp.num_steps, hp.sde_sample_freq)
        return StepNoise(keys("action"), dist, steps, num_envs, learner.device)

    def acting_noise(episodes: int, keys: Keys | None) -> Noise:
        return noise(keys or partial(evaluation_keys, learner.members), episodes, steps=1)

    scale_obs = hp.normalize_obs and envs.obs_kind == "vector"
    obs_normalizer = (
        ObservationNormalizer(learner.members, envs.obs_shape[0], mask_in(envs.obs_shape)) if scale_obs else None
    )
    gamma = hp.gamma.cpu().double().numpy()
    reward_normalizer = RewardNormalizer(learner.members, hp.num_envs, gamma) if hp.normalize_reward else None
    agent = Agent if hp.model.memory == "none" else RecurrentAgent
    rollout_noise = noise(learner.keys, hp.num_envs, hp.num_steps)
    return agent(policy, rollout_noise, acting_noise, hp.num_envs, obs_normalizer, reward_normalizer)
