"""Operators and graphs for CUDA devices.

Torch's own products and sums split their work by the size of the whole batch, so that a member's last bits would depend
on its cohort: `operators` replace them by ones that leave members alone. `graphs` replay what is done again and again.
What is computed is decided elsewhere, as with `compiled`.
"""
