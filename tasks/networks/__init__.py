"""Networks of P members at once: layers, encoders, recurrent cores, actor-critics, distributions, optimizers.

Members' parameters are rows of one tensor, and every product is batched over members; see Exactness in mlp.py. Nothing
here knows environments' steps, rollouts or losses: those belong in experience and algorithms.
"""
