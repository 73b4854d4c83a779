"""Soft actor-critic: its learner, networks for vectors, images and memory, and exploration.

What DQN shares with it stands in `algorithms/off_policy.py`; general layers and gradients stand in `networks`.
"""
