"""Conversion of spaces to the parameters of drivers, Optuna and Orion.

Each driver's library is imported in its own file only. How a driver samples belongs to the studies.
"""
