"""A backend that spreads environments over several processes.

It replaces processes that die. How an environment is restored in general belongs in `gym`.
"""
