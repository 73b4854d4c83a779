"""The engine of a study: configuration, planning loop, progress, views and ranks.

Decisions about trials belong in `schedulers` and `samplers`, rows in `storage`, and training in `workers`.
"""
