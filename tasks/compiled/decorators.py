"""Decorators of kernels, and signals that arrive while they compile."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

_handlers: dict[int, Any] = {}  # handlers of signals, which wait until a kernel is compiled
_arrived: list[int] = []  # signals that wait, each once


def kernel(*arguments: str | type, **options: Any) -> Any:
    """Compile a function for arguments of these types, see `records`."""
    while _arrived and _is_main():
        arrived = _arrived.pop(0)
        _handlers[arrived](arrived, None)
    signature = numba().types.void(*[numba_type for argument in arguments for numba_type in _types(argument)])
    return numba().njit(signature, cache=is_cached(), nogil=True, error_model="numpy", **options)


def _types(argument: str | type) -> tuple[Any, ...]:
    """Return numba's types of arguments, or the type of a record."""
    if isinstance(argument, str):
        types: tuple[Any, ...] = numba().core.sigutils.normalize_signature(f"void({argument})")[0]
        return types
    fields = get_type_hints(argument, include_extras=True).values()
    numba_types = [numba_type for field in fields for numba_type in _types(getattr(field, "__metadata__", (field,))[0])]
    return (numba().types.BaseTuple.from_types(numba_types, argument),)


def inner(**options: Any) -> Any:
    """Compile a function that kernels call."""
    return numba().njit(error_model="numpy", **options)


def is_cached() -> bool:
    """Return whether machine code is kept; otherwise every process compiles it."""
    folder = numba().config.CACHE_DIR
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def numba() -> Any:
    """Return numba, imported late, since it may be absent."""
    return importlib.import_module("numba")


@contextmanager
def between_kernels() -> Iterator[None]:
    """Handle signals between two kernels only.

    LLVM calls Python back while it compiles, and what a handler raises in such a call, as at Ctrl-C, would be lost.
    """
    if not _is_main():  # other threads handle no signals
        yield
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(handler := signal.getsignal(number)):
            _handlers[number] = handler
            signal.signal(number, _wait)
    try:
        yield
    finally:
        for caught, handler in _handlers.items():
            signal.signal(caught, handler)
        _handlers.clear()
        _raise_arrived()


def _wait(number: int, frame: object) -> None:
    """Let a signal wait, once however often it arrives."""
    if number not in _arrived:
        _arrived.append(number)


def _raise_arrived() -> None:
    """Raise the signals that waited, even if handlers raise errors."""
    if _arrived:
        try:
            signal.raise_signal(_arrived.pop(0))
        finally:
            _raise_arrived()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
