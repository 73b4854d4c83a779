"""The clock of a SQLite database: that of the file system which its file lies on.

SQLite is a library, and what it takes for "now" is its own process's clock. Leases are compared between processes, so
their time must come from where all of them look: the kernel (or the file server) stamps the file, and each process
reads the stamp. A process whose clock is wrong takes no lease too early and holds none for too long.
"""

from __future__ import annotations

import os
import time


class FileClock:
    """Seconds since 1970 by the file system's clock; this process's, where the file may not be touched."""

    def __init__(self, path: str):
        self.path = path

    def __call__(self) -> float:
        try:
            os.utime(self.path)  # by its name: to open and close it would drop SQLite's locks on it
            return os.stat(self.path).st_mtime
        except OSError:
            return time.time()
