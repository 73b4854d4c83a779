"""Fused operations: each is one autograd node with a hand-written backward pass.

They are faster than torch's autograd, and exact (see Exactness in networks/mlp.py). Networks without such an operation
belong in `networks`.
"""
