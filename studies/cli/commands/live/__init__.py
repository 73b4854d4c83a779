"""Commands that show or copy studies while they train.

Each command reads rows while workers write them, on any machine, and changes no trial.
"""
