"""Random numbers as functions of a key and a position.

Streams and what draws ahead from them belong here. What is sampled with the numbers (actions, minibatches, noise of
exploration) lies beside its users.
"""
