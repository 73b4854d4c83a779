"""Actor-critics that learn from replayed transitions: DDPG, TD3, SAC, TQC and CrossQ.

They share a learner, networks for vectors, images or sequences, action spaces and exploration; each algorithm is a file
of its hyperparameters and losses. Parts shared with DQN belong in `algorithms/off_policy_learner.py`, general layers
and gradients in `networks`.
"""
