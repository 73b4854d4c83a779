"""Definition of a study: configuration, objectives and plan protocol.

Schedulers and samplers build on these. Nothing here reads a database or trains.
"""
