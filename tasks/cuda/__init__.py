"""Operators and graphs for CUDA devices.

Torch's own products and sums split their work by the size of the whole batch, so a member's last bits would depend on
its cohort. `operators` replaces them with operators that treat members independently. `graphs` replays repeated work.
As in `compiled`, the computations themselves are defined elsewhere.
"""
