"""Memory that the process keeps while it trains.

glibc gives large freed arrays back to the operating system at once, and takes them again a moment later, page by page:
with networks of 256-256 that happens hundreds of times a gradient step.
"""

from __future__ import annotations

import ctypes
import functools
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
KEPT = 2**31 - 1  # bytes of free memory that are kept; the largest that mallopt takes
LARGEST = 32 << 20  # bytes of an array that may be used again; the largest that glibc takes


@functools.cache
def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory; return whether it does.

    Other allocators than glibc's are left as they are. No result depends on it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
