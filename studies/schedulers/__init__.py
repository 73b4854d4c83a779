"""Schedulers, which decide how long trials train and which are promoted.

They also decide which trials are branched or stopped. Each scheduler has a module of its own and is a pure function of
the study's rows (see `study.plan.Scheduler`); the computations that it needs, such as the bandit of PB2 or the test of
racing, belong here too.

Hyperparameters of new trials come from `samplers`. Nothing here reads or writes a database.
"""
