"""Kernels compiled by numba, and what calls them.

They never decide what is computed. That stands elsewhere, readable in torch: losses in the algorithms, networks and
optimizers in `networks`, environments' equations in `envs.classic`. This plain path is taken where no kernel covers it.
"""
