"""Commands that steer a running study, such as stop and enqueue.

They parse options and print results. `studies.steering` checks the commands, and the storage's rows carry them to all
workers.
"""
