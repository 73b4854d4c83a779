"""Turns of environments whose simulator allows one instance at a time.

Training, evaluation and self-tests take turns: whoever needs the simulator closes the environments that have it. These
are opened again, in the same state, when they are used next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

_holder: list[weakref.WeakMethod[Callable[[], None]]] = []  # how to close the environments that have it


def take_turn(close: Callable[[], None] | None = None) -> None:
    """Close the environments that have the simulator.

    Args:
        close: method that will close those that get it; None if the caller does so itself, before anybody else.
    """
    while _holder:
        if (other := _holder.pop()()) is not None and other != close:
            other()
    if close is not None:
        _holder.append(weakref.WeakMethod(close))
