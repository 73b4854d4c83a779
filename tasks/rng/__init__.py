"""Random numbers as functions of a key and a position.

Streams, and caches that draw ahead from them, belong here. What is sampled with the numbers (actions, minibatches,
exploration noise) belongs where it is used.
"""
