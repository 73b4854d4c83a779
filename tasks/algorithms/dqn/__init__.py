"""Deep Q-learning: its learner, and its networks with or without a memory.

Parts shared with SAC belong in `algorithms/off_policy.py`, and general layers and gradients in `networks`.
"""
