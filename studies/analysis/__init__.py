"""Analyses of study results: comparisons, hyperparameter importances, health checks.

Everything here is a pure function of rows and files; its answer is JSON, documented in `cli`. Code that trains, or that
decides what a study does next, belongs elsewhere.
"""
