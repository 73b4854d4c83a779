"""Networks, action distributions and optimizers of P members at once.

Layers, encoders, recurrent cores and actor-critics belong here. The members' parameters are rows of one tensor, and
every product is batched over members; see Exactness in mlp.py. Nothing here knows about steps of environments, rollouts
or losses of algorithms, which belong in experience and algorithms.
"""
