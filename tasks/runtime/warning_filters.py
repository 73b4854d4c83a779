"""Warnings silenced for a while, by one thread at a time.

Python has one list of filters for all threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TURN = threading.RLock()


@contextmanager
def changed_filters() -> Iterator[None]:
    """Return `warnings.catch_warnings()` that threads enter in turn.

    Of two at once, one would restore the other's filters.
    """
    with _TURN, warnings.catch_warnings():
        yield
