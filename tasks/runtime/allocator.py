"""Memory that the process keeps while it trains.

glibc returns large freed arrays to the operating system at once, and takes them back a moment later, page by page. With
networks of 256-256, that happens hundreds of times per gradient step.
"""

from __future__ import annotations

import ctypes
import functools
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
KEPT = 2**31 - 1  # bytes of free memory to keep; mallopt's maximum
LARGEST = 32 << 20  # bytes of the largest array whose memory is reused; glibc's maximum


@functools.cache
def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory; return whether it will.

    Allocators other than glibc's are left alone. Results do not depend on it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
