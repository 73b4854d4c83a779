"""Examples of tasks from other fields; nothing else uses them.

An example is a complete task that runs, with its own tests. Algorithms for users belong in `algorithms`.
"""
