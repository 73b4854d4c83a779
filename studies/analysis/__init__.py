"""Analyses of study results: comparisons, hyperparameter importances, health checks.

Analyses read rows and files, and return JSON in the form that `cli` documents; `schedules` also trains, and `learning`
extends a configuration. The code that decides what a study does next belongs elsewhere.
"""
