"""What the results of studies say: comparisons, importances, health.

Pure functions of rows and files belong here, with their answers as JSON that `cli` documents. What trains, and what
decides how a study goes on, does not.
"""
