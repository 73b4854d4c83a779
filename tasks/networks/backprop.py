"""Gradients of multilayer perceptrons by hand.

For networks as small as those of classic control, recording a graph and walking it costs more than the arithmetic. The
products are the ones that autograd would do. The weights are those that autograd does not watch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .mlp import MLP, Layers

# The derivative of an activation as a function of its value.
Derivative = Callable[[Tensor], Tensor]
DERIVATIVES: dict[str, Derivative] = {"tanh": lambda y: 1 - y * y, "relu": lambda y: (y > 0).to(y.dtype)}


def applies(sizes: Sequence[int], activation: str, batch_size: int) -> bool:
    """Whether a perceptron can be done by hand: no product with a vector, whose bits would depend on the cohort."""
    return activation in DERIVATIVES and min(*sizes, batch_size) > 1


def forward(mlp: MLP, layers: Layers, x: Tensor) -> list[Tensor]:
    """The values of all layers, from the input (P, B, inputs) to the output (P, B, outputs)."""
    values = [x]
    for weight, bias in layers[:-1]:
        values.append(mlp.activation(torch.baddbmm(bias, values[-1], weight)))
    weight, bias = layers[-1]
    return [*values, torch.baddbmm(bias, values[-1], weight)]


def backward(layers: Layers, values: list[Tensor], slopes: Tensor, derivative: Derivative) -> list[Tensor]:
    """The gradient of Σ slopes · output in every weight and bias, in the order of the layers, each (P, numbers)."""
    gradients: list[Tensor] = []
    for place in reversed(range(len(layers))):
        gradients = [torch.bmm(values[place].mT, slopes).flatten(1), slopes.sum(1), *gradients]
        if place:
            slopes = torch.bmm(slopes, layers[place][0].mT) * derivative(values[place])
    return gradients
