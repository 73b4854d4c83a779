"""Multilayer perceptrons of P members at once.

A member's parameters are one vector, and all products are batched over members.

Exactness
---------
A member's result must not depend on its cohort, on its place in the cohort, or on where a batch lies in memory. The
following rules ensure that. They hold everywhere in tasks/, and other files refer to them here:

- A product with a vector (one row, one column or one inner number) takes a different path through the BLAS for one
  member than for many, with different last bits. Vectors are therefore padded to matrices of two rows or columns
  (`affine`).
- Vectorized loops process the end of an array with other instructions. exp, log, tanh and arithmetic round alike in
  both parts; sigmoid, softplus, pow, silu and elu do not. Only the former are used, and parameter vectors are padded to
  ALIGNMENT.
- A sum's rounding depends on its strides and its length. Summands are contiguous, and a mean over a batch is always
  computed in the same way.
- (a b) c rounds differently from a (b c), and g / B from g (1 / B). The place where a gradient is divided by the batch
  size is part of the result.
- The rows of a product depend on their number: B rows of a product of 2B differ from a product of B. (What is said here
  of products is true of libraries. Those of kernels sum term by term, see `compiled.products`.)
- A factorization on several threads rounds by the number of threads: `orthogonal` uses one.

Notation: P members, B batch, D numbers in a member's parameter vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Protocol

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
    """Return x / (1 + exp(-x))."""
    return x / (1 + (-x).clamp(max=87.0).exp())  # exp overflows beyond 87, and the slope would be NaN


def elu(x: Tensor) -> Tensor:
    """Return x for x > 0, and exp(x) - 1 otherwise."""
    return torch.where(x > 0, x, x.clamp(max=0).exp() - 1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "silu": silu, "elu": elu}


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W + b for every member, (P, B, outputs).

    x is (P, B, inputs), weight (P, inputs, outputs), bias (P, 1, outputs).
    """
    rows, (inputs, outputs) = x.shape[1], weight.shape[1:]
    if rows > 1 and inputs > 1 and outputs > 1:
        return torch.baddbmm(bias, x, weight)
    more_rows, more_inputs, more_outputs = (int(n == 1) for n in (rows, inputs, outputs))  # see Exactness
    x = functional.pad(x, (0, more_inputs, 0, more_rows))
    weight = functional.pad(weight, (0, more_outputs, 0, more_inputs))
    return torch.bmm(x, weight)[:, :rows, :outputs] + bias


