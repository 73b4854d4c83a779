"""Samplers: the hyperparameters of the next trials, each a pure function of seed, number and rows.

Optuna's samplers by name, adapted where Optuna keeps state that here must follow from the rows. How long a trial trains
belongs to `schedulers`; nothing here reads or writes a database.
"""
