"""Number of threads of JAX, on which last bits depend.

XLA divides sums among the threads of its pool, whose size is that of the machine unless a variable says another one
when JAX starts. Training uses one thread, see `fingerprint`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "NPROC"  # of the environment, which XLA reads
_started: list[int] = []  # threads with which JAX was started here


def running() -> bool:
    """Return whether JAX has started in this process, which cannot fork then."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def threads() -> int:
    """Return the number of threads of JAX, which has started."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _started[0] if _started else int(os.environ.get(VARIABLE) or processors)


@contextmanager
def one_jax_thread() -> Iterator[None]:
    """Give JAX one thread on the CPU if it starts inside."""
    before, ran = os.environ.get(VARIABLE), running()
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        if not ran and running():
            _started.append(1)
