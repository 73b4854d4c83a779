"""How kernels are compiled."""

from __future__ import annotations

import os
from typing import Any

import numba


def _writable(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


CACHE = _writable(vars(numba.config)["CACHE_DIR"])  # else every process compiles


def kernel(signature: str, **options: Any) -> Any:
    """Compile a function for arguments of these types."""
    return numba.njit(signature, cache=CACHE, nogil=True, error_model="numpy", **options)


def inner(**options: Any) -> Any:
    """Compile a function that kernels call."""
    return numba.njit(error_model="numpy", **options)
