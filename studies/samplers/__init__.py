"""Samplers, which suggest hyperparameters for new trials.

Every sampler is a pure function of seed, trial number and rows. Optuna's samplers are available by name; those that
keep state between trials are adapted to derive it from the rows.

How many epochs a trial trains is decided in `schedulers`. Nothing here reads or writes a database.
"""
