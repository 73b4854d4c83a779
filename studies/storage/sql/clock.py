"""Clock for a SQLite database, read from its file system.

SQLite is a library, and its "now" is the clock of its process. Leases are compared between processes, so their time
must come from a common place: the kernel (or the file server) stamps the file, and each process reads the stamp. A
process with a wrong clock takes no lease too early and holds none for too long.
"""

from __future__ import annotations

import os
import time


def file_time(path: str) -> float:
    """Return the time by the clock of a file's file system.

    In seconds since 1970. The file is touched and its modification time returned; if it cannot be touched, the time by
    this process's clock.
    """
    try:
        os.utime(path)  # by its name: to open and close it would drop SQLite's locks on it
        return os.stat(path).st_mtime
    except OSError:
        return time.time()
