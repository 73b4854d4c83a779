"""Batched experience: rollouts, replay buffers, returns, normalization, exploration.

This package covers the path from environment steps to the batches that a loss takes, for P members at once. Losses
belong in algorithms, networks and optimizers in networks, learned rewards in signals.
"""
