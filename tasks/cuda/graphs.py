"""CUDA graphs, which capture work once and replay it without Python.

Small networks leave a GPU idle while Python launches one short kernel after another. A replay gives the same bits.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

Result = TypeVar("Result")
Argument = Tensor | Mapping[str, Tensor] | bool | None


class Capturable(Protocol):
    """An object with a method that can be captured.

    Attributes:
        capturable: whether the method depends only on its arguments and on tensors that change in place, all on a CUDA
            device.
    """

    @property
    def capturable(self) -> bool: ...


def captured(method: Callable[..., Result]) -> Callable[..., Result]:
    """Replay a method as a CUDA graph if its object is `capturable`.

    Arguments are tensors, mappings of tensors, True, False or None. The first call with arguments of a given form runs
    normally, and the second call captures the graph. Each replay overwrites the tensors of the previous result.
    """

    @functools.wraps(method)
    def call(self: Capturable, *args: Argument) -> Result:
        if not _can_capture(self):
            return method(self, *args)
        graphs = _graphs.setdefault(self, {})
        key = (method.__name__, torch.is_inference_mode_enabled(), *map(_form, args))
        with torch.cuda.device_of(_tensors(args)[0]):
            if key not in graphs:
                graphs[key] = None
                result: Result = _detached(beside(functools.partial(method, self, *args)))
                return result
            if (replay := graphs[key]) is None:
                graphs[key] = replay = _Replay(functools.partial(method, self), args)
            return replay(*args)

    return call


def beside(work: Callable[[], Result]) -> Result:
    """Run work on another stream.

    Work must have run this way once before it can be captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = work()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def capture(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture work as a graph; return the graph and the result.

    Capturing does not run the work; each replay fills in the result.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with _capturing, torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate
            result = work()
    finally:
        torch.cuda.set_stream(stream)  # torch does not restore it if the capture fails
    return graph, result


def collect_graphs() -> None:
    """Free the graphs of unused objects.

    Graphs hold device memory, which does not trigger Python's garbage collection.
    """
    if _graphs:
        gc.collect()


class _Replay:
    """A graph of a function, with buffers for its arguments."""

    def __init__(self, function: Callable[..., Any], args: tuple[Argument, ...]):
        buffers = [_copied(x) for x in args]
        self._tensors = _tensors(buffers)
        self._graph, result = capture(lambda: function(*buffers))
        self._result = _detached(result)

    @torch.no_grad()
    def __call__(self, *args: Argument) -> Any:
        for buffer, value in zip(self._tensors, _tensors(args), strict=True):
            buffer.copy_(value)
        self._graph.replay()
        return _detached(self._result)


_capturing = threading.Lock()  # a process can have only one capture at a time
_graphs: WeakKeyDictionary[Capturable, dict[Hashable, _Replay | None]] = WeakKeyDictionary()


def _can_capture(of: Capturable) -> bool:
    return of.capturable and not torch.cuda.is_current_stream_capturing()  # not inside another method's capture


def _form(x: Argument) -> Hashable:
    if isinstance(x, Tensor):
        return x.shape, x.dtype
    return tuple((name, _form(tensor)) for name, tensor in x.items()) if isinstance(x, Mapping) else x


@torch.inference_mode(False)  # tensors made in inference mode cannot be overwritten outside it
def _copied(x: Argument) -> Argument:
    if isinstance(x, Tensor):
        return x.detach().clone()
    return {name: tensor.detach().clone() for name, tensor in x.items()} if isinstance(x, Mapping) else x


def _tensors(args: Iterable[Argument]) -> list[Tensor]:
    """Return all tensors in the arguments, in order."""
    tensors: list[Tensor] = []
    for x in args:
        tensors += [x] if isinstance(x, Tensor) else x.values() if isinstance(x, Mapping) else ()
    return tensors


def _detached(result: Any) -> Any:
    """Return a result detached from autograd, with dictionaries of its own.

    Nothing that autograd keeps from one stream may remain when the next call is captured on another stream.
    """
    if isinstance(result, Tensor):
        return result.detach()
    if isinstance(result, dict):
        return {name: _detached(x) for name, x in result.items()}
    if isinstance(result, tuple):
        parts = map(_detached, result)
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return result
