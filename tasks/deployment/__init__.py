"""Use of a trained policy, here and in files that run elsewhere.

Observations and actions are in the form of the Gymnasium environment. Training does not need this package, and states
are none of its business; weights that only another task takes belong in `warm_start`.
"""
