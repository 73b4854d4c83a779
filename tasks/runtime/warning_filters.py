"""Temporarily silenced warnings, by one thread at a time.

Python has one list of warning filters for all threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_TURN = threading.RLock()


@contextmanager
def changed_filters(ignored: Mapping[str, type[Warning]] | None = None) -> Iterator[None]:
    """Return `warnings.catch_warnings()` that threads enter one after another.

    If two were active at once, one would restore the other's filters.

    Args:
        ignored: categories of warnings to silence, by patterns of their texts.
    """
    with _TURN, warnings.catch_warnings():
        for message, category in (ignored or {}).items():
            warnings.filterwarnings("ignore", message, category)
        yield
