"""Samplers, which suggest the hyperparameters of the next trials.

Each is a pure function of seed, number and rows: Optuna's samplers by name, adapted where Optuna keeps state that here
must follow from the rows. The number of epochs of a trial belongs to `schedulers`; nothing here reads or writes a
database.
"""
