"""Stein variational gradient descent: Liu and Wang (2016), arXiv:1608.04471.

Notation: P trials, n particles, D numbers in a particle.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..networks.mlp import affine


class Kernel(NamedTuple):
    """The kernel k(θᵢ, θⱼ) = exp(-|θᵢ - θⱼ|² / h).

    Attributes:
        values: (P, n, n).
        bandwidth: h, (P, 1, 1).
        squares: squared distances, (P, n, n).
    """

    values: Tensor
    bandwidth: Tensor
    squares: Tensor


def kernel(particles: Tensor) -> Kernel:
    """Return the radial basis kernel of particles (P, n, D).

    The bandwidth is the median heuristic's:

        h = median of |θᵢ - θⱼ|² over i ≠ j, over log(n + 1)

    so that the kernel values of a particle sum to about 1 + n / (n + 1): Liu and Wang (2016), section 5. The diagonal,
    always 0, is left out; log(n + 1), unlike log n, is defined for one particle too. If more than half of the pairs
    coincide, the median is 0 and the mean replaces it; if all do, any bandwidth is right, and it is 1.
    """
    count = particles.shape[1]
    # Pair by pair, not by |a|² + |b|² - 2 a·b, which cancels where particles are close.
    squares = torch.stack([(particles - particles[:, i : i + 1]).square().sum(-1) for i in range(count)], 1)
    if count == 1:
        return Kernel(torch.ones_like(squares), torch.ones_like(squares), squares)
    pairs = squares[:, *torch.triu_indices(count, count, 1)]
    scale = pairs.median(-1).values
    scale = torch.where(scale > 0, scale, pairs.mean(-1))
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    bandwidth = (scale / math.log(count + 1)).view(-1, 1, 1)
    return Kernel((-squares / bandwidth).exp(), bandwidth, squares)


def stein_gradient(particles: Tensor, gradients: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the descent directions of particles from their gradients, (P, n, D).

        gᵢ = 1/n Σⱼ [k(θⱼ, θᵢ) ∇L(θⱼ) - α ∂k(θⱼ, θᵢ)/∂θⱼ],   ∂k(θⱼ, θᵢ)/∂θⱼ = 2/h (θᵢ - θⱼ) k(θⱼ, θᵢ)

    The first term averages the gradients of similar particles, the second drives particles apart; in the limit of many
    steps and particles they are distributed as exp(-L/α). This is α times the negative of the paper's eq. 8 for
    log p = -L/α, so that a learning rate means the same at every temperature α, (P, 1, 1), and one particle descends
    its own gradient.
    """
    count = particles.shape[1]
    if count == 1:
        return gradients
    k = kernel(particles)
    centered = particles - particles[:, :1]  # only differences count, and small numbers subtract exactly
    weighted = affine(k.values, centered, torch.zeros_like(centered[:, :1]))
    repulsion = (centered * k.values.sum(-1, keepdim=True) - weighted) * (2 * temperature / k.bandwidth)
    return affine(k.values, gradients, -repulsion) / count
