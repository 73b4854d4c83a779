"""Finalizers that run no code within a garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import Any

_collecting = False
_due: deque[Finalizer] = deque()


class Finalizer(weakref.finalize):  # type: ignore[type-arg]  # generic for type checkers alone
    """A `weakref.finalize` that is put off while garbage is collected.

    Up to Python 3.11, garbage is collected wherever memory is allocated, also within functions of C. If code that runs
    then sets a context variable, as `numpy.errstate` does, while another is being set, the context refers to freed
    memory: context variables fail from then on, or the interpreter crashes (CPython issue 148891). So whatever runs
    code of others, such as an environment's `close`, waits for `finalize_collected` or for the end of the program.
    """

    __slots__ = ()

    def __call__(self, reference: Any = None) -> Any:
        """Call the function, unless this is part of a garbage collection."""
        if reference is not None and _collecting:
            return _due.append(self)
        return super().__call__()


def finalize_collected() -> None:
    """Call the finalizers of objects that a garbage collection found."""
    while _due and not _collecting:
        _due.popleft()()


def _note_collection(phase: str, _: Any) -> None:
    global _collecting
    _collecting = phase == "start"


gc.callbacks.append(_note_collection)
