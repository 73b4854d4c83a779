"""Examples of tasks from other fields, which nothing else uses.

An example is a whole task that runs, with tests of its own. Algorithms for users lie in `algorithms`.
"""
