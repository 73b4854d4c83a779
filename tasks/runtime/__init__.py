"""Conditions of a training process, around the algorithms.

The guard against broken states, operating-system signals, limits on the time of others' code, observers, mean metrics,
fingerprints of versions and of the user's code, threads of torch and JAX, JAX's programs, finalizers and warning
filters belong here. Only episode windows and mean metrics are part of a task's state.
"""

# Here, since parsers and readers of results import no torch:
INFO = "info."  # before the name of a metric from an environment's info
STUCK = 600.0  # default seconds without progress that count as a hang
EVALUATION_EPISODES = 20  # default episodes of an evaluation
EVALUATION_SEED = 0x5EED  # the same for every trial, so all are measured on the same episodes; training never uses it
EVALUATION_ENVS = 32  # default of the most environments that an evaluation steps at the same time
