"""A backend that spreads environments over several processes.

It replaces a process that dies; how environments are restored in general belongs into `gym`.
"""
