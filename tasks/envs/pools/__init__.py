"""A backend for libraries that compute all environments at once.

These are EnvPool, and Gymnasium's vector entry points. Environments that are stepped one by one belong in `gym`.
"""
