"""Definition of a study: configuration, objectives, first and repeated trials, plan protocol.

Schedulers and samplers build on these. Nothing here reads a database or trains.
"""

# Here, since parsers of options need them and import nothing slow.
TOP = 5  # configurations that a confirmation takes from its study, by default
FRESH_SEEDS = 20  # of each of its estimates, by default
