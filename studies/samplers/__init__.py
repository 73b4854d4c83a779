"""Which hyperparameters come next: Optuna's samplers, each as a pure function of seed, number and rows."""
