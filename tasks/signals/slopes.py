"""The slope of a perceptron of tanh in its input, written out, so that a loss of it can be differentiated once more.

Notation: P members, B batch.
"""

from __future__ import annotations

from torch import Tensor

from ..networks.mlp import MLP, Layers, affine


def slope_of(net: MLP, layers: Layers, x: Tensor) -> Tensor:
    """The slope (P, B, inputs) of a perceptron with one output in x (P, B, inputs)."""
    return pulled_back(layers, hidden_values(net, layers, x), layers[-1][0].transpose(1, 2))


def hidden_values(net: MLP, layers: Layers, x: Tensor) -> list[Tensor]:
    """x and what each hidden layer makes of it."""
    values = [x]
    for weight, bias in layers[:-1]:
        values.append(net.activation(affine(values[-1], weight, bias)))
    return values


def pulled_back(layers: Layers, values: list[Tensor], slope: Tensor) -> Tensor:
    """The slope (P, B, inputs) in x of what has this slope (P, B or 1, width) in the last hidden layer's values."""
    for (weight, _), y in zip(reversed(layers[:-1]), reversed(values[1:]), strict=True):
        slope = through(slope * (1 - y * y), weight)
    return slope


def through(slope: Tensor, weight: Tensor) -> Tensor:
    """The slope (P, B, inputs) in the input of x W, where it is (P, B, outputs) in its output."""
    return affine(slope, weight.transpose(1, 2), weight.new_zeros(len(weight), 1, weight.shape[1]))
