"""Warnings silenced for a while; Python has one list of filters for all threads, so one thread at a time changes it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TURN = threading.RLock()


@contextmanager
def changed_filters() -> Iterator[None]:
    """`warnings.catch_warnings()` that threads take in turn: of two at once, one would put back the other's filters."""
    with _TURN, warnings.catch_warnings():
        yield
