"""Commands that show or copy studies while they train.

Each reads rows beside the workers, from any machine, and changes no trial.
"""
