"""Conditions of a training process, around the algorithms.

The guard against broken states, operating-system signals, observers, mean metrics, version fingerprints and warning
filters belong here. Only episode windows and mean metrics are part of a task's state.
"""

INFO = "info."  # before the name of a metric from an environment's info; here, since readers of results import no torch
STUCK = 600.0  # default seconds without progress that count as a hang; here, since parsers import nothing slow
