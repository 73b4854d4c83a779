"""Experience: rollouts, replay buffers, returns, normalization and exploration, of P members at once.

Here belongs the path from environment steps to the batches that a loss takes. Losses belong in algorithms, networks
and optimizers in networks, and rewards that are learned in signals.
"""
