"""Hyperparameters and checks of algorithms that learn from replayed transitions.

Arguments of Stable-Baselines3 and Pyrado correspond to these hyperparameters:

    learning_rate, lr                   optimizer.lr; SAC: also critic_lr and entropy.lr, if they differ
    train_freq, gradient_steps, num_updates_per_step    num_steps environment steps (in each of num_envs), then
                                        num_updates gradient steps
    min_steps                           num_steps * num_envs
    learning_starts, num_init_memory_steps    learning_starts, environment steps that fill the buffer at random
    use_trained_policy_for_refill       the same, with a refill_interval or a warm start
    buffer_size, memory_size            buffer_size, in transitions
    optimize_memory_usage               none: both observations of a transition are stored, see off_policy_space
    CnnPolicy, features_extractor_class model.encoder, which may be a class of your own
    eval_intvl                          eval_interval, in epochs
    target_update_interval              DQN: target_interval, in gradient steps; SAC: target_update_interval
    tau                                 the fraction taken from the online networks (Pyrado's is the fraction kept)
    exploration_fraction, _initial_eps, _final_eps      exploration.horizon (in environment steps), .start, .final
    ent_coef, ent_coeff_init, learn_ent_coeff           entropy.alpha, entropy.learn
    target_entropy                      -entropy.target per number, entropy.choice_target log n for a choice of n
    tensorboard_log, verbose            none: the metrics of every epoch are always kept
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from ...spaces import Dimension, Space, categorical, integer, near_one, ordinal
from ..envs import EnvSpec, goals_of, spaces_of
from ..envs.base.observations import Observations
from ..experience.prioritized import replay_space
from ..learner import Learner
from ..networks.encoders import check_encoder
from ..runtime.episode_window import window_size
from ..signals.replay_guidance import check_replay_guidance, replay_guidance_space

OBSERVATIONS = ("obs", "next_obs")


def updates_choice(default: int) -> Dimension:
    """Return the hyperparameter of the gradient steps of an iteration."""
    return ordinal(1, 2, 4, 8, default=default, accept=(1, 1_000_000), structural=True)


def off_policy_space(n_step: int = 1) -> dict[str, Dimension | Space]:
    """Return the hyperparameters that all off-policy algorithms share.

    - An iteration takes `num_steps` steps in each of `num_envs` environments, then `num_updates` gradient steps.
    - The first `learning_starts` environment steps only fill the replay buffer, with random actions.
    - Every `refill_interval` epochs the buffer is emptied and filled again, for environments that change. With
      `use_trained_policy_for_refill`, the policy acts during a refill, and from the start after a warm start.
    - With `normalize_obs`, the networks see vectors (not images) standardized by the running mean and standard
      deviation of all observations so far. The buffer stores them unnormalized.
    - `eval_interval` adds `eval_return` to the metrics of every that many epochs. Both intervals are in epochs, 0 for
      never.

    A transition of images takes twice an image's bytes. With 84 x 84 pixels and 4 channels, a full buffer of 1,000,000
    transitions takes 56 GB in RAM and in a checkpoint; one of 50,000 takes 2.8 GB. A buffer larger than the machine's
    RAM is refused.
    """
    return {
        "gamma": near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0)),
        "n_step": ordinal(1, 3, 5, default=n_step, accept=(1, 1000), structural=True),
        "replay": replay_space(),
        "buffer_size": integer(1, 10**9, default=50_000, structural=True, search=False),
        "batch_size": ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
        "learning_starts": integer(1, 10**9, default=1000, structural=True, search=False),
        "refill_interval": integer(0, 10**9, default=0, structural=True, search=False),
        "use_trained_policy_for_refill": categorical(False, True, default=False, structural=True, search=False),
        "num_steps": ordinal(1, 2, 4, 8, default=4, accept=(1, 1_000_000), structural=True),
        "num_updates": updates_choice(2),
        "num_envs": integer(1, 65536, default=1, structural=True, search=False),
        "epoch_steps": integer(1, 10**9, default=4096, structural=True, search=False),
        "normalize_obs": categorical(False, True, default=False, structural=True, search=False),
        "eval_interval": integer(0, 10**9, default=0, structural=True, search=False),
        "stats_window_size": window_size(silent=True),
        "resets": integer(
            0,
            10**9,
            default=0,
            structural=True,
            search=False,
            silent=True,
            help="gradient steps after which networks and optimizers begin anew, but not the buffer; 0 for never",
        ),
        **replay_guidance_space(),
    }


def check_replay(learner: type[Learner], values: Mapping[str, Any]) -> None:
    """Raise ValueError if values of `off_policy_space` contradict each other.

    Two of the rules keep an iteration from outrunning the buffer. Its steps must not overwrite each other before
    anything is learned from them. And for each of them, gradient steps must not draw more transitions than the buffer
    holds: 20 batches of 256, as in REDQ, need a buffer of 5120. Another one refuses resets=1, which is no switch.
    """
    buffer, batch, starts, n, envs = (
        values[key] for key in ("buffer_size", "batch_size", "learning_starts", "n_step", "num_envs")
    )
    window, refill, epoch = n * envs, values["refill_interval"], values["epoch_steps"]
    updates, resets = values["num_updates"], values["resets"]
    new, drawn = values["num_steps"] * envs, updates * batch
    rules = [
        (batch <= buffer, f"batch_size ({batch}) must be at most buffer_size ({buffer})"),
        (window <= buffer, f"n_step * num_envs ({window}) must be at most buffer_size ({buffer})"),
        (new <= buffer, f"num_steps * num_envs ({new}) must be at most buffer_size ({buffer})"),
        (
            drawn <= new * buffer,
            f"num_updates * batch_size ({drawn}) must be at most num_steps * num_envs * buffer_size ({new * buffer})",
        ),
        (
            not resets or updates < resets,
            f"num_updates ({updates}) must be below resets ({resets}), the gradient steps after which networks begin "
            "anew, or only untrained ones act (0: never)",
        ),
        (starts <= buffer, f"learning_starts ({starts}) must be at most buffer_size ({buffer})"),
        (batch <= starts, f"batch_size ({batch}) must be at most learning_starts ({starts})"),
        (window <= starts, f"n_step * num_envs ({window}) must be at most learning_starts ({starts})"),
        (
            not refill or starts <= refill * epoch,
            f"learning_starts ({starts}) must be at most refill_interval * epoch_steps ({refill * epoch})",
        ),
    ]
    for holds, rule in rules:
        if not holds:
            raise ValueError(f"{learner.algorithm()}: {rule}; raise the latter or lower the former")
    if values["replay"]["relabel"] != "none" and values["model"]["memory"] != "none":
        raise ValueError(
            f"{learner.algorithm()}: replay.relabel changes the goals of single transitions, but model.memory "
            f"{values['model']['memory']} learns from sequences; leave one of them out"
        )
    check_replay_guidance(values, learner.algorithm())


def check_replay_in_env(learner: type[Learner], env: EnvSpec, values: Mapping[str, Any]) -> None:
    """Check the replay buffer, its goals and the encoder for an environment.

    Raises:
        ValueError: the buffer needs more than this machine's RAM.
        UnsupportedSpace: the encoder does not fit the observations, or there are no goals to relabel.
    """
    subject, obs = f"{learner.algorithm()} on {env.id}", Observations(spaces_of(env).observation, env.id)
    size, needs = values["buffer_size"], len(OBSERVATIONS) * math.prod(obs.shape) * obs.dtype.itemsize
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size * needs > has:
        raise ValueError(
            f"{subject}: buffer_size ({size}) transitions of {needs:,} bytes need {size * needs / 1e9:,.0f} GB, "
            f"but this machine has {has / 1e9:,.0f} GB of memory; set buffer_size to {has // needs // 2} or less"
        )
    check_encoder(values["model"], env, subject)
    if values["replay"]["relabel"] != "none":
        goals_of(env)
