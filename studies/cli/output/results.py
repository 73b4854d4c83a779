"""The stream of a command's result.

With --json, stdout has nothing else. Environments, their libraries in C and their processes print what they like, some
replace `sys.stdout`, and programs would have to find the result in between.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

_apart: list[TextIO] = []  # at most one


def set_apart() -> None:
    """Keep stdout for `results`; what else is printed goes to stderr."""
    sys.stdout.flush()
    _apart[:] = [os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")]
    os.dup2(2, 1)


def results() -> TextIO:
    """Return the stream of results."""
    return _apart[0] if _apart else sys.stdout
