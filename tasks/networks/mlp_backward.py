"""Multilayer perceptrons of M members with the gradient written out, for batches of one size in memory of their own.

A step of autograd through such networks makes dozens of new arrays; here they are made once. That saves much of the
time of small networks, and of large cohorts, whose arrays would otherwise come fresh from the operating system.

Notation: M members, B batch, D numbers in a member's parameter vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .mlp import Layers


class Activation(NamedTuple):
    """apply(x) changes x in place; back(g, y) changes g, the gradient of y = apply(x), in place to that of x."""

    apply: Callable[[Tensor], Any]
    back: Callable[[Tensor, Tensor], Any]


def _elu(x: Tensor) -> None:
    torch.maximum(x, x.clamp(max=0).exp_().sub_(1), out=x)  # exp(x) - 1 >= x, so x is the larger one above 0 only


ACTIVATIONS = {
    "relu": Activation(torch.relu_, lambda g, y: torch.ops.aten.threshold_backward(g, y, 0, grad_input=g)),
    "tanh": Activation(torch.tanh_, lambda g, y: torch.ops.aten.tanh_backward(g, y, grad_input=g)),
    "elu": Activation(_elu, lambda g, y: g.mul_(y.clamp(max=0).add_(1))),
}


class Dense:
    """The computation of an `MLP`, its gradient included.

    B, and all sizes but the last, are to be at least 2, and so is the last where M = 1: products with a vector round
    otherwise for one member than for many.

    It holds what the last call computed, for `backward`. None of it is state.
    """

    scratch = ("_inputs", "_outputs", "_work", "_gradient", "_gradients", "_layers")

    def __init__(self, sizes: Sequence[int], activation: str, members: int, rows: int, vector: Tensor):
        """sizes: of the layers; members, rows: the most M and B of a call; vector: (_, D), as the gradient shall be."""
        self.activation = ACTIVATIONS[activation]
        self._outputs = [vector.new_empty(members, rows, size) for size in sizes[1:]]
        self._work = [vector.new_empty(members * rows * max(sizes[1:])) for _ in range(2)]
        self._gradient = torch.zeros_like(vector)
        pairs = list(pairwise(sizes))
        self.used = sum((a + 1) * b for a, b in pairs)  # how many of the D numbers are of these layers
        parts = self._gradient[:, : self.used].split([number for a, b in pairs for number in (a * b, b)], 1)
        self._gradients = [
            (weight.unflatten(1, (a, b)), bias.unflatten(1, (1, b)))
            for weight, bias, (a, b) in zip(parts[::2], parts[1::2], pairs, strict=True)
        ]
        self._inputs: list[Tensor] = []
        self._layers: Layers = []

    def __call__(self, layers: Layers, x: Tensor) -> Tensor:
        """(M, B, inputs) -> (M, B, outputs), which the next call overwrites."""
        (members, rows), last = x.shape[:2], len(layers) - 1
        self._layers, self._inputs = layers, []
        for i, ((weight, bias), out) in enumerate(zip(layers, self._outputs, strict=True)):
            self._inputs.append(x)
            x = torch.baddbmm(bias, x, weight, out=out[:members, :rows])
            if i < last:
                self.activation.apply(x)
        return x

    @property
    def hidden(self) -> Tensor:
        """What the last call's last hidden layer put out, (M, B, width)."""
        return self._inputs[-1]

    def to_vector(self, g: Tensor) -> Tensor:
        """The gradient (M', D) in the parameters of the first M' members, overwritten by the next call.

        g: the gradient (M', B', outputs) in the last call's outputs; those of further members and rows are not used.
        """
        self._backward(g, to_vector=True)
        return self._gradient[: len(g)]

    def to_input(self, g: Tensor) -> Tensor:
        """The gradient (M', B', inputs) in the last call's input."""
        return self._to_input(self._backward(g, to_vector=False))

    def to_both(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """`to_vector` and `to_input`, with what they share done once."""
        first = self._backward(g, to_vector=True)
        return self._gradient[: len(g)], self._to_input(first)

    def _to_input(self, g: Tensor) -> Tensor:
        return torch.bmm(g, self._layers[0][0][: len(g)].transpose(1, 2))

    def _backward(self, g: Tensor, to_vector: bool) -> Tensor:
        members, rows = g.shape[:2]
        for i in range(len(self._layers) - 1, -1, -1):
            x, weight = self._inputs[i][:members, :rows], self._layers[i][0][:members]
            if to_vector:
                d_weight, d_bias = self._gradients[i]
                torch.bmm(x.transpose(1, 2), g, out=d_weight[:members])
                torch.sum(g, 1, keepdim=True, out=d_bias[:members])
            if i > 0:
                work = self._work[i % 2][: x.numel()].view(x.shape)
                g = torch.bmm(g, weight.transpose(1, 2), out=work)
                self.activation.back(g, x)
        return g
