"""Programs that JAX has compiled in this process.

On the CPU, XLA maps each program into memory, and crashes the process where Linux refuses a further map. JAX keeps the
programs of thousands of functions, also of those that nobody can call any more: a model of sbx leaves 500 maps behind,
and a process may have 65,530.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .jax_threads import running

MAPS = Path("/proc/self/maps")  # a line for each
MOST_MAPS = Path("/proc/sys/vm/max_map_count")  # of a process


def forget_programs() -> None:
    """Let JAX forget its programs if they fill half of the maps.

    Those that are still needed are compiled again, to the same bits.
    """
    if not running() or not MOST_MAPS.exists():  # only Linux counts them
        return
    with MAPS.open("rb") as maps:
        count = sum(1 for _ in maps)
    if 2 * count > int(MOST_MAPS.read_text()):
        sys.modules["jax"].clear_caches()
