"""The store: tasks, leases, checkpoints, studies and trials in one SQL database."""
