"""JAX, started with one thread, and its trees of arrays as data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..runtime.jax_threads import one_jax_thread, running, threads


@cache
def start() -> int:
    """Start JAX on the CPU with one thread, unless it runs already.

    Return the number of its threads.

    Raises:
        ImportError: JAX is not installed.
    """
    jax = importlib.import_module("jax")
    if not running():
        with one_jax_thread():
            jax.config.update("jax_platforms", "cpu")
            jax.devices()
    return threads()


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
