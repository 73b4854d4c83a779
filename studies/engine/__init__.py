"""Studies as they run: configuration, the planning loop, progress, lineages.

What is planned belongs to `schedulers` and `samplers`, how rows are stored to `storage`, and training to `workers`.
"""
