"""Fused operations: one autograd node each, with a hand-written backward pass.

They are faster than autograd's, and exact (see Exactness in mlp.py).

Notation: P members, B batch, k continuous numbers and n choices in an action, L hidden activations, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..compiled.actor_critic import ROWS_AT_ONCE, Perceptron
from ..compiled.loading import kernels, kernels_of
from .distributions import LOG_2_PI, log_softmax
from .mlp import Activation, Layers
from .sde import variance

LOG_STD_LIMITS = (-20.0, 2.0)  # log standard deviations beyond get no gradient
FEW_OUTPUTS = 8  # of a layer that a kernel computes faster than a matrix product
FEW_PRODUCTS = 1 << 17  # of one member's rows
NONE = np.zeros((0, 0), np.float32)
_hardtanh_backward = torch.ops.aten.hardtanh_backward.default


def run_for(x: Tensor) -> ModuleType | None:
    """Return the kernels if they can compute with numbers like these."""
    return kernels() if x.dtype is torch.float32 and x.is_cpu else None


def array(x: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers, without gradients."""
    return (x.detach() if x.requires_grad else x).numpy()


class Operation(Function):
    """A function of tensors with a backward pass.

    Only its first arguments and results ever have gradients.
    """

    inputs: ClassVar[int] = 1
    outputs: ClassVar[int] = 1


class _Context:
    """State of an operation for its backward pass, like torch's own context."""

    saved_tensors: tuple[Tensor | None, ...]

    def __init__(self, needs_input_grad: list[bool]):
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        pass


class _Node(NamedTuple):
    """An operation that was recorded."""

    backward: Callable[..., tuple[Tensor | None, ...]]
    context: _Context
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]


