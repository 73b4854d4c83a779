"""Environments of several agents, and one behaviour's view of them.

`adapter` makes a Gymnasium environment of all agents, which the neighboring packages step, restore and test like any
other. `roster` groups agents into behaviours, and `views` shows each behaviour its agents as environments. Learning
does not belong here.
"""
