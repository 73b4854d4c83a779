"""Batched experience: rollouts, replay buffers, returns, normalization and exploration.

Here belongs the path from environment steps to the batches that a loss takes, for P members at once. Losses belong in
algorithms, networks and optimizers in networks, and rewards that are learned in signals.
"""
