"""Statistics of results: aggregates over seeds and environments, with confidence intervals.

Only pure functions of arrays belong here. Code that reads rows belongs in `analysis`; the ranking of a study's trials
belongs in `study.objectives`.
"""
