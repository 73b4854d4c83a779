"""Learned rewards (ICM, RND, GAIL) and behavioural cloning for on-policy algorithms.

Each signal is one group of hyperparameters, off by default, with its own networks, critic and discount; `guidance`
joins them for a learner. No learning algorithm belongs here: signals see a learner as a `SignalHost` only.
"""
