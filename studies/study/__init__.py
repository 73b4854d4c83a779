"""Definition of a study: its configuration, its objectives, and the plan protocol.

Schedulers and samplers build on these. Nothing here reads a database or trains.
"""
