"""Statistics of results: aggregates over seeds and environments, and intervals around them.

Pure functions of arrays belong here. What reads rows of a database does not, and what ranks the trials of a study is in
`study.objectives`.
"""
