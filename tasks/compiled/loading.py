"""When kernels are used, and where their machine code is kept.

The first process ever compiles them all, in half a minute; later ones load their machine code from the user's cache in
a second. A fork has what its parent loaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, float32

VARIABLE = "REKINDLE_KERNELS"  # 0 in the environment: none are used
_off = os.environ.get(VARIABLE) == "0"


def kernels() -> ModuleType | None:
    """Return the kernels; None without numba, or switched off."""
    return None if _off else _load()


def kernels_of(*tensors: Tensor) -> ModuleType | None:
    """Return the kernels if they can work on these tensors, in place."""
    if all(x.device.type == "cpu" and x.dtype is float32 and x.is_contiguous() for x in tensors):
        return kernels()
    return None


def version() -> str:
    """Return the compiler and processor that last bits depend on.

    It is "none" without kernels.
    """
    if kernels() is None:
        return "none"
    import llvmlite.binding
    import numba

    return f"numba {numba.__version__} {llvmlite.binding.get_host_cpu_name()}"


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use no kernels in what is built meanwhile."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


@functools.cache
def _load() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    config: Any = numba.config
    before = config.CACHE_DIR
    folder = _folder(before)
    if not folder.exists() and sys.stderr is not None and sys.stderr.isatty():
        print("rekindle: compiling kernels for this machine, once; half a minute", file=sys.stderr)
    config.CACHE_DIR = str(folder)
    try:
        return importlib.import_module(".kernels", __package__)
    finally:
        config.CACHE_DIR = before


def _folder(given: str) -> Path:
    """Return the folder of machine code.

    Each version of the kernels has its own: numba notices changes in a kernel's own file alone. `given` is the user's
    setting NUMBA_CACHE_DIR.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given or Path(caches) / "rekindle") / f"kernels-{digest}"
