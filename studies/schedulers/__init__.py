"""Schedulers: how far trials train, and which are promoted, branched or ended.

One scheduler a file, each a pure function of the study's rows (see `study.plan.Scheduler`), with what it computes with:
the bandit of PB2, the test of a race. Hyperparameters of new trials come from `samplers`; nothing here reads or writes
a database.
"""
