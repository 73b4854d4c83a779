"""Explanations of hyperparameters: effects, when to raise them, other names."""

from __future__ import annotations

_OF_SIGNALS = {
    "use": "learn from this signal, too",
    "strength": "weight of this signal; raise it if it is drowned by the reward (ML-Agents: strength)",
    "gamma": "discount of this signal's rewards (ML-Agents: gamma)",
    "lr": "learning rate of this signal's networks (ML-Agents: learning_rate)",
    "width": "units of this signal's hidden layers (ML-Agents: hidden_units)",
}
# By dotted name, of which the first parts may be missing; the longest name that fits counts.
EXPLANATIONS = {
    **{f"{signal}.{name}": text for signal in ("gail", "icm", "rnd") for name, text in _OF_SIGNALS.items()},
    "activation": "nonlinearity of the hidden layers (SB3: activation_fn)",
    "alpha": "fraction of the mean of squared gradients that each step keeps (SB3: rms_prop alpha)",
    "batch_size": (
        "transitions of a gradient step; raise it for less noise, at more time (SB3, CleanRL, ML-Agents: batch_size)"
    ),
    "beta1": "fraction of the mean of gradients that each step keeps; raise it for smoother steps",
    "beta2": "fraction of the mean of squared gradients that each step keeps; raise it for stabler scales",
    "buffer_size": (
        "transitions that the replay buffer keeps; raise it if memory allows and learning forgets (SB3, CleanRL, "
        "ML-Agents: buffer_size)"
    ),
    "burn_in": "steps before a replayed sequence that only warm up the memory (R2D2: burn-in)",
    "clip_coef": (
        "largest relative change of an action's probability that is rewarded; raise it to learn faster, lower it "
        "for stability (SB3: clip_range; CleanRL: clip_coef; ML-Agents: epsilon)"
    ),
    "clip_value": "largest change of a value in an update; none for no limit (SB3: clip_range_vf; CleanRL: clip_vloss)",
    "cloning.batch_size": "demonstrated steps of a gradient step (ML-Agents: batch_size)",
    "cloning.samples_per_update": "demonstrated steps of an update; 0 for all (ML-Agents: samples_per_update)",
    "cloning.steps": "environment steps after which imitation has faded out; 0 for never (ML-Agents: steps)",
    "cloning.strength": "weight of imitation; raise it to follow demonstrations more closely (ML-Agents: strength)",
    "cloning.use": "imitate demonstrations in gradient steps of their own (ML-Agents: behavioral_cloning)",
    "critic.lr": "learning rate of the critic",
    "critic.name": "train the critic with the policy, or with an optimizer and passes of its own",
    "critic.targets": "returns that the critic learns: by the critic itself, or of whole episodes",
    "critic_hidden": "units of the critic's hidden layers; none for those of the actor (SB3: net_arch vf or qf)",
    "critic_loss": "loss of the critic: squared or a robust one, which follows outliers less",
    "critic_lr": "learning rate of the critic; none for that of the optimizer; raise it if values lag behind",
    "demonstrated_steps": "steps of the demonstrations, which follows from their file",
    "double": "choose actions of the target by the online network, which overestimates less (Double DQN)",
    "dueling": "estimate values and advantages apart, for tasks where actions often matter little (Dueling DQN)",
    "encoder": (
        "network for images, or a class of your own; none if observations have no images (SB3: "
        "features_extractor_class; ML-Agents: vis_encode_type)"
    ),
    "ent_coef": (
        "weight of the entropy bonus; raise it if the policy stops exploring too early (SB3, CleanRL: ent_coef; "
        "ML-Agents: beta)"
    ),
    "entropy.alpha": (
        "weight of the entropy, or its initial value; raise it to explore more (SB3: ent_coef; CleanRL: alpha; "
        "ML-Agents: init_entcoef)"
    ),
    "entropy.choice_target": (
        "target of the entropy of choices, as a fraction of the largest one; raise it to explore more"
    ),
    "entropy.learn": "adapt the entropy's weight to a target (SB3: ent_coef auto; CleanRL: autotune)",
    "entropy.lr": "learning rate of the entropy's weight; none for that of the optimizer",
    "entropy.target": (
        "negative target of the entropy for each number of an action; lower it to explore more (SB3: target_entropy)"
    ),
    "epoch_steps": "environment steps of an epoch, after which a checkpoint and metrics are due",
    "eps": "number added to the root of squared gradients; raise it against large steps (SB3: rms_prop_eps, adam eps)",
    "eval_interval": "epochs between evaluations in the metrics; 0 for none",
    "exploration.final": (
        "probability of random actions at the end; raise it to explore more (SB3: exploration_final_eps; CleanRL: "
        "end_e)"
    ),
    "exploration.horizon": (
        "environment steps until then; raise it to explore for longer (SB3, CleanRL: exploration_fraction of all steps)"
    ),
    "exploration.name": "how the probability of random actions falls",
    "exploration.noise": (
        "noise added to actions: independent, of an Ornstein-Uhlenbeck process, or none (SB3: NormalActionNoise, "
        "OrnsteinUhlenbeckActionNoise)"
    ),
    "exploration.start": "probability of random actions at the start (SB3: exploration_initial_eps; CleanRL: start_e)",
    "exploration.std": "scale of the noise, for actions between -1 and 1; raise it to explore more (SB3: sigma)",
    "extrinsic.strength": "weight of the environment's own reward; none for 1 (ML-Agents: extrinsic strength)",
    "final": "fraction of the initial value at the end of the schedule",
    "gae_lambda": (
        "weight of long returns in advantages; raise it for less bias, lower it for less variance (SB3, CleanRL: "
        "gae_lambda; ML-Agents: lambd)"
    ),
    "gail.beta_lr": "learning rate of the weight of that limit",
    "gail.code_width": "units of the code through which the discriminator sees",
    "gail.gradient_penalty": "weight of the penalty that keeps the discriminator smooth; raise it if it wins too early",
    "gail.information": "bits that the discriminator may use; lower it if it wins too early",
    "gail.use_actions": "judge actions, too, not only states (ML-Agents: use_actions)",
    "gail.variational": "limit what the discriminator can see (ML-Agents: use_vail)",
    "gamma": (
        "discount of future rewards; raise it towards 1 - 1 / steps of an episode where rewards come late (SB3, "
        "CleanRL, ML-Agents: gamma)"
    ),
    "goal_conditioning": "how a goal in the observation changes the first layer (ML-Agents: goal_conditioning_type)",
    "hidden": "units of each hidden layer, as a list; none for width and layers (SB3: net_arch)",
    "horizon": "environment steps after which a schedule has reached its end, or (SVPG) the repulsion has faded out",
    "icm.beta": "weight of predicting the next state against recognizing the action; raise it for smoother novelty",
    "layers": "number of hidden layers (SB3: net_arch; ML-Agents: num_layers)",
    "learning_starts": (
        "steps with random actions before learning begins; raise it for a more varied buffer (SB3, CleanRL: "
        "learning_starts; ML-Agents: buffer_init_steps)"
    ),
    "lr": (
        "learning rate; lower it if training is unstable, raise it if it is slow (SB3, CleanRL, ML-Agents: "
        "learning_rate)"
    ),
    "max_grad_norm": "largest norm of the gradient; lower it if training is unstable (SB3, CleanRL: max_grad_norm)",
    "max_rollout_steps": "steps after which an episode of such a rollout is cut",
    "memory": (
        "recurrent layer that remembers earlier observations, for tasks that one observation does not show "
        "(sb3-contrib: RecurrentPPO; ML-Agents: memory)"
    ),
    "min_rollouts": (
        "whole episodes that a rollout has at least; none for a fixed number of steps (Pyrado: min_rollouts)"
    ),
    "min_steps": "steps that a rollout of whole episodes has at least; none for no such rule (Pyrado: min_steps)",
    "momentum": "fraction of the last step that each step keeps; raise it for smoother steps",
    "n_step": (
        "steps of rewards in a target before values take over; raise it where rewards come late (SB3: n_steps of DQN)"
    ),
    "name": "how the value changes over environment steps (ML-Agents: learning_rate_schedule)",
    "normalize_advantage": (
        "standardize advantages, in each minibatch or by running moments (SB3: normalize_advantage; CleanRL: norm_adv)"
    ),
    "normalize_obs": (
        "standardize observations by running statistics; for observations of different scales (SB3: VecNormalize; "
        "ML-Agents: normalize)"
    ),
    "normalize_reward": (
        "divide rewards by the running deviation of returns; for rewards of any scale (SB3: VecNormalize norm_reward)"
    ),
    "num_envs": (
        "environments side by side; raise it for less correlated rollouts (SB3: n_envs; CleanRL: num_envs; "
        "ML-Agents: num_envs)"
    ),
    "num_minibatches": (
        "parts of a rollout, each with a gradient step; raise it for more, noisier steps (CleanRL: num_minibatches; "
        "SB3: rollout size / batch_size)"
    ),
    "num_particles": "policies that repel each other; raise it to explore more, at more time (Pyrado: num_particles)",
    "num_steps": (
        "steps of a rollout, or between gradient steps; raise it for less noise (SB3: n_steps, train_freq; CleanRL: "
        "num_steps, train_frequency; ML-Agents: buffer_size)"
    ),
    "num_updates": (
        "gradient steps of an iteration; raise it to learn more from each step (SB3: gradient_steps; ML-Agents: "
        "steps_per_update, inverted)"
    ),
    "optimizer.name": "optimizer of the networks (SB3: optimizer_class)",
    "overlap": "act in other environments while gradient steps are taken; for slow simulators; changes results",
    "points": "points [steps, factor] between which the factor is linear",
    "refill_interval": (
        "epochs after which the buffer is emptied and filled again; 0 for never; for environments that change"
    ),
    "relabel": "goals that replayed transitions get in hindsight (HER; SB3: goal_selection_strategy)",
    "relabel_ratio": (
        "fraction of replayed transitions with such a goal; lower it if the real goals are learned too slowly (SB3: "
        "n_sampled_goal / (n_sampled_goal + 1))"
    ),
    "replay.alpha": "how much priority counts; 0 for not at all",
    "replay.beta": "how much of the bias of priorities is corrected at the start",
    "replay.beta_horizon": "environment steps until all of it is corrected",
    "replay.eps": "number added to each priority, so that none is 0",
    "replay.name": "how transitions are drawn from the buffer: alike, or surprising ones more often",
    "scale_reward": "divide rewards by the running deviation of returns; for rewards far from 1",
    "sde_sample_freq": "steps after which this noise is drawn anew; -1 for once per rollout (SB3: sde_sample_freq)",
    "sde_clip_mean": "largest mean of an action before it is squashed; none for no limit (SB3: clip_mean)",
    "sde_std_init": (
        "initial standard deviation of state-dependent noise (SB3: exp of log_std_init, times the root of the last "
        "layer's width)"
    ),
    "sequence_length": "steps of a replayed sequence; raise it if more must be remembered (ML-Agents: sequence_length)",
    "shared_critic": (
        "let the critic use the actor's layers; saves time, but both losses shape them (SB3: shared features_extractor)"
    ),
    "stats_window_size": (
        "episodes over which running means of returns are reported; none for none (SB3: stats_window_size)"
    ),
    "std_init": (
        "initial standard deviation of actions in a Box; raise it to explore more at the start (SB3: exp of "
        "log_std_init)"
    ),
    "target_interval": (
        "gradient steps between updates of the target network; raise it for stabler targets (SB3: "
        "target_update_interval; CleanRL: target_network_frequency)"
    ),
    "target_kl": (
        "divergence from the acting policy at which updates of a rollout end; none for no limit; raise it to learn "
        "faster (SB3, CleanRL: target_kl)"
    ),
    "target_update_interval": (
        "gradient steps between updates of the target networks (SB3: target_update_interval; CleanRL: "
        "target_network_frequency)"
    ),
    "tau": (
        "fraction of the online networks that target networks take at each update; raise it to follow faster (SB3, "
        "CleanRL, ML-Agents: tau)"
    ),
    "temperature": "strength of the repulsion; raise it to explore more (Pyrado: temperature)",
    "update_epochs": (
        "passes over each rollout; raise it to learn more from each step, lower it if the policy changes too much "
        "(SB3: n_epochs; CleanRL: update_epochs; ML-Agents: num_epoch)"
    ),
    "use_sde": (
        "noise that depends on the state and lasts for several steps, in place of new noise at each; for smooth "
        "control (SB3: use_sde)"
    ),
    "use_trained_policy_for_refill": "let the policy, not random actions, fill the buffer again",
    "vf_coef": "weight of the critic's loss beside the policy's; raise it if values lag behind (SB3, CleanRL: vf_coef)",
    "warmup": "environment steps in which the learning rate rises from 0",
    "weight_decay": "shrinkage of the weights at each step; raise it against overfitting",
    "width": (
        "units of each hidden layer; raise it for harder tasks, at more time (SB3: net_arch; ML-Agents: hidden_units)"
    ),
}


def explanation(path: str) -> str:
    """Return the explanation of a dotted name; "" for none."""
    while path not in EXPLANATIONS and "." in path:
        path = path.partition(".")[2]
    return EXPLANATIONS.get(path, "")
