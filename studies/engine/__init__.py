"""Running studies: configuration, the planning loop, progress, lineages.

Plans belong to `schedulers` and `samplers`, storage of rows to `storage`, and training to `workers`.
"""
