"""Use of a trained policy, here and as files that run elsewhere.

Observations and actions have the form of the Gymnasium environment. Training does not use this package, and training
states do not belong here. Weights that only another task loads belong in `warm_start`.
"""
