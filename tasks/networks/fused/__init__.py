"""Fused operations: one autograd node each, with a hand-written backward pass.

They are faster than autograd's, and exact (see Exactness in networks/mlp.py). Networks without one do not belong here.
"""
