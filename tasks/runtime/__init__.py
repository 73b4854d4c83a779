"""Conditions of a training process, around the algorithms.

The guard against broken states, operating-system signals, observers, mean metrics, version fingerprints and warning
filters belong here. Only episode windows and mean metrics are part of a task's state.
"""
