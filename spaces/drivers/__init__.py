"""Conversion of spaces to the parameters of Optuna and Orion.

Each driver's library is imported in its own file only. Sampling itself belongs in `studies`.
"""
