"""The algorithms, one per file; each file reads like its paper.

A file holds the algorithm's hyperparameters, construction, iteration and loss. The algorithm derives from `Learner` and
calls functions of the packages below with explicit arguments, so `iterate` and `loss` read like the paper's pseudocode.
Parts that several algorithms use belong in networks, experience or signals, not here. The hyperparameters, checks and
construction that algorithms share are in on_policy and off_policy.
"""
