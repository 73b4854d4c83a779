"""Multilayer perceptrons whose arrays are allocated once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...compiled.loading import kernels_of
from ..mlp import Activation, Layers
from .autograd import Operation, apply, array, overwritten


class FusedMLP:
    """An `MLP` as one autograd node, with preallocated arrays.

    Torch's autograd allocates dozens of arrays in a step through such networks; here they are allocated once. This
    saves much of the time of small networks, and of large cohorts, whose arrays would otherwise come fresh from the
    operating system. All calls share the buffers, so a call overwrites the results of the previous one; autograd raises
    an error if those are differentiated afterwards.

    B and all sizes but the last must be at least 2; if P = 1, so must the last (see Exactness in mlp.py).

    Attributes:
        leaf: parameter vectors (P', D) of the members that learn; gradients are taken with respect to it.
    """

    scratch = ("passes", "_run", "_input", "_inputs")

    def __init__(self, sizes: Sequence[int], activation: Activation, vector: Tensor, members: int, rows: int):
        """Allocate the buffers.

        Args:
            sizes: sizes of the layers.
            activation: an activation that works in place.
            vector: parameters (P', D) of the members that learn; the layers' parameters are its first numbers.
            members: largest P of a call.
            rows: largest B of a call.
        """
        self.leaf = vector.detach().requires_grad_()
        self._run = None if activation.kind is None or len(sizes) < 3 else kernels_of(vector)
        self.passes: _Kernels | _Torch
        if self._run is None:
            self.passes = _Torch(sizes, activation, vector, members, rows)
        else:
            self.passes = _Kernels(self._run, sizes, activation, vector, members, rows)
        self._input = vector.new_empty(members, rows, sizes[0])
        self._inputs: dict[tuple[int, int, int, int], NDArray[np.float32]] = {}  # its parts, by members and rows

    def __call__(
        self,
        vector: Tensor,
        x: Tensor,
        extra_inputs: Tensor | None = None,
        no_grad_inputs: Tensor | None = None,
        no_grad_extra: Tensor | None = None,
        num_copies: int = 1,
        learn: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map inputs (P, B, inputs) to outputs (P, B, outputs).

        With several copies of a network, outputs are (P, num_copies, B, outputs).

        Args:
            vector: parameter vectors (P, D) of all members, copies side by side; the object is kept for later calls.
            x: inputs that get gradients: those of the first P' members, or the first rows of all.
            extra_inputs: further numbers of the same inputs, which get gradients, too.
            no_grad_inputs: inputs of the other members, or the other rows, which get no gradients.
            no_grad_extra: further numbers of those.
            num_copies: copies of a network that take the same inputs.
            learn: whether `leaf` gets a gradient.

        Returns:
            The outputs of x, those of `no_grad_inputs`, and the last hidden activations of both, without gradients.
        """
        given = (self.leaf if learn else None, x, extra_inputs)
        rest = (no_grad_inputs, no_grad_extra, vector, self, num_copies)
        learned, others, hidden = apply(_MLPFunction, *given, *rest)
        return learned, others, hidden

    @property
    def compiled(self) -> tuple[NDArray[np.int64], int] | None:
        """Sizes of the layers and the activation, for kernels; None without."""
        return self.passes.form if isinstance(self.passes, _Kernels) else None

    def evaluate(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (P, B, outputs) of x, without gradients."""
        return self.passes.forward(vector, x.contiguous())[1].clone()

    def inputs(self, sets: Sequence[tuple[Tensor, Tensor | None]], num_copies: int, by_rows: bool) -> Tensor:
        """Join several sets of inputs and further numbers in one array.

        They are repeated for each copy, and follow one another as rows or as members.
        """
        if len(sets) == 1 and sets[0][1] is None and num_copies == 1:
            return sets[0][0].contiguous()
        if self._run is None:
            return torch.cat([joined(x, extra, num_copies) for x, extra in sets], int(by_rows))
        member = row = 0
        for x, extra in sets:
            members, rows = num_copies * x.shape[0], x.shape[1]
            place = (member, members, row, rows)
            if place not in self._inputs:
                self._inputs[place] = self._input[member : member + members, row : row + rows].numpy()
            given, to = array(x), self._inputs[place]
            more = given[..., :0] if extra is None else array(extra)
            _require(to.shape == (members, rows, given.shape[2] + more.shape[2]), x)
            self._run.join(given, more, num_copies, to)
            member, row = (0, row + rows) if by_rows else (member + members, 0)
        return _part(self._input, *((members, row) if by_rows else (member, rows))).contiguous()


class _Torch:
    """Forward and backward passes in torch operations.

    Attributes:
        buffers: results of the last forward pass that the backward pass needs.
        gradient: of the members that learn, (P', D), of the last backward pass.
    """

    def __init__(self, sizes: Sequence[int], activation: Activation, vector: Tensor, members: int, rows: int):
        assert activation.apply_ is not None
        assert activation.backward_ is not None
        self._apply, self._apply_backward = activation.apply_, activation.backward_
        *self.buffers, self._out = [vector.new_empty(members, rows, size) for size in sizes[1:]]
        self._slopes = [vector.new_empty(members * rows * max(sizes[1:])) for _ in range(2)]
        self.gradient, self._sizes = torch.zeros_like(vector), sizes
        self._gradients = layers_of(self.gradient, sizes)
        self._layers: dict[int, tuple[Layers, Tensor]] = {}  # by the vector's id, which no other gets as it is stored

    def forward(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return last hidden activations and outputs for x (P, B, inputs)."""
        members, rows = x.shape[:2]
        *layers, last = self._layers_of(vector)
        for (weight, bias), out in zip(layers, self.buffers, strict=True):
            x = torch.baddbmm(bias, x, weight, out=_part(out, members, rows))
            self._apply(x)
        out = self._out[:members, :rows]  # a view of its own, since autograd keeps a node with each result
        return x, torch.baddbmm(last[1], x, last[0], out=out)

    def backward(self, x: Tensor, vector: Tensor, g: Tensor, learn: bool) -> Tensor:
        """Propagate the gradient of the last layer's outputs to the first's.

        Both are (P', B', outputs), x (P, B, inputs). If the members `learn`, `gradient` is filled in.
        """
        members, rows = g.shape[:2]
        layers, values = self._layers_of(vector), [x, *self.buffers]
        for i in range(len(layers) - 1, -1, -1):
            before = _part(values[i], members, rows)
            if learn:
                d_weight, d_bias = self._gradients[i]
                torch.bmm(before.transpose(1, 2), g, out=d_weight)
                torch.sum(g, 1, keepdim=True, out=d_bias)
            if i > 0:
                shape = before.shape
                slopes = self._slopes[i % 2][: math.prod(shape)].view(shape)
                g = torch.bmm(g, layers[i][0][:members].transpose(1, 2), out=slopes)
                self._apply_backward(g, before)
        return g

    def to_inputs(self, first: Tensor, vector: Tensor, num_copies: int, start: int) -> Tensor:
        """Return the gradient of the inputs from `start` on, (P, B, ...).

        `first` is the gradient of the first layer's outputs, of all copies.
        """
        weight, _ = self._layers_of(vector)[0]
        both = torch.bmm(first, weight[: len(first)].transpose(1, 2))[..., start:]
        return both if num_copies == 1 else both.unflatten(0, (-1, num_copies)).sum(1)

    def _layers_of(self, vector: Tensor) -> Layers:
        if id(vector) not in self._layers:
            self._layers[id(vector)] = layers_of(vector, self._sizes), vector
        return self._layers[id(vector)][0]


class _Kernels:
    """Forward and backward passes by kernels; see `_Torch`."""

    def __init__(
        self, run: ModuleType, sizes: Sequence[int], activation: Activation, vector: Tensor, members: int, rows: int
    ):
        self._run, self._kind, self._sizes = run, activation.kind or 0, np.array(sizes, np.int64)
        self._hidden, self._room = sizes[1:-1], (members, rows, sizes[0])
        units, slopes = (vector.new_empty(members, rows * sum(self._hidden)) for _ in range(2))
        self._out, self.buffers, self._slopes = vector.new_empty(members * rows * sizes[-1]), [units], slopes
        self.gradient = torch.zeros_like(vector)
        _require(vector.shape[1] >= sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes)), vector)
        self._arrays = [x.numpy() for x in (units, slopes, self.gradient)]
        self._vectors: dict[int, tuple[NDArray[np.float32], Tensor]] = {}  # as `_layers` of `_Torch`

    def forward(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return last hidden activations and outputs for x (P, B, inputs).

        Raises:
            ValueError: if buffers or parameters are too small for x; kernels would write beyond them.
        """
        (members, rows, _), outputs, units = x.shape, int(self._sizes[-1]), self.buffers[0]
        _require(members <= len(vector), x)
        _require(members <= self._room[0] and rows <= self._room[1] and x.shape[2] == self._room[2], x)
        out = self._out[: members * rows * outputs].view(members, rows, outputs)
        self._run.forward(array(x), self._numbers(vector), self._sizes, self._kind, self._arrays[0], out.numpy())
        for changed in (units, self._out):
            overwritten(changed)
        *before, last = self._hidden
        hidden = units[:members, rows * sum(before) : rows * (sum(before) + last)]
        return hidden.unflatten(1, (rows, last)), out

    def backward(self, x: Tensor, vector: Tensor, g: Tensor, learn: bool) -> Tensor:
        """Propagate the gradient of the last layer's outputs to the first's."""
        _require(not learn or len(g) <= len(self.gradient), g)
        given = (array(g), array(x), self._numbers(vector))
        self._run.backward(*given, self._sizes, self._kind, *self._arrays, learn)
        (members, rows), units = g.shape[:2], self._hidden[0]
        return self._slopes[:members, : rows * units].unflatten(1, (rows, units))

    def to_inputs(self, first: Tensor, vector: Tensor, num_copies: int, start: int) -> Tensor:
        """Return the gradient of the inputs from `start` on, (P, B, ...).

        It follows from the slopes of the last backward pass.
        """
        copies, rows = first.shape[:2]
        out = first.new_empty(copies // num_copies, rows, int(self._sizes[0]) - start)
        given = (self._arrays[1], self._numbers(vector), self._sizes, start, num_copies)
        self._run.to_inputs(*given, out.numpy())
        return out

    @property
    def form(self) -> tuple[NDArray[np.int64], int]:
        """Sizes of the layers, and the activation."""
        return self._sizes, self._kind

    def _numbers(self, vector: Tensor) -> NDArray[np.float32]:
        if id(vector) not in self._vectors:
            _require(vector.shape[1] >= self.gradient.shape[1], vector)
            self._vectors[id(vector)] = vector.detach().numpy(), vector
        return self._vectors[id(vector)][0]


class ActingMLP:
    """An `MLP` that acts, computed by a kernel."""

    scratch = ("_run", "_vector")

    def __init__(self, run: ModuleType, sizes: Sequence[int], activation: Activation, vector: Tensor):
        """Prepare the computation.

        The layers' parameters are the first numbers of the vector (P, D).
        """
        assert activation.kind is not None
        self._run, self._vector, self._kind = run, vector.numpy(), activation.kind
        self._sizes, self._units, self._outputs = np.array(sizes, np.int64), sizes[-2], sizes[-1]

    @classmethod
    def of(cls, sizes: Sequence[int], activation: Activation, vector: Tensor) -> ActingMLP | None:
        """Return the computation; None if there are no kernels for it."""
        run = None if activation.kind is None else kernels_of(vector)
        return None if run is None or len(sizes) < 3 else cls(run, sizes, activation, vector)

    def __call__(self, x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the outputs and the last hidden activations, each (P, N, ...).

        x is (P, N, inputs).
        """
        members, rows, inputs = x.shape
        _require(members <= len(self._vector) and inputs == self._sizes[0], x)
        hidden = np.empty((members, rows, self._units), np.float32)
        out = np.empty((members, rows, self._outputs), np.float32)
        self._run.infer(array(x.contiguous()), self._vector, self._sizes, self._kind, hidden, out)
        return out, hidden


def layers_of(vector: Tensor, sizes: Sequence[int]) -> Layers:
    """Return views of the layers that parameter vectors (P, D) begin with."""
    pairs = list(pairwise(sizes))
    used = [size for inputs, outputs in pairs for size in (inputs * outputs, outputs)]
    parts = vector[:, : sum(used)].split(used, 1)
    return [
        (weight.unflatten(1, shape), bias.unsqueeze(1))
        for weight, bias, shape in zip(parts[::2], parts[1::2], pairs, strict=True)
    ]


def _require(fits: bool, x: Tensor) -> None:
    """Raise a ValueError unless a tensor fits; kernels do not check bounds."""
    if not fits:
        raise ValueError(f"a perceptron's kernels have no room for {tuple(x.shape)}")


def _part(x: Tensor, members: int, rows: int) -> Tensor:
    """Return the first rows of the first members.

    x is (P, B, ...); often that is all of it.
    """
    return x if x.shape[0] == members and x.shape[1] == rows else x[:members, :rows]


def joined(x: Tensor, extra_inputs: Tensor | None, num_copies: int) -> Tensor:
    """Repeat inputs for each copy of a network, copies side by side.

    The result is (P * num_copies, B, inputs).
    """
    x = x if extra_inputs is None else torch.cat([x, extra_inputs], -1)
    if num_copies == 1:
        return x
    beside = x.unsqueeze(1).expand(-1, num_copies, -1, -1)  # (P, num_copies, B, D)
    return beside.reshape(-1, *x.shape[1:])


class _MLPFunction(Operation):
    inputs = 3

    @staticmethod
    def forward(
        ctx: Any, vector: Tensor | None, x: Tensor, extra_inputs: Tensor | None, *more: Any
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        no_grad_inputs, no_grad_extra, parameters, mlp, num_copies = more  # as `FusedMLP.__call__` takes them
        ctx.set_materialize_grads(False)
        ctx.mlp, ctx.vector, ctx.num_copies, ctx.width = mlp, parameters, num_copies, x.shape[-1]
        size, rows = num_copies * x.shape[0], x.shape[1]
        by_rows = size == len(parameters)
        sets = [(x, extra_inputs)] if no_grad_inputs is None else [(x, extra_inputs), (no_grad_inputs, no_grad_extra)]
        joint = mlp.inputs(sets, num_copies, by_rows)
        hidden, out = mlp.passes.forward(parameters, joint)
        ctx.save_for_backward(joint, *mlp.passes.buffers, parameters)
        ctx.mark_non_differentiable(hidden)
        if num_copies > 1:
            out = out.unflatten(0, (-1, num_copies))
        if no_grad_inputs is None:
            return out, None, hidden
        learned, others = out.tensor_split([rows], 1) if by_rows else out.tensor_split([x.shape[0]])
        ctx.mark_non_differentiable(others, hidden)
        return learned, others, hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        mlp, (learn, needs_grad_x, needs_grad_extra) = ctx.mlp, ctx.needs_input_grad[:3]
        inputs = ctx.saved_tensors[0]  # raises if any were overwritten
        g = (g if ctx.num_copies == 1 else g.flatten(0, 1)).contiguous()
        first = mlp.passes.backward(inputs, ctx.vector, g, learn)
        grad_x = grad_extra = None
        if needs_grad_x or needs_grad_extra:
            start = 0 if needs_grad_x else ctx.width
            both = mlp.passes.to_inputs(first, ctx.vector, ctx.num_copies, start)
            grad_x = both[..., : ctx.width] if needs_grad_x else None
            grad_extra = both[..., ctx.width - start :] if needs_grad_extra else None
        return mlp.passes.gradient if learn else None, grad_x, grad_extra, *[None] * 5
