"""Networks of P members at once: all parameters of a member are one vector, all products are batched.

The vector is padded to a multiple of 64 numbers, so that no element ever falls into the tail of a vectorized loop,
where some operations round differently: a member's bits would otherwise depend on its place in the cohort.

Notation: P members, B batch, D numbers in a member's parameter vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn import functional

from ..checkpoint.member_state import Stacked
from ..rng import streams

ALIGNMENT = 64
Layers = list[tuple[Tensor, Tensor]]


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)); torch's own rounds by position in the array."""
    return x / (1 + (-x).clamp(max=87.0).exp())  # beyond, exp is infinite and the slope would be NaN


def elu(x: Tensor) -> Tensor:
    """x for x > 0, exp(x) - 1 otherwise; torch's own rounds by position in the array."""
    return torch.where(x > 0, x, x.clamp(max=0).exp() - 1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "silu": silu, "elu": elu}


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b of every member: (P, B, inputs), (P, inputs, outputs), (P, 1, outputs) -> (P, B, outputs).

    A product with a vector takes another path for one member than for many, with other last bits, so vectors are padded
    to matrices of two rows or columns.
    """
    rows, (inputs, outputs) = x.shape[1], weight.shape[1:]
    if rows > 1 and inputs > 1 and outputs > 1:
        return torch.baddbmm(bias, x, weight)
    more_rows, more_inputs, more_outputs = (int(n == 1) for n in (rows, inputs, outputs))
    x = functional.pad(x, (0, more_inputs, 0, more_rows))
    weight = functional.pad(weight, (0, more_outputs, 0, more_inputs))
    return torch.bmm(x, weight)[:, :rows, :outputs] + bias


class Parameters(Stacked):
    """P parameter vectors, (P, D), and the named tensors (P, ...) that lie in them.

    Attributes:
        vector: (P, D), changed in place only.
        leaves: name -> view of the vector that autograd differentiates with respect to.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], members: int, device: torch.device | str = "cpu"):
        self.shapes = dict(shapes)
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.padding = -sum(sizes) % ALIGNMENT
        self.vector = torch.zeros(members, sum(sizes) + self.padding, device=device)
        self.tensors = {"vector": self.vector}
        parts = self.vector[:, : sum(sizes)].split(sizes, 1)
        self.views = {
            name: part.unflatten(1, shape) if shape else part[:, 0]
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        self.leaves = {name: view.detach().requires_grad_() for name, view in self.views.items()}

    def gradient(self, losses: Tensor) -> Tensor:
        """The gradient (P, D) of each member's loss (P,) in its own parameters; unused parameters get zeros."""
        gradients = torch.autograd.grad(losses.sum(), list(self.leaves.values()), allow_unused=True)
        members = len(self.vector)
        flat = [
            self.vector.new_zeros(members, math.prod(shape)) if g is None else g.reshape(members, -1)
            for g, shape in zip(gradients, self.shapes.values(), strict=True)
        ]
        if self.padding:
            flat.append(self.vector.new_zeros(members, self.padding))
        return torch.cat(flat, 1)

    def of(self, member: int) -> dict[str, Tensor]:
        """One member's parameters by name; views of the vector."""
        return {name: view[member] for name, view in self.views.items()}


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def orthogonal(key: np.uint64, rows: int, columns: int, gain: float) -> Tensor:
    """A (rows, columns) matrix with orthonormal rows or columns, times gain: Saxe et al. (2014), arXiv:1312.6120."""
    size = max(rows, columns) * min(rows, columns)
    u = streams.open_uniform(key, np.arange(2 * size))
    normal = np.sqrt(-2 * np.log(u[:size])) * np.cos(2 * np.pi * u[size:])
    with _blas().limit(limits=1, user_api="blas"):  # more threads may round differently
        q, r = np.linalg.qr(normal.reshape(max(rows, columns), min(rows, columns)))
    q *= np.sign(np.diag(r))  # makes the decomposition unique, and q uniformly distributed
    return torch.from_numpy(gain * (q if rows >= columns else q.T)).float()


class MLP:
    """A multilayer perceptron whose weights lie in a Parameters under ``{prefix}.{layer}.weight`` and ``.bias``."""

    def __init__(self, prefix: str, sizes: Sequence[int], activation: str, last_gain: float):
        self.prefix, self.sizes, self.last_gain = prefix, list(sizes), last_gain
        self.activation = ACTIVATIONS[activation]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters' shapes by name, one member's."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            shapes[f"{self.prefix}.{layer}.weight"] = (inputs, outputs)
            shapes[f"{self.prefix}.{layer}.bias"] = (1, outputs)
        return shapes

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Orthogonal weights from the member's own stream, zero biases."""
        last = len(self.sizes) - 2
        for layer, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            name = f"{self.prefix}.{layer}.weight"
            gain = self.last_gain if layer == last else math.sqrt(2)
            parameters.views[name][member] = orthogonal(streams.key(seed, "init", name), inputs, outputs, gain)

    def layers(self, tensors: Mapping[str, Tensor]) -> Layers:
        """(weight, bias) of every layer, looked up once for many calls."""
        names = [f"{self.prefix}.{layer}" for layer in range(len(self.sizes) - 1)]
        return [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]

    def __call__(self, layers: Layers, x: Tensor) -> Tensor:
        """(P, B, inputs) -> (P, B, outputs)."""
        return affine(self.hidden(layers, x), *layers[-1])

    def hidden(self, layers: Layers, x: Tensor) -> Tensor:
        """(P, B, inputs) -> the activations of the last hidden layer, (P, B, width)."""
        for weight, bias in layers[:-1]:
            x = self.activation(affine(x, weight, bias))
        return x
