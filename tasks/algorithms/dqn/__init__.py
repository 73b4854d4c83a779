"""Deep Q-learning: the learner, and its networks with or without a memory.

Parts shared with SAC belong in `algorithms/off_policy.py`, general layers and gradients in `networks`.
"""
