"""Noisy layers, for exploration: Fortunato et al. (2018), arXiv:1706.10295.

    y = x (W + S ∘ f(u) f(v)ᵀ) + b + s ∘ f(v),   f(z) = sign(z) √|z|

The standard normal numbers u (one for each input) and v (one for each output) are drawn anew for each use; S and s are
learned, too. Without numbers, the layers are those of the means W and b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..rng import streams
from .mlp import MLP, Layers, Parameters


class NoisyMLP(MLP):
    """An `MLP` of noisy layers.

    Beside its weights and biases are their deviations, ``{prefix}.{layer}.weight_std`` and ``.bias_std``.

    Attributes:
        noise_size: normal numbers for one use.
    """

    def __init__(self, prefix: str, sizes: Sequence[int], activation: str, std_init: float):
        """Declare the parameters.

        Args:
            prefix: prefix of the parameters' names.
            sizes: numbers of inputs, hidden units and outputs.
            activation: name of the activation.
            std_init: σ₀; deviations begin at σ₀ / √inputs.
        """
        super().__init__(prefix, sizes, activation, last_gain=1.0)
        self.std_init = std_init
        self.noise_size = sum(inputs + outputs for inputs, outputs in pairwise(sizes))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        means = super().shapes
        return {**means, **{f"{name}_std": shape for name, shape in means.items()}}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw means uniformly from ±1 / √inputs: section 3.2 of the paper."""
        for layer, inputs in enumerate(self.sizes[:-1]):
            for name in (f"{self.prefix}.{layer}.weight", f"{self.prefix}.{layer}.bias"):
                view = parameters.views[name][member]
                numbers = streams.uniform(streams.key(seed, "init", name), np.arange(view.numel()))
                view.copy_(torch.from_numpy((2 * numbers - 1) / math.sqrt(inputs)).reshape(view.shape))
                parameters.views[f"{name}_std"][member] = self.std_init / math.sqrt(inputs)

    def noisy_layers(self, tensors: Mapping[str, Tensor], noise: Tensor) -> Layers:
        """Return (weight, bias) of every layer for normal numbers (P, noise_size)."""
        scaled, layers, end = noise.sign() * noise.abs().sqrt(), [], 0
        for (weight, bias), name, (inputs, outputs) in zip(
            self.layers(tensors), self.names, pairwise(self.sizes), strict=True
        ):
            of_inputs = scaled[:, end : end + inputs].unsqueeze(2)
            of_outputs = scaled[:, end + inputs : end + inputs + outputs].unsqueeze(1)
            end += inputs + outputs
            weight_std, bias_std = tensors[f"{name}.weight_std"], tensors[f"{name}.bias_std"]
            layers.append((weight + weight_std * (of_inputs * of_outputs), bias + bias_std * of_outputs))
        return layers
