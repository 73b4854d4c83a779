"""Batched networks, action distributions and optimizers of P members.

Layers, encoders, recurrent cores and actor-critics belong here. Members' parameters are rows of one tensor, and every
product is batched over members; see Exactness in mlp.py. Nothing here knows environments' steps, rollouts or losses:
those belong in experience and algorithms.
"""
