"""Conditions of a training process, around the algorithms.

The guard against broken states, signals of the operating system, observers, means of metrics, fingerprints of versions
and warning filters belong here. Nothing here is part of a state but episode windows and metric means.
"""
