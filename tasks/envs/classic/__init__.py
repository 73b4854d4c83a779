"""Classic control as vectorized equations.

Only environments whose whole state is known belong here.
"""
