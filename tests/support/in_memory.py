"""Where files of tests are quick to write."""

from __future__ import annotations

import os
import shutil


def place() -> str | None:
    """The directory of a file system in memory with room for a hundred databases of PostgreSQL, if there is one."""
    place = "/dev/shm"
    return place if os.path.isdir(place) and shutil.disk_usage(place).free > 4 << 30 else None
