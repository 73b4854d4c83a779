"""Commands that steer a running study, such as stop and enqueue.

They parse and print; `studies.steering` checks, and the rows of the storage carry each command to all workers.
"""
