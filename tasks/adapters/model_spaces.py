"""Hyperparameters of the algorithms of Stable-Baselines3 and sbx.

The ranges are those of rl-zoo's samplers, the defaults mostly those of Stable-Baselines3.
"""

from __future__ import annotations

from ...spaces import Space, categorical, integer, log_real, near_one, ordinal, real

COMMON = Space(
    learning_rate=log_real(1e-5, 1e-2, default=3e-4),
    gamma=near_one(0.9, 0.9999, default=0.99),
    num_envs=integer(1, 64, default=1, structural=True, search=False),
    epoch_steps=integer(1, 10**7, default=4096, structural=True, search=False),
    total_steps=integer(
        1, 10**12, default=100_000, structural=True, search=False
    ),  # what `learn` is told, for schedules
)
ON_POLICY = Space(
    n_steps=ordinal(8, 32, 128, 512, 2048, accept=(1, 10**6), default=512, structural=True),
    ent_coef=log_real(1e-8, 0.1, default=1e-4),
    gae_lambda=real(0.8, 1.0, default=0.95),
    max_grad_norm=log_real(0.3, 5.0, default=0.5),
    vf_coef=real(0.0, 1.0, default=0.5),
)
PROXIMAL = Space(
    batch_size=ordinal(32, 64, 128, 256, 512, accept=(1, 10**6), default=64, structural=True),
    clip_range=real(0.1, 0.4, default=0.2),
    n_epochs=ordinal(1, 5, 10, 20, accept=(1, 100), default=10, structural=True),
)
OFF_POLICY = Space(
    batch_size=ordinal(32, 64, 128, 256, 512, accept=(1, 10**6), default=64, structural=True),
    buffer_size=integer(1, 10**7, default=100_000, structural=True, search=False),
    learning_starts=integer(0, 10**6, default=1000, structural=True, search=False),
    train_freq=ordinal(1, 4, 16, 64, accept=(1, 10**6), default=4, structural=True),
)
TARGETS = Space(tau=log_real(1e-3, 0.1, default=0.005))
NOISE = Space(noise_std=real(0.0, 1.0, default=0.1))
GREEDY = Space(
    exploration_fraction=real(0.0, 0.5, default=0.1),
    target_update_interval=integer(1, 100_000, default=1000, structural=True, search=False),
)
TRUST_REGION = Space(
    n_steps=ON_POLICY["n_steps"],
    batch_size=ordinal(8, 32, 128, 512, accept=(1, 10**6), default=128, structural=True),
    gae_lambda=ON_POLICY["gae_lambda"],
    n_critic_updates=ordinal(5, 10, 20, 30, accept=(1, 1000), default=10, structural=True),
    cg_max_steps=ordinal(5, 10, 20, 30, accept=(1, 1000), default=15, structural=True),
    target_kl=log_real(1e-3, 0.1, default=0.01),
)
RANDOM_SEARCH = Space(
    learning_rate=log_real(1e-4, 1.0, default=0.02),
    n_delta=ordinal(4, 6, 8, 32, 64, accept=(1, 10**4), default=8, structural=True),
    delta_std=log_real(0.01, 0.3, default=0.05),
)
SPACES = {
    "PPO": [ON_POLICY, PROXIMAL],
    "A2C": [ON_POLICY],
    "DQN": [OFF_POLICY, GREEDY],
    "SAC": [OFF_POLICY, TARGETS],
    "TD3": [OFF_POLICY, TARGETS, NOISE],
    "DDPG": [OFF_POLICY, TARGETS, NOISE],
    "TQC": [OFF_POLICY, TARGETS, Space(top_quantiles_to_drop_per_net=integer(0, 24, default=2, structural=True))],
    "CrossQ": [OFF_POLICY, Space(policy_delay=integer(1, 10, default=3, structural=True, search=False))],
    "QRDQN": [OFF_POLICY, GREEDY],
    "TRPO": [TRUST_REGION],
    "ARS": [RANDOM_SEARCH],
    "RecurrentPPO": [ON_POLICY, PROXIMAL],
    "MaskablePPO": [ON_POLICY, PROXIMAL],
}
OF_SBX = ("PPO", "DQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ")  # which take the same
NORMALIZE = Space(
    normalize=categorical("none", "obs", "reward", "both", default="none", structural=True, search=False, silent=True)
)
POLICIES = {"ARS": ("LinearPolicy", ""), "RecurrentPPO": ("MlpLstmPolicy", "CnnLstmPolicy")}  # for vectors, images
SMALLEST = 36  # pixels of each side of an image that NatureCNN, the network of CnnPolicy, can see
OWN = ("num_envs", "epoch_steps", "total_steps", "noise_std", "normalize")  # hyperparameters that no algorithm takes
ELSEWHERE = {  # arguments of algorithms that a task decides, and how
    "env": "the environment of the task",
    "seed": "the seed of the task",
    "device": "the device of the task",
    "action_noise": "noise_std, the deviation of Gaussian noise",
    "tensorboard_log": "--log tensorboard:DIR",
    "verbose": "the progress of the task",
    "monitor_wrapper": "the task's environments, which report their episodes",
    "callback": "fit(until=...), or a subclass whose learn adds it",
    "_init_setup_model": "the task, which sets the model up",
}
