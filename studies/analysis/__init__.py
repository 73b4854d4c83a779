"""Answers from the results of studies: comparisons, importances, health.

Pure functions of rows and files belong here, with their answers as JSON that `cli` documents. What trains, and what
decides a study does next, does not.
"""
