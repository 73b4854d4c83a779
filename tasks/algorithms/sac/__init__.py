"""Soft actor-critic: the learner, networks, action spaces and exploration.

The networks take vectors, images or sequences. Parts shared with DQN belong in `algorithms/off_policy.py`, general
layers and gradients in `networks`.
"""
