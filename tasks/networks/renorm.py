"""Multilayer perceptrons with batch renormalization: Ioffe (2017), arXiv:1702.03275.

Each layer's inputs are normalized over the rows of a batch:

    x̂ = (x - μ_B) / σ_B · r + d,   r = clip(σ_B / σ, 1/3, 3),   d = clip((μ_B - μ) / σ, -5, 5),   y = γ x̂ + β

μ and σ are running moments, by which inputs are normalized when the networks act; no gradient passes through r and d.
For the first `WARMUP` steps r = 1 and d = 0, which is batch normalization, as in the code of Bhatt et al. (2024).

Notation: P members, B rows, D inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .mlp import MLP, Parameters, affine

WARMUP = 100_000
MOMENTUM = 0.01
EPS = 1e-3
MOST_SCALE, MOST_SHIFT = 3.0, 5.0


class Moments:
    """Running means and variances of layers' inputs, at first 0 and 1.

    Attributes:
        mean, variance: (P, 1, D) of each layer.
        vector: all means, then all variances, (P, numbers).
        steps: number of batches that were learned from, (P, 1).
    """

    def __init__(self, net: RenormMLP, members: int, device: torch.device | str = "cpu"):
        layers = list(enumerate(net.sizes[:-1]))
        shapes = {f"{net.prefix}.{n}.{name}": (1, size) for name in ("mean", "variance") for n, size in layers}
        self.parameters = Parameters(shapes, members, device)
        self.vector, self.steps = self.parameters.vector, torch.zeros(members, 1, device=device)
        views = list(self.parameters.views.values())
        self.mean, self.variance = views[: len(layers)], views[len(layers) :]
        for view in self.variance:
            view.fill_(1)


class RenormMLP(MLP):
    """A perceptron whose layers' inputs are renormalized.

    Attributes:
        moments: running moments of its members.
    """

    moments: Moments

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one member's parameters, by name."""
        shapes = super().shapes
        for layer, inputs in enumerate(self.sizes[:-1]):
            shapes |= {f"{self.prefix}.{layer}.scale": (1, inputs), f"{self.prefix}.{layer}.shift": (1, inputs)}
        return shapes

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        super().initialize(parameters, member, seed)
        for layer in range(len(self.sizes) - 1):
            parameters.views[f"{self.prefix}.{layer}.scale"][member] = 1

    def run(
        self, tensors: Mapping[str, Tensor], x: Tensor, factors: Sequence[Tensor] = (), learn: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last layer's inputs, each (P, B, ...).

        Args:
            tensors: parameters by name.
            x: inputs, (P, B, inputs).
            factors: none; there is no dropout.
            learn: whether to normalize by the batch's own moments, and to update the running ones.
        """
        layers, moments = self.layers(tensors), self.moments
        for number, (weight, bias) in enumerate(layers):
            scale, shift = (tensors[f"{self.prefix}.{number}.{name}"] for name in ("scale", "shift"))
            mean, variance = moments.mean[number], moments.variance[number]
            x = scale * (renormalized(x, mean, variance, moments.steps) if learn else normalized(x, mean, variance))
            z = x = x + shift
            x = affine(x, weight, bias)
            x = self.activation(x) if number < len(layers) - 1 else x
        if learn:
            with torch.no_grad():
                moments.steps.add_(1)
        return x, z


def normalized(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return (x - μ) / σ."""
    return (x - mean) / (variance + EPS).sqrt()


def renormalized(x: Tensor, mean: Tensor, variance: Tensor, steps: Tensor) -> Tensor:
    """Return x̂ of a batch (P, B, D), and move running moments.

    Those are (P, 1, D).
    """
    own_mean = x.mean(1, keepdim=True)
    own_variance = (x - own_mean).square().mean(1, keepdim=True)
    with torch.no_grad():
        warm = (steps > WARMUP).unsqueeze(-1)
        std = (variance + EPS).sqrt()
        scale = ((own_variance + EPS).sqrt() / std).clamp(1 / MOST_SCALE, MOST_SCALE)
        shift = ((own_mean - mean) / std).clamp(-MOST_SHIFT, MOST_SHIFT)
        scale, shift = torch.where(warm, scale, 1.0), torch.where(warm, shift, 0.0)
    result = normalized(x, own_mean, own_variance) * scale + shift
    with torch.no_grad():
        mean.lerp_(own_mean, MOMENTUM)
        variance.lerp_(own_variance, MOMENTUM)
    return result
