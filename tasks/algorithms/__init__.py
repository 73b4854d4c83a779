"""The algorithms, one per file; each file reads like its paper.

A file holds the algorithm's hyperparameters and losses. What algorithms of one family share is in `on_policy_learner`
and `off_policy_learner`: construction, iteration, gradient steps. Their hyperparameters and checks are in `on_policy`
and `off_policy`. Parts that several algorithms use belong in networks, experience or signals, not here.
"""
