"""Commands that steer a study while it runs: stop, pause, resume, cancel, exclude, enqueue, extend.

They parse and print; `engine.steering` checks, and the rows of the storage carry each command to all workers.
"""
