"""Perceptrons with residual blocks (SimBa): Lee et al. (2024), arXiv:2410.09754.

Notation: P members, B rows, d units of every layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..rng import streams
from .layer_norm import layer_normalized
from .mlp import MLP, Layers, Parameters, affine, orthogonal

EXPANSION = 4  # units within a block, in terms of d


class ResidualMLP(MLP):
    """An `MLP` whose hidden layers are residual blocks.

        x₀ = x W₀ + c₀,   xᵢ = xᵢ₋₁ + f(N(xᵢ₋₁) Uᵢ + aᵢ) Vᵢ + bᵢ,   z = N(xₙ)

    N is layer normalization with a scale and a shift of its own, and Uᵢ leads to 4 d units. There is one block for each
    of the n hidden layers, which all have d units. Section 4 of the paper.
    """

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks."""
        return [f"{self.prefix}.block{number}" for number in range(len(self.sizes) - 2)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        inputs, size, outputs = self.sizes[0], self.sizes[1], self.sizes[-1]
        norm = {"norm_scale": (1, size), "norm_shift": (1, size)}
        wide = EXPANSION * size
        block = {**norm, "up.weight": (size, wide), "up.bias": (1, wide)}
        block |= {"down.weight": (wide, size), "down.bias": (1, size)}
        shapes: dict[str, tuple[int, ...]] = {f"{self.prefix}.in.weight": (inputs, size)}
        shapes[f"{self.prefix}.in.bias"] = (1, size)
        for name, parts in [*((name, block) for name in self.blocks), (f"{self.prefix}.out", norm)]:
            shapes |= {f"{name}.{part}": shape for part, shape in parts.items()}
        return shapes | {f"{self.prefix}.out.weight": (size, outputs), f"{self.prefix}.out.bias": (1, outputs)}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw orthogonal weights, and blocks' from He's normal distribution.

        He et al. (2015), arXiv:1502.01852. Scales are 1, and biases and shifts stay zero.
        """
        for name, shape in self.shapes.items():
            part, key = name.rpartition(".")[2], streams.key(seed, "init", name)
            if part == "norm_scale":
                parameters.views[name][member] = 1
            elif part == "weight" and ".block" in name:
                parameters.views[name][member] = he_normal(key, shape[0], shape[1])
            elif part == "weight":
                gain = self.last_gain if name.endswith(".out.weight") else 1.0
                parameters.views[name][member] = orthogonal(key, shape[0], shape[1], gain)

    def layers(self, tensors: Mapping[str, Tensor]) -> Layers:
        """Look up the pairs of layers and normalizations, in their order."""
        names = list(self.shapes)
        return [(tensors[first], tensors[second]) for first, second in zip(names[::2], names[1::2], strict=True)]

    def hidden(self, layers: Layers, x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        """Map (P, B, inputs) to the last hidden activations, (P, B, d).

        Dropout gives factors (P, B, d) of what each block adds.
        """
        first, *blocks, norm, _ = layers
        x = affine(x, *first)
        for number, (before, up, down) in enumerate(zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True)):
            y = affine(self.activation(affine(layer_normalized(x, *before), *up)), *down)
            x = x + (y * factors[number] if factors else y)
        return layer_normalized(x, *norm)


def he_normal(key: np.uint64, rows: int, columns: int) -> Tensor:
    """Return normal numbers (rows, columns) of variance 2 / rows."""
    u = streams.open_uniform(key, np.arange(2 * rows * columns)).reshape(2, rows, columns)
    normal = np.sqrt(-2 * np.log(u[0])) * np.cos(2 * np.pi * u[1])
    return torch.from_numpy(math.sqrt(2 / rows) * normal).float()
