"""JAX, started with one thread, and its trees of arrays as data.

XLA divides sums among the threads of its pool, so last bits depend on their number, which is that of the processors.
Training uses one thread, see `runtime.fingerprint`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

RESERVED = "NPROC"  # the environment variable in which XLA, once, looks for the size of its pool


def running() -> bool:
    """Return whether JAX has started in this process, which cannot fork then."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


@cache
def start() -> int:
    """Start JAX on the CPU with one thread, unless it runs already.

    Return the number of its threads.

    Raises:
        ImportError: JAX is not installed.
    """
    jax = importlib.import_module("jax")
    if running():
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return int(os.environ.get(RESERVED) or processors)
    with one_jax_thread():
        jax.config.update("jax_platforms", "cpu")
        jax.devices()
    return 1


@contextmanager
def one_jax_thread() -> Iterator[None]:
    """Give JAX one thread on the CPU if it starts inside."""
    before = os.environ.get(RESERVED)
    os.environ[RESERVED] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(RESERVED, None)
        else:
            os.environ[RESERVED] = before


def is_tree(value: Any) -> bool:
    """Return whether a value is or holds an array of JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


def leaves_of(tree: Any) -> dict[str, Any]:
    """Return the arrays and numbers of a tree by path.

    A path is, for example, "params.Dense_0.kernel". A scalar whose type gives way to that of others is a Python number,
    as it was before JAX computed it.
    """
    paths, _ = _flatten(tree)
    return {name: x.item() if getattr(x, "weak_type", False) and not x.ndim else x for name, x in paths}


def with_leaves(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a tree of the same form with other arrays and numbers.

    Raises:
        ValueError: the arrays are those of a tree of another form.
    """
    paths, form = _flatten(tree)
    if [*leaves] != [name for name, _ in paths]:
        other = sorted(leaves.keys() ^ {name for name, _ in paths})
        raise ValueError(f"a tree has other arrays: {', '.join(other[:3]) or 'in another order'}")
    return form.unflatten(leaves.values())


def _flatten(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    util = importlib.import_module("jax").tree_util
    paths, form = util.tree_flatten_with_path(tree)
    return [(util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths], form
