"""Learned rewards (ICM, RND, GAIL) and behavioural cloning.

Each signal is one group of hyperparameters, off by default, with its own networks, critic and discount; `guidance`
joins them for an on-policy learner, `replay_guidance` for an off-policy one. No learning algorithm belongs here:
signals see a learner as a `SignalHost` only.
"""
