"""Commands that steer a study while it runs, such as stop and enqueue.

They parse and print; `engine.steering` checks, and the rows of the storage carry each command to all workers.
"""
