"""Learned rewards (ICM, RND, GAIL) and behavioral cloning.

Each signal is one group of hyperparameters, off by default, with its own networks, critic and discount. `guidance`
combines them for on-policy learners, `replay_guidance` for off-policy ones. Learning algorithms do not belong here:
signals see a learner only as a `Learner`.
"""
