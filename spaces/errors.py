"""Errors of spaces and of values for them."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches


def spelled(name: str) -> str:
    """Return the identifier that is most like a name."""
    letters = re.sub(r"\W+", "_", name)
    return letters if letters.isidentifier() else f"x{letters}"


class SpaceError(ValueError):
    """A space is inconsistent, or values do not fit it."""


class UnknownParameter(SpaceError):
    """The space has no such name, or the dimension does not apply."""


class MissingParameter(SpaceError):
    """A hyperparameter without a default was not given."""


class OutOfRange(SpaceError):
    """A value of the right type is not allowed, or not finite."""


class WrongType(SpaceError):
    """A value has another type than the dimension's."""


# Names in other libraries and their counterparts here, where the spelling differs.
STABLE_BASELINES3 = """
    learning_rate=optimizer.lr|lr n_steps=n_step|num_steps n_envs=num_envs n_epochs=update_epochs
    batch_size=num_minibatches clip_range=clip_coef clip_range_vf=clip_value use_rms_prop=optimizer.name
    rms_prop_eps=optimizer.eps log_std_init=model.std_init,sde_std_init net_arch=model.hidden lr=optimizer.lr
    activation_fn=model.activation optimizer_class=optimizer.name exploration_fraction=exploration.horizon
    train_freq=num_steps gradient_steps=num_updates exploration_initial_eps=exploration.start ent_coef=entropy.alpha
    replay_buffer_class=replay.name,replay.relabel exploration_final_eps=exploration.final
    target_update_interval=target_interval
    policy_kwargs=model.hidden,model.activation,model.encoder
    target_entropy=entropy.target,entropy.choice_target n_critics=critic.ensemble,critics n_quantiles=quantiles
    top_quantiles_to_drop_per_net=dropped_quantiles noise_std=exploration.std noise_type=exploration.noise
    action_noise=exploration.noise lstm_hidden_size=model.width features_extractor_class=model.encoder
    share_features_extractor=model.shared_critic clip_mean=sde_clip_mean optimizer_kwargs=optimizer.eps
    goal_selection_strategy=replay.relabel n_sampled_goal=replay.relabel_ratio n_critic_updates=update_epochs
    n_delta=deltas n_top=top_fraction cg_max_steps=cg_steps line_search_max_iter=line_search_steps
    line_search_shrinking_factor=line_search_factor
"""
PYRADO_AND_ML_AGENTS = """
    num_updates_per_step=num_updates num_init_memory_steps=learning_starts memory_size=buffer_size
    eval_intvl=eval_interval eps_init=exploration.start eps_clip=clip_coef lamda=gae_lambda vfcn_coeff=vf_coef
    entropy_coeff=ent_coef ent_coeff_init=entropy.alpha learn_ent_coeff=entropy.learn num_epoch=update_epochs
    buffer_init_steps=learning_starts steps_per_update=num_steps,num_updates init_entcoef=entropy.alpha
    hidden_units=model.width num_layers=model.layers time_horizon=num_steps lambd=gae_lambda normalize=normalize_obs
    min_steps=num_steps min_rollouts=num_steps rew_scale=extrinsic.strength threaded=overlap
    network_settings=model.hidden,model.memory,model.encoder buffer_size=num_steps,num_envs value_clip=clip_value
    sequence_length=model.sequence_length
"""
METABOX_OLYMPUS_AND_MORE = """
    K_epochs=update_epochs n_step=num_steps,gae_lambda lr_model=optimizer.lr learning_rates=optimizer.lr,critic_lr
    ppo_epoch=update_epochs ppo_batch_size=num_minibatches ppo_clip_param=clip_coef ppo_max_grad_norm=max_grad_norm
    ppo_value_loss_coef=vf_coef ppo_entropy_coef=ent_coef num_mini_batch=num_minibatches lr_scheduler=lr_schedule.name
    standardize_adv=normalize_advantage standardize_rew=scale_reward target_update_intvl=target_interval
    learning_rate_schedule=lr_schedule.name beta=ent_coef epsilon=clip_coef beta_schedule=ent_coef_schedule.name
    epsilon_schedule=clip_coef_schedule.name vis_encode_type=model.encoder
    goal_conditioning_type=model.goal_conditioning reward_signals=icm.use,rnd.use,gail.use,extrinsic.strength
    curiosity=icm.use behavioral_cloning=cloning.use criterion=critic_loss networks=model.hidden,model.encoder
    eps_schedule_gamma=exploration.name
"""
CLEANRL_AND_RLLIB = """
    anneal_lr=lr_schedule.name norm_adv=normalize_advantage clip_vloss=clip_value start_e=exploration.start
    end_e=exploration.final train_frequency=num_steps target_network_frequency=target_interval,target_update_interval
    policy_frequency=policy_delay policy_noise=target_policy_noise noise_clip=target_noise_clip
    exploration_noise=exploration.std q_lr=critic_lr policy_lr=optimizer.lr autotune=entropy.learn alpha=entropy.alpha
    policy_freq=policy_delay expl_noise=exploration.std start_timesteps=learning_starts
    train_batch_size=batch_size|num_steps,num_envs train_batch_size_per_learner=batch_size|num_steps,num_envs
    sgd_minibatch_size=num_minibatches minibatch_size=num_minibatches num_sgd_iter=update_epochs
    num_epochs=update_epochs clip_param=clip_coef vf_clip_param=clip_value vf_loss_coeff=vf_coef grad_clip=max_grad_norm
    num_envs_per_env_runner=num_envs rollout_fragment_length=num_steps fcnet_hiddens=model.hidden
    fcnet_activation=model.activation use_lstm=model.memory lstm_cell_size=model.width max_seq_len=model.sequence_length
    actor_lr=optimizer.lr alpha_lr=entropy.lr initial_alpha=entropy.alpha training_intensity=num_updates
    num_steps_sampled_before_learning_starts=learning_starts sigma0=model.noisy_std
    target_network_update_freq=target_interval,target_update_interval prioritized_replay_alpha=replay.alpha
    prioritized_replay_beta=replay.beta prioritized_replay_eps=replay.eps
"""
OF_PAPERS = """
    her=replay.relabel prioritized=replay.name prioritized_replay=replay.name noisy=model.noisy layer_norm=critic.norm
    utd=num_updates utd_ratio=num_updates max_kl=target_kl
"""
_PAIRS = (
    pair.partition("=")
    for names in (STABLE_BASELINES3, PYRADO_AND_ML_AGENTS, METABOX_OLYMPUS_AND_MORE, CLEANRL_AND_RLLIB, OF_PAPERS)
    for pair in names.split()
)
# By name the groups of counterparts, of which the first that a task has is meant.
SYNONYMS = {theirs: [group.split(",") for group in ours.split("|")] for theirs, _, ours in _PAIRS}
# Names that are hyperparameters elsewhere, but arguments of the task or of fit here.
_SNAPSHOTS, _EPOCHS = "snapshots, an argument of the task (--snapshots)", "epochs, an argument of fit (--epochs)"
ARGUMENTS = {
    **dict.fromkeys(("num_workers", "num_env_runners"), "env_processes, an argument of the task (--env-processes)"),
    **dict.fromkeys(
        ("max_iter", "max_steps", "max_epoch", "total_timesteps", "n_timesteps", "max_learning_step"), _EPOCHS
    ),
    **dict.fromkeys(
        ("snapshot_mode", "keep_checkpoints", "checkpoint_interval", "save_interval", "n_checkpoint"), _SNAPSHOTS
    ),
    **dict.fromkeys(("initialize_from", "init_path"), "warm_start, an argument of the task (--warm-start)"),
    **dict.fromkeys(("env_wrapper", "frame_stack"), "wrappers, in the environment's JSON"),
    "env_kwargs": "kwargs, in the environment's JSON",
    "device": "an argument of the task (--device)",
    "seed": "an argument of the task (--seed)",
    "logger": "an argument of the task",
    "tensorboard_log": "an option of the command line (--log tensorboard:DIR)",
    "demonstrated_steps": "of demonstrations, from which this task does not learn; leave them out",
    "demo_path": "demonstrations, an argument of the task (--demonstrations)",
    "save_dir": "storage, an argument of the task (--storage)",
}
# Values of a choice that it does not have, by the last part of its name.
VALUES = {
    "algorithm": {
        "poca": "in its place, ppo learns with a central critic: critic.central=joint",
        "mappo": "that is ppo with critic.central=joint, or state",
        "ippo": "that is ppo",
        **dict.fromkeys(("maddpg", "matd3"), "in its place, td3 learns without a central critic, or ppo with one"),
        **dict.fromkeys(
            ("qmix", "vdn"), "in its place, dqn learns without sums of values, or ppo with a central critic"
        ),
        **dict.fromkeys(("trpo", "pqn"), "it weights all steps alike, also those of absent agents"),
        "random": "what does not learn is a player: --player BEHAVIOUR=random",
    }
}


def near(name: str, names: Collection[str]) -> str:
    """Return '; did you mean ...?' with similar dotted names, or ''.

    If another library uses the name for one of these hyperparameters, that one is suggested, however different it is,
    also if it is one of a behaviour's.
    Otherwise names are compared by their last part, then as a whole.
    """
    outer, _, leaf = name.rpartition(".")
    for group in SYNONYMS.get(leaf, ()):
        if paths := [path for ours in group for path in (ours, f"{outer}.{ours}") if path in names]:
            return f"; did you mean {' and '.join(paths)}?"
    if name in ARGUMENTS:
        return f"; that is {ARGUMENTS[name]}"
    leaves: dict[str, list[str]] = {}
    for path in names:
        leaves.setdefault(path.rpartition(".")[2], []).append(path)
    alike = [path for other in get_close_matches(leaf, leaves, cutoff=0.7) for path in leaves[other]]
    similar = get_close_matches(name, alike, cutoff=0) or get_close_matches(name, list(names), cutoff=0.7)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""
