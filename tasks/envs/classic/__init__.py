"""Classic control as vectorized equations.

Only environments whose complete state is known belong here.
"""
