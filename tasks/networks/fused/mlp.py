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

from ...compiled.actor_critic import ROWS_AT_ONCE, Perceptron
from ...compiled.loading import kernels_of
from ..mlp import Activation, Layers
from .autograd import Operation, apply, array

FEW_OUTPUTS = 8  # up to this many outputs, a kernel computes a layer faster than a matrix product
FEW_PRODUCTS = 1 << 17  # up to this many multiplications per member, `ActingMLP` is faster


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

    scratch = ("_outputs", "_work", "_gradient", "_gradients", "_forward", "_backward", "_run", "_input", "_inputs")

    def __init__(self, sizes: Sequence[int], activation: Activation, vector: Tensor, members: int, rows: int):
        """Allocate the buffers.

        Args:
            sizes: sizes of the layers.
            activation: an activation that works in place.
            vector: parameters (P', D) of the members that learn; the layers' parameters are its first numbers.
            members: largest P of a call.
            rows: largest B of a call.
        """
        assert activation.apply_ is not None
        assert activation.backward_ is not None
        self._apply, self._apply_backward = activation.apply_, activation.backward_
        self._run = None if activation.kind is None else kernels_of(vector)
        self._kind = activation.kind or 0
        self.few = self._run is not None and sizes[-1] <= FEW_OUTPUTS and len(sizes) > 2  # a kernel computes the head
        self.leaf = vector.detach().requires_grad_()
        self._input = vector.new_empty(members, rows, sizes[0])
        self._inputs: dict[tuple[int, int, int, int], NDArray[np.float32]] = {}  # its parts, by members and rows
        self._outputs = [vector.new_empty(members, rows, size) for size in sizes[1:]]
        self._work = [vector.new_empty(members * rows * max(sizes[1:])) for _ in range(2)]
        self._gradient = torch.zeros_like(vector)
        pairs = list(pairwise(sizes))
        used = [size for inputs, outputs in pairs for size in (inputs * outputs, outputs)]
        parts = self._gradient[:, : sum(used)].split(used, 1)
        self._gradients = [
            (weight.unflatten(1, shape), bias.unsqueeze(1))
            for weight, bias, shape in zip(parts[::2], parts[1::2], pairs, strict=True)
        ]
        # Keys are the layers' id and the size of a call. The layers are stored, too, so that no others get their id.
        self._forward: dict[tuple[int, int, int], tuple[list[_Forward], list[Tensor], Layers]] = {}
        self._backward: dict[tuple[int, int, int, bool], tuple[list[_Backward], Layers]] = {}

    def __call__(
        self,
        layers: Layers,
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
            layers: weights and biases of all members, copies side by side.
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
        rest = (no_grad_inputs, no_grad_extra, layers, self, num_copies)
        learned, others, hidden = apply(_MLPFunction, *given, *rest)
        return learned, others, hidden

    def evaluate(self, layers: Layers, x: Tensor) -> Tensor:
        """Return the outputs (P, B, outputs) of x, without gradients."""
        return self.forward(layers, x)[-1].clone()

    def inputs(self, sets: Sequence[tuple[Tensor, Tensor | None]], num_copies: int, by_rows: bool) -> Tensor:
        """Join several sets of inputs and further numbers in one array.

        They are repeated for each copy, and follow one another as rows or as members.
        """
        if len(sets) == 1 and sets[0][1] is None and num_copies == 1:
            return sets[0][0]
        if self._run is None:
            return torch.cat([joined(x, extra, num_copies) for x, extra in sets], int(by_rows))
        member = row = 0
        for x, extra in sets:
            members, rows = num_copies * x.shape[0], x.shape[1]
            place = (member, members, row, rows)
            if place not in self._inputs:
                self._inputs[place] = self._input[member : member + members, row : row + rows].numpy()
            given = array(x)
            self._run.join(given, given[..., :0] if extra is None else array(extra), num_copies, self._inputs[place])
            member, row = (0, row + rows) if by_rows else (member + members, 0)
        return _part(self._input, *((members, row) if by_rows else (member, rows)))

    def forward(self, layers: Layers, x: Tensor) -> list[Tensor]:
        """Return the input, the hidden activations, and the output."""
        (members, rows), last, values = x.shape[:2], len(layers) - 1, [x]
        if self._run is not None:
            key = (id(layers), members, rows)
            if key not in self._forward:
                groups = [_Forward(self, layers, span, rows) for span in groups_of(members, rows)]
                self._forward[key] = (groups, [_part(out, members, rows) for out in self._outputs], layers)
            groups, outputs, _ = self._forward[key]
            for group in groups:
                group(x if len(groups) == 1 else x[group.span])
            return [x, *outputs]
        for i, ((weight, bias), out) in enumerate(zip(layers, self._outputs, strict=True)):
            x = torch.baddbmm(bias, x, weight, out=_part(out, members, rows))
            if i < last:
                self._apply(x)
            values.append(x)
        return values

    def backward(self, values: Sequence[Tensor], layers: Layers, g: Tensor, learn: bool) -> Tensor:
        """Propagate the gradient of the last layer's outputs to the first layer's.

        Both are (P', B', outputs). If the members `learn`, the gradient of their parameters is left in `_gradient`.
        """
        members, rows = g.shape[:2]
        if self._run is not None:
            key = (id(layers), members, rows, learn)
            if key not in self._backward:
                spans = groups_of(members, rows)
                plans = [_Backward(self, layers, members, span, rows, learn) for span in spans]
                self._backward[key] = (plans, layers)
            plans, _ = self._backward[key]
            if len(plans) == 1:
                return plans[0](values[0], g)
            for plan in plans:
                plan(values[0][plan.span], g[plan.span])
            return self.work(1, members, rows)
        for i in range(len(layers) - 1, -1, -1):
            x = _part(values[i], members, rows)
            if learn:
                d_weight, d_bias = self._gradients[i]
                torch.bmm(x.transpose(1, 2), g, out=d_weight)
                torch.sum(g, 1, keepdim=True, out=d_bias)
            if i > 0:
                work = self.work(i, members, rows)
                g = torch.bmm(g, layers[i][0][:members].transpose(1, 2), out=work)
                self._apply_backward(g, x)
        return g

    def work(self, layer: int, members: int, rows: int) -> Tensor:
        """Return a buffer for the gradient with respect to a layer's inputs."""
        shape = (members, rows, self._outputs[layer - 1].shape[2])
        return self._work[layer % 2][: math.prod(shape)].view(shape)

    def to_inputs(self, first: Tensor, layers: Layers, num_copies: int, start: int) -> Tensor:
        """Return the gradient of the inputs from `start` on, (P, B, ...).

        `first` is the gradient of the first layer's outputs.
        """
        members = first.shape[0]
        weight = layers[0][0][:members]
        few = weight.shape[1] - start <= FEW_OUTPUTS
        if self._run is not None and few:
            out = torch.empty(members // num_copies, first.shape[1], weight.shape[1] - start)
            self._run.to_inputs(first.numpy(), weight.numpy(), start, num_copies, out.numpy())
            return out
        both = torch.bmm(first, weight.transpose(1, 2))
        if num_copies > 1:
            both = both.unflatten(0, (-1, num_copies)).sum(1)
        return both[..., start:]


def groups_of(members: int, rows: int) -> list[slice]:
    """Return spans of members whose arrays fit into a processor's cache."""
    size = max(1, ROWS_AT_ONCE // rows)
    return [slice(first, min(first + size, members)) for first in range(0, members, size)]


class _Forward:
    """Forward pass of some members, with kernels.

    All views are created once, since creating one takes as long as the arithmetic of small networks.
    """

    def __init__(self, mlp: FusedMLP, layers: Layers, span: slice, rows: int):
        """Create the views for the members in a span."""
        self.span, self._run, self._kind = span, mlp._run, mlp._kind
        weights, biases = [weight[span] for weight, _ in layers], [bias[span] for _, bias in layers]
        wholes = [out[span] for out in mlp._outputs]
        self._size = (len(weights[0]), rows)
        parts, arrays = [_part(out, *self._size) for out in wholes], [out.numpy() for out in wholes]
        self._hidden = [
            (weight, part, whole, bias.numpy())
            for weight, part, whole, bias in zip(weights[:-1], parts, arrays, biases, strict=False)
        ]
        self._last = biases[-1], weights[-1], parts[-1]
        self._head = (arrays[-2], *(x.numpy() for x in (weights[-1], *self._last[::2]))) if mlp.few else None

    def __call__(self, x: Tensor) -> None:
        """Compute hidden activations and outputs for inputs (P', B, inputs)."""
        run = self._run
        assert run is not None
        for weight, part, whole, biases in self._hidden:
            x = torch.bmm(x, weight, out=part)
            run.activate(whole, whole, *self._size, biases, self._kind)
        if self._head is None:
            bias, weight, out = self._last
            torch.baddbmm(bias, x, weight, out=out)
        else:
            run.head(*self._head)


class _Backward:
    """Backward pass of some members, with kernels; see `_Forward`."""

    def __init__(self, mlp: FusedMLP, layers: Layers, members: int, span: slice, rows: int, learn: bool):
        """Create the views for the members in a span."""
        self.span, self._run, self._kind, self._learn, self._few = span, mlp._run, mlp._kind, learn, mlp.few
        self._gradients, self._steps = [(weight[span], bias[span]) for weight, bias in mlp._gradients], []
        for i in range(len(layers) - 1, 0, -1):
            whole, weight = mlp._outputs[i - 1][span], layers[i][0][:members][span]
            self._size = (len(weight), rows)
            h, units = _part(whole, *self._size), whole.shape[2]
            work = mlp.work(i, members, rows)[span]
            before = self._gradients[i - 1][1].numpy() if learn else np.empty((len(weight), 1, units), np.float32)
            products = (h.transpose(1, 2), self._gradients[i][0], weight.transpose(1, 2), work)
            self._steps.append((products, (work.numpy(), whole.numpy(), before, self._kind)))
            if i == len(layers) - 1:
                own = [x.numpy() for x in self._gradients[i]]
                self._head = (whole.numpy(), weight.numpy(), work.numpy(), *own, before, self._kind, learn)

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        """Return the gradient with respect to the first layer's outputs.

        x are the first layer's inputs.
        """
        run, learn = self._run, self._learn
        assert run is not None
        for i, ((h, to_weight, weight, work), slopes) in enumerate(self._steps):
            if i == 0 and self._few:
                run.head_slope(g.numpy(), *self._head)
            else:
                if learn:
                    torch.bmm(h, g, out=to_weight)
                    if i == 0:
                        torch.sum(g, 1, keepdim=True, out=self._gradients[-1][1])
                torch.bmm(g, weight, out=work)
                run.slope(*slopes)
            g = work
        if learn:
            torch.bmm(_part(x, *g.shape[:2]).transpose(1, 2), g, out=self._gradients[0][0])
        return g


class ActingMLP:
    """An `MLP` for the few rows that act, computed by a kernel.

    Attributes:
        most: largest number of rows.
    """

    scratch = ("_run", "_vector")

    def __init__(self, run: ModuleType, sizes: Sequence[int], activation: Activation, vector: Tensor):
        """Prepare the computation.

        The layers' parameters are the first numbers of the vector (P, D).
        """
        assert activation.kind is not None
        starts = Perceptron(sizes, 0).weights
        self._run, self._vector, self._kind = run, vector.numpy(), activation.kind
        self._sizes, self._starts = np.array(sizes, np.int64), np.array(starts, np.int64)
        self._units, self._outputs = sizes[-2:]
        self.most = FEW_PRODUCTS // sum(inputs * outputs for inputs, outputs in pairwise(sizes))

    @classmethod
    def of(cls, sizes: Sequence[int], activation: Activation, vector: Tensor) -> ActingMLP | None:
        """Return the computation; None if there are no kernels for it."""
        run = None if activation.kind is None else kernels_of(vector)
        return None if run is None or len(sizes) < 3 else cls(run, sizes, activation, vector)

    def __call__(self, x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the outputs and the last hidden activations, each (P, N, ...).

        x is (P, N, inputs).
        """
        members, rows = x.shape[:2]
        hidden = np.empty((members, rows, self._units), np.float32)
        out = np.empty((members, rows, self._outputs), np.float32)
        self._run.infer(x.numpy(), self._vector, self._sizes, self._starts, self._kind, hidden, out)
        return out, hidden


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
        no_grad_inputs, no_grad_extra, layers, mlp, num_copies = more  # as `FusedMLP.__call__` takes them
        ctx.set_materialize_grads(False)
        ctx.mlp, ctx.layers, ctx.num_copies, ctx.width = mlp, layers, num_copies, x.shape[-1]
        size, rows = num_copies * x.shape[0], x.shape[1]
        by_rows = size == layers[0][0].shape[0]
        sets = [(x, extra_inputs)] if no_grad_inputs is None else [(x, extra_inputs), (no_grad_inputs, no_grad_extra)]
        *values, out = mlp.forward(layers, mlp.inputs(sets, num_copies, by_rows))
        ctx.save_for_backward(*values, *[weight for weight, _ in layers])
        hidden = values[-1]
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
        values = ctx.saved_tensors[: len(ctx.layers)]
        g = g.contiguous() if ctx.num_copies == 1 else g.flatten(0, 1)
        first = mlp.backward(values, ctx.layers, g, learn)
        grad_x = grad_extra = None
        if needs_grad_x or needs_grad_extra:
            start = 0 if needs_grad_x else ctx.width
            both = mlp.to_inputs(first, ctx.layers, ctx.num_copies, start)
            grad_x = both[..., : ctx.width] if needs_grad_x else None
            grad_extra = both[..., ctx.width - start :] if needs_grad_extra else None
        return mlp._gradient if learn else None, grad_x, grad_extra, *[None] * 5
