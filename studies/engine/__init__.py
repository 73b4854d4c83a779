"""The engine of a study: configuration, the planning loop, progress and lineages.

Decisions about trials belong in `schedulers` and `samplers`, rows in `storage`, and training in `workers`.
"""