class Parameters(Stacked):
    """Parameter vectors (P, D), with named tensors (P, ...) as views.

    Attributes:
        vector: (P, D), only changed in place.
        spans: slice of each tensor in a member's vector, by name.
        views: views of the vector, by name.
        leaves: the same views, as leaves of autograd.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], members: int, device: torch.device | str = "cpu"):
        self.shapes = dict(shapes)
        stops = list(accumulate((math.prod(shape) for shape in shapes.values()), initial=0))
        self.spans = {name: slice(*span) for name, span in zip(shapes, pairwise(stops), strict=True)}
        self.padding = -stops[-1] % ALIGNMENT
        self.vector = torch.zeros(members, stops[-1] + self.padding, device=device)
        self.tensors = {"vector": self.vector}
        self.views = dict(zip(self.shapes, self.views_of(self.vector), strict=True))
        self.leaves = {name: view.detach().requires_grad_() for name, view in self.views.items()}

    def views_of(self, vectors: Tensor) -> list[Tensor]:
        """Return views (P, ...) of vectors (P, D), one for each parameter."""
        return [
            vectors[:, span].unflatten(1, shape) if shape else vectors[:, span.start]
            for shape, span in zip(self.shapes.values(), self.spans.values(), strict=True)
        ]

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient (P, D) of each member's loss (P,).

        It is taken with respect to the member's own parameters; unused ones get zeros.
        """
        return self.joined(torch.autograd.grad(losses.sum(), list(self.leaves.values()), allow_unused=True))

    def joined(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Join the gradients of all leaves, in their order, to (P, D).

        None stands for zeros.
        """
        members = len(self.vector)
        flat = [
            self.vector.new_zeros(members, math.prod(shape)) if g is None else g.reshape(members, -1)
            for g, shape in zip(gradients, self.shapes.values(), strict=True)
        ]
        if self.padding:
            flat.append(self.vector.new_zeros(members, self.padding))
        return torch.cat(flat, 1)

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the vector."""
        return {name: view[member] for name, view in self.views.items()}

    def copy(self) -> Parameters:
        """Return parameters of the same values, such as a target network's."""
        copied = Parameters(self.shapes, len(self.vector), self.vector.device)
        copied.vector.copy_(self.vector)
        return copied


class Network(Protocol):
    """A network whose parameters are stored in a `Parameters`."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one member's parameters, by name."""

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Set one member's initial weights, from its own random stream."""


def shapes_of(networks: Iterable[Network]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters of these networks, in order."""
    return {name: shape for network in networks for name, shape in network.shapes.items()}


def initialize(networks: Iterable[Network], parameters: Parameters, seeds: Sequence[int]) -> Parameters:
    """Set all members' initial weights from their seeds; return the parameters."""
    networks = list(networks)
    for member, seed in enumerate(seeds):
        for network in networks:
            network.initialize(parameters, member, seed)
    return parameters


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def orthogonal(key: np.uint64, rows: int, columns: int, gain: float) -> Tensor:
    """Return a random matrix with orthonormal rows or columns, times gain.

    Saxe et al. (2014), arXiv:1312.6120.

    Args:
        key: random stream.
        rows: rows of the matrix.
        columns: columns of the matrix.
        gain: factor.
    """
    size = max(rows, columns) * min(rows, columns)
    u = streams.open_uniform(key, np.arange(2 * size))
    normal = np.sqrt(-2 * np.log(u[:size])) * np.cos(2 * np.pi * u[size:])
    with _blas().limit(limits=1, user_api="blas"):  # see Exactness
        q, r = np.linalg.qr(normal.reshape(max(rows, columns), min(rows, columns)))
    q *= np.sign(np.diag(r))  # makes the decomposition unique, and q uniformly distributed
    return torch.from_numpy(gain * (q if rows >= columns else q.T)).float()


def actor_layers(model: SimpleNamespace) -> list[int]:
    """Return the widths of hidden layers: `hidden`, else `layers` times `width`."""
    return list(model.hidden or [model.width] * model.layers)


def critic_layers(model: SimpleNamespace) -> list[int]:
    """Return the widths of the critic's hidden layers.

    They are `critic_hidden`, else of `critic_width`, else the actor's.
    """
    return list(model.critic_hidden or [vars(model).get("critic_width") or width for width in actor_layers(model)])


class MLP:
    """A multilayer perceptron whose weights are stored in a `Parameters`.

    Their names are ``{prefix}.{layer}.weight`` and ``.bias``.
    """

    def __init__(self, prefix: str, sizes: Sequence[int], activation: str, last_gain: float):
        self.prefix, self.sizes, self.last_gain = prefix, list(sizes), last_gain
        self.activation_name, self.activation = activation, ACTIVATIONS[activation]

    @property
    def names(self) -> list[str]:
        """Names of the layers."""
        return [f"{self.prefix}.{layer}" for layer in range(len(self.sizes) - 1)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one member's parameters, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            shapes[f"{self.prefix}.{layer}.weight"] = (inputs, outputs)
            shapes[f"{self.prefix}.{layer}.bias"] = (1, outputs)
        return shapes

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw orthogonal weights from the member's own stream; biases stay zero."""
        last = len(self.sizes) - 2
        for layer, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            name = f"{self.prefix}.{layer}.weight"
            gain = self.last_gain if layer == last else math.sqrt(2)
            parameters.views[name][member] = orthogonal(streams.key(seed, "init", name), inputs, outputs, gain)

    def layers(self, tensors: Mapping[str, Tensor]) -> Layers:
        """Look up (weight, bias) of every layer, once for many calls."""
        return [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in self.names]

    def __call__(self, layers: Layers, x: Tensor) -> Tensor:
        """Map (P, B, inputs) to (P, B, outputs)."""
        return affine(self.hidden(layers, x), *layers[-1])

    def run(self, tensors: Mapping[str, Tensor], x: Tensor, factors: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Map (P, B, inputs) to the outputs and the last layer's inputs."""
        layers = self.layers(tensors)
        z = self.hidden(layers, x, factors)
        return affine(z, *layers[-1]), z

    def hidden(self, layers: Layers, x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        """Map (P, B, inputs) to the last hidden activations, (P, B, width).

        Dropout gives factors (P, B, width) of each hidden layer's units, before the activation.
        """
        for number, (weight, bias) in enumerate(layers[:-1]):
            y = affine(x, weight, bias)
            x = self.activation(y * factors[number] if factors else y)
        return x
