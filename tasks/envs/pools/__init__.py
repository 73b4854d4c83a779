"""A backend for libraries that compute all environments at once.

These are EnvPool, and Gymnasium's vector entry points.
"""
