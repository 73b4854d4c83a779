"""The algorithms, each in a file that reads like its paper.

A file holds an algorithm's hyperparameters, construction, iteration and loss. An algorithm derives from `Learner` and
calls functions of the packages below with arguments, so that its file reads like the paper's pseudocode. Parts that
several algorithms use belong in networks, experience or signals, not here; the modules on_policy and off_policy hold
the hyperparameters, checks and construction that algorithms share.
"""
