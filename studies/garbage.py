"""Garbage collection of a process that is a command.

Importing makes hundreds of thousands of objects that stay. To search them again and again for garbage takes a tenth of
the imports' time, and to search them at the end two thirds of what importing torch does.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing(own_process: bool) -> Iterator[None]:
    """Collect no garbage meanwhile, nor ever what was made until then.

    Without a process of one's own, whose other objects are somebody else's, nothing changes.
    """
    if not own_process:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_quickly() -> None:
    """Search nothing for garbage at the end of this process."""
    atexit.register(gc.freeze)
