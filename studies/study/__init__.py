"""Definition of a study: its configuration, objectives and the plan protocol.

Schedulers and samplers build on these. Nothing here reads a database or trains.
"""
