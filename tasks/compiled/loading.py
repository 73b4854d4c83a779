"""Use of the kernels, and the cache of their machine code.

The first process on a machine that uses kernels compiles all, in half a minute. Later processes load their machine code
from the user's cache in a second, and a fork inherits what its parent loaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pickle
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from torch import Tensor, float32

from .decorators import between_kernels, is_cached, numba

VARIABLE = "REKINDLE_KERNELS"  # 0 in the environment switches the kernels off
UNUSED = 30 * 24 * 3600.0  # seconds after which machine code is removed, of which each upgrade leaves 13 MB
_off = os.environ.get(VARIABLE) == "0"


def kernels() -> ModuleType | None:
    """Return the kernels; None if switched off or without numba's compiler."""
    return _load() if _are_on() else None


def kernels_of(*tensors: Tensor) -> ModuleType | None:
    """Return the kernels if these tensors suit them, else None."""
    if all(x.device.type == "cpu" and x.dtype is float32 and x.is_contiguous() for x in tensors):
        return kernels()
    return None


def version() -> str:
    """Return the compiler and processor, on which last bits depend.

    The user may set another processor and its features (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES). The result is "none"
    without kernels. No kernel is loaded for it.
    """
    if not _are_on():
        return "none"
    import llvmlite.binding

    config = numba().config
    name, features = config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), config.CPU_FEATURES
    return f"numba {numba().__version__} {name}" + (f" {features}" if features else "")


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use no kernels in objects that are built within the context."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


def _are_on() -> bool:
    return not _off and _have_compiler()


@functools.cache
def _have_compiler() -> bool:
    """Return whether numba compiles here.

    Otherwise the loops would run as Python code, and machine code that they call would not.
    """
    return importlib.util.find_spec("numba") is not None and not numba().config.DISABLE_JIT


@functools.cache
def _load() -> ModuleType:
    config = numba().config
    before = config.CACHE_DIR
    folder = cache_folder(before)
    new = not folder.exists()
    _remove_unused(folder)
    config.CACHE_DIR = str(folder)
    try:
        if not is_cached():
            _warn(f"no machine code can be kept in {folder}", "set NUMBA_CACHE_DIR to a folder that can be written")
        elif new and sys.stderr is not None and sys.stderr.isatty():
            print("rekindle: compiling kernels for this machine, once; half a minute", file=sys.stderr)
        return _import()
    except (OSError, EOFError, pickle.UnpicklingError) as error:  # the disk is full, or a crash cut a file short
        _warn(f"the machine code in {folder} is of no use ({error})", "make room on the disk, or remove the folder")
        config.CACHE_DIR = ""
        return _import()
    finally:
        config.CACHE_DIR = before


def _warn(problem: str, cure: str) -> None:
    text = f"{problem}, so every process compiles its own for half a minute; {cure}"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _import() -> ModuleType:
    with between_kernels():
        from . import kernels as compiled  # late, since this compiles or loads them

        return compiled


def cache_folder(setting: str) -> Path:
    """Return the folder for machine code.

    Each version of the source files has a folder of its own, since numba notices changes only in a kernel's own file.
    So have versions of numba and processors: on a shared disk, two that compile at once could take each other's code.
    `setting` is that of the user, NUMBA_CACHE_DIR.
    """
    from numba.core.registry import cpu_target

    sources = sorted(Path(__file__).parent.glob("*.py"))
    compiler = numba().__version__, cpu_target.target_context.codegen().magic_tuple()
    content = b"".join(path.read_bytes() for path in sources) + repr(compiler).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    caches = os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
    return Path(setting or Path(caches) / "rekindle") / f"kernels-{digest}"


def _home() -> Path:
    """Return the user's home, or a place that keeps nothing."""
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an account, as in some containers
        return Path(os.devnull)


def _remove_unused(current_folder: Path) -> None:
    """Remove machine code that was not used for long, except this version's.

    A folder's time of modification is that of its last use. numba compiles again what is removed while it loads.
    """
    with suppress(OSError):  # new, or not ours to change
        os.utime(current_folder)
    for folder in current_folder.parent.glob("kernels-" + 16 * "[0-9a-f]"):
        with suppress(OSError):  # removed by another process
            if folder != current_folder and folder.stat().st_mtime < time.time() - UNUSED:
                shutil.rmtree(folder, ignore_errors=True)