class Autograd:
    """Differentiation by torch's own engine.

    It takes any operations, also between those of this file.
    """

    def __enter__(self) -> None:
        """Do nothing; torch records automatically."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def gradient(self, losses: Tensor, leaf: Tensor) -> Tensor:
        """Return the gradient of the sum of losses."""
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return gradient


class Tape:
    """Differentiation of chains of this file's operations alone.

    Autograd's engine takes as long as the arithmetic of small networks. Within a tape the operations are recorded here,
    outside of autograd, and `gradient` calls their backward passes in reverse order; the arithmetic is the same.
    """

    active: ClassVar[Tape | None] = None
    scratch = ("_nodes", "_tracked", "_inference")

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._tracked: set[int] = set()  # the ids of outputs that have gradients
        self._inference = torch.inference_mode()

    def __enter__(self) -> Tape:
        Tape.active = self
        self._inference = torch.inference_mode()
        self._inference.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._inference.__exit__(*exception)
        Tape.active = None
        self._nodes, self._tracked = [], set()

    def record(self, operation: type[Operation], arguments: tuple[Any, ...]) -> Any:
        """Return what the operation gives for these arguments."""
        inputs, tracked = arguments[: operation.inputs], self._tracked
        context = _Context([x is not None and (id(x) in tracked or x.requires_grad) for x in inputs])
        results = operation.forward(context, *arguments)
        if True in context.needs_input_grad:
            backward = operation.backward.__wrapped__  # type: ignore[attr-defined]  # of `once_differentiable`
            outputs = results[: operation.outputs] if isinstance(results, tuple) else (results,)
            self._nodes.append(_Node(backward, context, inputs, outputs))
            tracked.update(map(id, outputs))
        return results

    def gradient(self, losses: Tensor, leaf: Tensor) -> Tensor:
        """Return the gradient of the sum of losses.

        The recorded calls are forgotten.
        """
        gradients, rest, nodes = {id(losses): torch.ones_like(losses)}, [], self._nodes
        for node in reversed(nodes):
            g = [gradients.get(id(output)) for output in node.outputs]
            if g[0] is None and all(x is None for x in g):
                rest.append(node)
                continue
            slopes = node.backward(node.context, *g)
            for x, needs, slope in zip(node.inputs, node.context.needs_input_grad, slopes, strict=False):
                if needs and slope is not None:
                    gradients[id(x)] = gradients[id(x)] + slope if id(x) in gradients else slope
        self._nodes = rest[::-1]
        return gradients[id(leaf)]


def apply(operation: type[Operation], *arguments: Any) -> Any:
    """Apply an operation within the active tape, or autograd."""
    return operation.apply(*arguments) if Tape.active is None else Tape.active.record(operation, arguments)


class FusedMLP:
    """The computation of an `MLP` as one node of autograd.

    All calls share its buffers. Autograd makes dozens of new arrays in a step through such networks; here they are made
    once. That saves much of the time of small networks, and of large cohorts, whose arrays would otherwise come fresh
    from the operating system. A call overwrites the results of the one before; autograd raises if those are
    differentiated afterwards.

    B, and all sizes but the last, must be at least 2, and so must the last where P = 1 (see Exactness in mlp.py).

    Attributes:
        leaf: the parameter vectors (P', D) of the members that learn, which gradients are taken with respect to.
    """

    scratch = ("_outputs", "_work", "_gradient", "_gradients", "_forward", "_backward", "_run", "_input")

    def __init__(self, sizes: Sequence[int], activation: Activation, vector: Tensor, members: int, rows: int):
        """Allocate the buffers.

        Args:
            sizes: of the layers.
            activation: one that works in place.
            vector: (P', D) of the members that learn; the layers' parameters are its first numbers.
            members: P of a call, at most.
            rows: B of a call, at most.
        """
        assert activation.apply_ is not None
        assert activation.backward_ is not None
        self._apply, self._apply_backward = activation.apply_, activation.backward_
        self._run = None if activation.kind is None else kernels_of(vector)
        self._kind = activation.kind or 0
        self.few = self._run is not None and sizes[-1] <= FEW_OUTPUTS and len(sizes) > 2  # a kernel computes the head
        self.leaf = vector.detach().requires_grad_()
        self._input = vector.new_empty(members, rows, sizes[0])
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
        # By the layers, which are kept so that no others get their id, and the size of a call.
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

        Those of several copies of a network are (P, num_copies, B, outputs).

        Args:
            layers: the weights and biases of all members, copies beside each other.
            x: inputs that get gradients, of the first P' members or the first rows of all.
            extra_inputs: further numbers of the same inputs, which get gradients, too.
            no_grad_inputs: the inputs of the other members, or the other rows, which get no gradients.
            no_grad_extra: further numbers of those.
            num_copies: of a network, with the same inputs.
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
        """Return several sets of inputs and further numbers as one array.

        They are repeated for each copy, and stand one after the other, as rows or as members.
        """
        if len(sets) == 1 and sets[0][1] is None and num_copies == 1:
            return sets[0][0]
        if self._run is None:
            return torch.cat([joined(x, extra, num_copies) for x, extra in sets], int(by_rows))
        member = row = 0
        for x, extra in sets:
            members, rows = num_copies * x.shape[0], x.shape[1]
            out = self._input[member : member + members, row : row + rows].numpy()
            more = x[..., :0] if extra is None else extra
            self._run.join(array(x), array(more), num_copies, out)
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

        Both are (P', B', outputs). Where the members `learn`, the gradient in their parameters is left in `_gradient`.
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
        """Return room for the gradient in a layer's inputs."""
        shape = (members, rows, self._outputs[layer - 1].shape[2])
        return self._work[layer % 2][: math.prod(shape)].view(shape)

    def to_inputs(self, first: Tensor, layers: Layers, num_copies: int, start: int) -> Tensor:
        """Return the gradient in the inputs from `start` on, (P, B, ...).

        `first` is that in the first layer's outputs.
        """
        weight = layers[0][0][: len(first)]
        few = weight.shape[1] - start <= FEW_OUTPUTS
        if self._run is not None and few:
            out = torch.empty(len(first) // num_copies, first.shape[1], weight.shape[1] - start)
            self._run.to_inputs(first.numpy(), weight.numpy(), start, num_copies, out.numpy())
            return out
        both = torch.bmm(first, weight.transpose(1, 2))
        if num_copies > 1:
            both = both.unflatten(0, (-1, num_copies)).sum(1)
        return both[..., start:]


def groups_of(members: int, rows: int) -> list[slice]:
    """Return spans of members whose arrays fit a processor's cache."""
    size = max(1, ROWS_AT_ONCE // rows)
    return [slice(first, min(first + size, members)) for first in range(0, members, size)]


class _Forward:
    """The computation of some members' outputs with kernels.

    All views are made once, since to make one takes as long as the arithmetic of small networks.
    """

    def __init__(self, mlp: FusedMLP, layers: Layers, span: slice, rows: int):
        """Make the views for the members in a span."""
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
        """Compute the hidden activations and the outputs of inputs (P', B, inputs)."""
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
    """The computation of some members' gradients with kernels, like `_Forward`."""

    def __init__(self, mlp: FusedMLP, layers: Layers, members: int, span: slice, rows: int, learn: bool):
        """Make the views for some of the members."""
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
        """Return the gradient in the first layer's outputs; x are its inputs."""
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
    """The computation of an `MLP` for the few rows that act.

    Attributes:
        most: rows that are few.
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
        """Return None without kernels for it."""
        run = None if activation.kind is None else kernels_of(vector)
        return None if run is None or len(sizes) < 3 else cls(run, sizes, activation, vector)

    def __call__(self, x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the outputs and the last hidden activations, (P, N, ...).

        x is (P, N, inputs).
        """
        members, rows = x.shape[:2]
        hidden = np.empty((members, rows, self._units), np.float32)
        out = np.empty((members, rows, self._outputs), np.float32)
        self._run.infer(x.numpy(), self._vector, self._sizes, self._starts, self._kind, hidden, out)
        return out, hidden


def _part(x: Tensor, members: int, rows: int) -> Tensor:
    """Return the first rows of the first members of x.

    x is (P, B, ...); often that is all of it.
    """
    return x if x.shape[0] == members and x.shape[1] == rows else x[:members, :rows]


def joined(x: Tensor, extra_inputs: Tensor | None, num_copies: int) -> Tensor:
    """Repeat inputs for each copy of a network.

    The result is (P * num_copies, B, inputs), copies beside each other.
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
        learned, others = out.tensor_split([rows], 1) if by_rows else out.tensor_split([len(x)])
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


def _taken(q: Tensor, choices: Tensor | None) -> Tensor:
    """Return the values of the choices taken.

    The choices are (P, B), or None where n = 1; all values q (P, ..., B, n), the result (P, ..., B).
    """
    if choices is None:
        return q.squeeze(-1)
    index = choices.view(len(choices), *[1] * (q.ndim - 3), -1, 1).expand(*q.shape[:-1], 1)
    return q.gather(-1, index).squeeze(-1)


def _to_all(g: Tensor, choices: Tensor | None, n: int) -> Tensor:
    """Return the gradient in all q by that in the choices taken.

    It is (P, ..., B, n).
    """
    g = g.unsqueeze(-1)
    if choices is None:
        return g
    index = choices.view(len(choices), *[1] * (g.ndim - 3), -1, 1).expand_as(g)
    return g.new_zeros(*g.shape[:-1], n).scatter_(-1, index, g)


def half_square(
    q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return twin critics' losses, errors and values.

    Losses Σᵢ ½ w (y - qᵢ)² of each row are (P, B), errors y - qᵢ and values qᵢ (P, 2, B), the latter two without
    gradients. The qᵢ are those of the choices (P, B), of all q (P, 2, B, n), whose gradient is that of a mean over
    `rows` rows: - w (y - qᵢ) / rows, divided last.
    """
    losses, errors, taken = apply(_HalfSquare, q, choices, targets, weight, rows)
    return losses, errors, taken


def twin_huber(
    q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `half_square` does, with the Huber loss of each error.

    The gradient is that of errors clipped to ±1.
    """
    losses, errors, taken = apply(_TwinHuber, q, choices, targets, weight, rows)
    return losses, errors, taken


CRITIC_LOSSES = {"mse": half_square, "huber": twin_huber}


class _LossOfTaken(Operation):
    """A loss of the values of choices.

    `forward` saves its slopes in these values, and the choices.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        slopes, choices = ctx.saved_tensors
        return _to_all(g.unsqueeze(1) * slopes, choices, ctx.n), None, None, None, None


def _compiled_twins(
    ctx: Any, run: ModuleType, q: Tensor, targets: Tensor, weight: Tensor | None, rows: int, limit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Do the forward pass of the twins' losses by a kernel.

    Errors beyond `limit` count linearly.
    """
    members, count, batch = q.shape[:3]
    own, size = np.empty((members, batch), np.float32), (members, count, batch)
    errors_of, slopes = np.empty(size, np.float32), np.empty(size, np.float32)
    weights = NONE if weight is None else array(weight)
    run.twins(array(q), array(targets), weights, weight is not None, limit, rows, own, errors_of, slopes)
    losses, errors, taken = torch.from_numpy(own), torch.from_numpy(errors_of), q.squeeze(-1)
    ctx.save_for_backward(torch.from_numpy(slopes), None)
    ctx.n = 1
    ctx.mark_non_differentiable(errors, taken)
    return losses, errors, taken


class _HalfSquare(_LossOfTaken):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        if choices is None and (run := run_for(q)) is not None:
            return _compiled_twins(ctx, run, q, targets, weight, rows, math.inf)
        taken = _taken(q, choices)
        errors = targets.unsqueeze(1) - taken
        weighted = errors if weight is None else errors * weight.unsqueeze(1)
        ctx.save_for_backward(weighted / -rows, choices)
        ctx.n = q.shape[-1]
        ctx.mark_non_differentiable(errors, taken)
        return (errors * weighted).sum(1) / 2, errors, taken


class _TwinHuber(_LossOfTaken):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        if choices is None and (run := run_for(q)) is not None:
            return _compiled_twins(ctx, run, q, targets, weight, rows, 1.0)
        taken = _taken(q, choices)
        errors = targets.unsqueeze(1) - taken
        clipped = errors.clamp(-1, 1)
        weighted = clipped if weight is None else clipped * weight.unsqueeze(1)
        ctx.save_for_backward(weighted / -rows, choices)
        ctx.n = q.shape[-1]
        ctx.mark_non_differentiable(errors, taken)
        return (weighted * (errors - 0.5 * clipped)).sum(1), errors, taken


def soft_value(q: Tensor, sample: SoftSample, alpha: Tensor, sign: int = 1) -> Tensor:
    """Return the soft value (P, B) of twin critics.

    q is (P, 2, B, n), entropy coefficients α (P, terms). With a sign of -1 the result is -V.

        V = Σ_d π(d|s) minᵢ qᵢ(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

    Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10. With h the entropies,

    dV/dqᵢ_d = π_d where qᵢ_d is the lesser of the twins, the first one if they agree;   dV/dh = α
    """
    value: Tensor = apply(_SoftValue, q, sample.probs, sample.entropies, alpha, sign)
    return value


class _SoftValue(Operation):
    inputs = 3

    @staticmethod
    def forward(ctx: Any, q: Tensor, probs: Tensor | None, entropies: Tensor, alpha: Tensor, sign: int) -> Tensor:
        ctx.run = run_for(q) if probs is None else None
        if ctx.run is not None:
            ctx.save_for_backward(q, None, alpha)
            ctx.sign, result = sign, np.empty(entropies.shape[:2], np.float32)
            ctx.run.soft_value(array(q), array(entropies), array(alpha), sign, result)
            return torch.from_numpy(result)
        least = torch.minimum(q[:, 0], q[:, 1])
        ctx.save_for_backward(q, probs, alpha)
        ctx.least, ctx.sign = least, sign
        mean = least.squeeze(-1) if probs is None else (probs * least).sum(-1)
        value = mean + (entropies * alpha.unsqueeze(1)).sum(-1)
        return value if sign > 0 else -value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, probs, alpha = ctx.saved_tensors
        if ctx.run is not None:
            in_q, in_entropies = np.empty(q.shape, np.float32), np.empty((*g.shape, alpha.shape[1]), np.float32)
            ctx.run.soft_value_slope(g.numpy(), array(q), array(alpha), ctx.sign, in_q, in_entropies)
            return torch.from_numpy(in_q), None, torch.from_numpy(in_entropies), None, None
        to_q = to_probs = None
        g = g.unsqueeze(-1) * ctx.sign
        if ctx.needs_input_grad[0]:
            first = (q[:, :1] <= q[:, 1:]).to(q.dtype)
            to_q = torch.cat([first, 1 - first], 1) * g.unsqueeze(1)
            to_q = to_q if probs is None else to_q * probs.unsqueeze(1)
        if ctx.needs_input_grad[1]:
            to_probs = ctx.least * g
        return to_q, to_probs, alpha.unsqueeze(1) * g, None, None


def huber(
    q: Tensor, choices: Tensor, targets: Tensor, weights: Tensor | None = None, limit: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the mean Huber losses (P,) and the errors (P, B).

    Huber (1964). The loss of an error δ = y - q(s, a) is δ²/2 for |δ| <= 1 and |δ| - 1/2 beyond, weighted (P, B); q(s,
    a) are those of the choices (P, B), of all q (P, B, n). The gradient in δ is δ clipped to ±1, over B, times the
    weights. Errors have no gradients. Another `limit` than 1 changes where the loss turns linear; infinity never does.
    """
    losses, errors = apply(_Huber, q, choices, targets, weights, limit)
    return losses, errors


class _Huber(_LossOfTaken):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, choices: Tensor, targets: Tensor, weights: Tensor | None, limit: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.n = q.shape[-1]
        if (run := run_for(q)) is not None:
            members, rows, n = q.shape
            mean, found = np.empty(members, np.float32), np.empty((members, rows), np.float32)
            own, weight = np.empty((members, rows, n), np.float32), NONE if weights is None else array(weights)
            run.huber(array(q), choices.numpy(), array(targets), weight, weights is not None, limit, mean, found, own)
            ctx.save_for_backward(torch.from_numpy(own), None)
            errors = torch.from_numpy(found)
            ctx.mark_non_differentiable(errors)
            return torch.from_numpy(mean), errors
        errors = targets - _taken(q, choices)
        clipped = errors.clamp(-limit, limit)
        losses, slopes = clipped * (errors - 0.5 * clipped), clipped / -clipped.shape[1]
        if weights is not None:
            losses, slopes = weights * losses, weights * slopes
        ctx.save_for_backward(slopes, choices)
        ctx.mark_non_differentiable(errors)
        return losses.mean(1), errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        slopes, choices = ctx.saved_tensors
        if choices is None:  # they are those in all q
            return g.view(-1, 1, 1) * slopes, None, None, None, None
        return _to_all(g.unsqueeze(1) * slopes, choices, ctx.n), None, None, None, None


class SoftSample(NamedTuple):
    """A sample of actions for network outputs (P, B, outputs).

    Attributes:
        continuous: c, (P, B, k).
        probs: π of the choices, (P, B, n), None if n = 0.
        entropies: -log π(c), whose mean is an entropy, and the entropy of the choices, (P, B, terms).
    """

    continuous: Tensor
    probs: Tensor | None
    entropies: Tensor


def soft_samples(
    outputs: Tensor, next_outputs: Tensor, noise: Tensor, continuous_dim: int, rows: int, weight: Tensor | None = None
) -> tuple[SoftSample, SoftSample]:
    """Sample actions for a batch, and for its next observations.

    Numbers are drawn from a squashed normal, choices count in expectation. Only the former sample has gradients.

        c = tanh(u), u = mean + exp(log_std) noise,   log π(c) = log N(u; mean, std) - Σ log(1 - c²)

    Haarnoja et al. (2018), arXiv:1812.05905, appendix C, eq. 26, where log(1 - c²) is computed as
    2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact also where 1 - c² rounds to zero. With g_x the gradient in x,

        g_mean = g_c (1 - c²) - 2 g_h c,   g_log_std = g_mean exp(log_std) noise + g_h,   h = -log π(c)
        g_logits = π (z - Σ π z),   z = g_π - g_h log π,   h = -Σ π log π

    and what passes back is the gradient of a mean over `rows` rows, weighted with (P, B) numbers if any are given.

    Args:
        outputs: k means, k log standard deviations, and n logits, (P, B, 2k + n).
        next_outputs: the same for the next observations, without gradients.
        noise: standard normal, for both, (P, 2B, k).
        continuous_dim: k.
        rows: by which the gradient in the outputs is divided, last.
        weight: of each row.
    """
    both = apply(_SoftSamples, outputs, next_outputs, noise, continuous_dim, rows, weight)
    return SoftSample(*both[:3]), SoftSample(*both[3:])


def _compiled_samples(
    ctx: Any, outputs: Tensor, next_outputs: Tensor, noise: Tensor, rows: int, weight: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Do the forward pass of squashed normal numbers by kernels."""
    first, samples = 0, []
    for x in (outputs, next_outputs):
        batch, k = x.shape[1], noise.shape[2]
        arrays = [np.empty((len(x), batch, size), np.float32) for size in (k, k, 1)]
        ctx.run.squash(array(x), noise.numpy(), first, *arrays)
        samples.append([torch.from_numpy(x) for x in arrays])
        first += batch
    (c, spread, h), (next_c, _, next_h) = samples
    ctx.save_for_backward(c, None, spread, None, None, weight)
    ctx.outputs, ctx.rows = outputs, rows
    ctx.mark_non_differentiable(next_c, next_h)
    return c, None, h, next_c, None, next_h


class _SoftSamples(Operation):
    outputs = 3

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, next_outputs: Tensor, noise: Tensor, k: int, rows: int, weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        batch = outputs.shape[1]
        ctx.run = run_for(outputs) if k and outputs.shape[-1] == 2 * k else None
        if ctx.run is not None:
            return _compiled_samples(ctx, outputs, next_outputs, noise, rows, weight)
        both = torch.cat([outputs, next_outputs], 1)
        c, log_std, logits = both.split([k, k, both.shape[-1] - 2 * k], -1)
        spread = probs = log_probs = None
        entropies = []
        if k:
            clamped = log_std.clamp(*LOG_STD_LIMITS)
            spread = clamped.exp() * noise
            u = c + spread
            c, size = torch.tanh(u), u.abs()
            squash = ((-2 * size).exp() + 1).log() + size  # log 2 - log(1 - c²) / 2
            terms = (noise * noise * 0.5 + clamped).sub_(squash, alpha=2)
            entropies.append(terms.sum(-1) + k * (0.5 * LOG_2_PI + 2 * math.log(2)))
        if logits.shape[-1]:
            log_probs = log_softmax(logits)
            probs = log_probs.exp()
            entropies.append(-(probs * log_probs).sum(-1))

        def halves(x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
            return (None, None) if x is None else (x[:, :batch].contiguous(), x[:, batch:].contiguous())

        (c, next_c), (probs, next_probs), (h, next_h) = map(halves, (c, probs, torch.stack(entropies, -1)))
        ctx.save_for_backward(c, log_std[:, :batch], halves(spread)[0], probs, halves(log_probs)[0], weight)
        ctx.rows = rows
        ctx.mark_non_differentiable(*(x for x in (next_c, next_probs, next_h) if x is not None))
        return c, probs, h, next_c, next_probs, next_h

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_c: Tensor | None, g_probs: Tensor | None, g_entropies: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        c, log_std, spread, probs, log_probs, weight = ctx.saved_tensors
        if ctx.run is not None:
            given = ((g_c, c.shape[2]), (g_entropies, 1))
            g_c, g_entropies = (c.new_zeros(*c.shape[:2], n) if g is None else g for g, n in given)
            result, weights = np.empty(ctx.outputs.shape, np.float32), NONE if weight is None else array(weight)
            arrays = (array(x) for x in (g_c, g_entropies, c, ctx.outputs, spread))
            ctx.run.squash_slope(*arrays, weights, weight is not None, ctx.rows, result)
            return torch.from_numpy(result), *[None] * 5
        gradients = []
        if spread is not None:
            g_entropy = 0 if g_entropies is None else g_entropies[..., :1]
            g_mean = (0 if g_c is None else g_c * (1 - c * c)) - 2 * g_entropy * c
            g_log_std = g_mean * spread + g_entropy
            gradients += [g_mean, _hardtanh_backward(g_log_std, log_std, *LOG_STD_LIMITS)]
        if probs is not None:
            g_entropy = 0 if g_entropies is None else g_entropies[..., -1:]
            z = (0 if g_probs is None else g_probs) - g_entropy * log_probs
            gradients.append(probs * (z - (probs * z).sum(-1, keepdim=True)))
        g = torch.cat(gradients, -1) if len(gradients) > 1 else gradients[0]
        g = g if weight is None else g * weight.unsqueeze(-1)
        return g / ctx.rows, None, None, None, None, None


def state_dependent_log_std(log_std: Tensor, z: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the log standard deviations ½ log v of state-dependent noise.

        v = Σ_j σ_j² z_j²,   d(½ log v)/dlog σ_j = σ_j² z_j² / v

    They are (P, B, k): with gradients in the first rows, then without in the others. log σ is (P, L, k), z (P, B, L)
    gets no gradient: Raffin et al. (2022), arXiv:2005.05719, section 3.
    """
    learned, others = apply(_StateDependentLogStd, log_std, z, rows)
    return learned, others


class _StateDependentLogStd(Operation):
    @staticmethod
    def forward(ctx: Any, log_std: Tensor, z: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(log_std, z)
        ctx.rows = rows
        result = 0.5 * variance(log_std, z).log()
        learned, others = result[:, :rows], result[:, rows:]
        ctx.mark_non_differentiable(others)
        return learned, others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor, None, None]:
        log_std, z = ctx.saved_tensors
        z, k = z[:, : ctx.rows], g.shape[-1]
        ratio = functional.pad(g / variance(log_std, z), (0, int(k == 1)))  # see Exactness in mlp.py
        squares = torch.bmm((z * z).transpose(1, 2), ratio)[..., :k]
        return squares * (2 * log_std).exp(), None, None
