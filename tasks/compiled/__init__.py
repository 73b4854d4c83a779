"""Kernels compiled by numba, and the code that calls them.

A kernel never defines what is computed. The definitions are readable code elsewhere: losses in the algorithms, networks
and optimizers in `networks`, equations of environments in `envs.classic`. Where no kernel applies, that code runs.
"""
