"""Rewards that a learner makes itself, and what it copies: curiosity, distillation, adversaries, cloning.

ICM and RND reward what is new, GAIL what looks demonstrated; cloning moves the policy towards demonstrated actions. The
on-policy tasks have them as groups of hyperparameters, all of them off by default. Their networks look at observations
alone: a policy with a memory has no memory here.
"""
