"""Differentiation of fused operations, by torch's engine or by a tape.

The tape takes less time for small networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import increment_version

from ...compiled.loading import kernels


def run_for(x: Tensor) -> ModuleType | None:
    """Return the kernels if they can compute with such numbers."""
    return kernels() if x.dtype is torch.float32 and x.is_cpu else None


def array(x: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as an array, without gradients."""
    return (x.detach() if x.requires_grad else x).numpy()


def overwritten(x: Tensor) -> None:
    """Tell autograd that a kernel has changed a tensor."""
    if not x.is_inference():
        increment_version(x)


class Operation(Function):
    """A function of tensors with a backward pass.

    Only the first `inputs` arguments and the first `outputs` results can have gradients.
    """

    inputs: ClassVar[int] = 1
    outputs: ClassVar[int] = 1


class _Context:
    """An operation's state for its backward pass, like torch's own context."""

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
    """A recorded operation."""

    backward: Callable[..., tuple[Tensor | None, ...]]
    context: _Context
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]


class Autograd:
    """Differentiation by torch's own engine.

    It allows any operations, also between those of this package.
    """

    def __enter__(self) -> None:
        """Do nothing; torch records automatically."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def gradient(self, losses: Tensor, leaf: Tensor) -> Tensor:
        """Return the gradient of the sum of losses in a leaf."""
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return gradient


class Tape:
    """Differentiation of chains that consist of this package's operations only.

    Autograd's engine takes as long as the arithmetic of small networks. A tape records the operations itself, outside
    of autograd, and `gradient` calls their backward passes in reverse order. The arithmetic is the same.
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
        """Apply the operation to these arguments, and record it."""
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
        """Return the gradient of the sum of losses in a leaf.

        The operations that led to the losses are removed from the tape.
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
    """Apply an operation within the active tape, else within autograd."""
    return operation.apply(*arguments) if Tape.active is None else Tape.active.record(operation, arguments)
