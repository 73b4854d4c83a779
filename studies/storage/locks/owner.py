"""Identity of a process, which lets others detect its death."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

LARGEST_PID = 2**31 - 1


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from others with the same pid.

    Attributes:
        host: its machine's name.
        boot: the boot of the machine, and the pid namespace (a container's pids are not its host's).
        pid: its number.
        started: when the process started, in the system's unit; no change of the clock changes it.
    """

    host: str
    boot: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.host}:{self.boot}:{self.pid}:{self.started}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that ``str`` returns.

        Any other text gives an unknown process.
        """
        try:
            machine, boot, pid, started = text.rsplit(":", 3)
            return cls(machine, boot, int(pid), started)
        except ValueError:
            return cls(text, "", 0, "")  # unknown, so its lease ends only by expiring

    @classmethod
    def current(cls) -> Self:
        """Return this process."""
        return cls(*_process(os.getpid()))

    def is_alive(self) -> bool:
        """Return whether this process certainly runs, though it may be paused.

        A process on another machine gives False.
        """
        return self._is_here() and not self.is_dead()

    def _is_here(self) -> bool:
        current = Owner.current()
        return bool(current.boot) and (self.host, self.boot) == (current.host, current.boot)

    def is_dead(self) -> bool:
        """Return whether this process has certainly ended.

        A process on another machine gives False.
        """
        if not self._is_here():
            return False
        import psutil  # slow to import, and most commands only read rows

        if not 0 < self.pid <= LARGEST_PID or not psutil.pid_exists(self.pid):
            return True
        started = _started(self.pid)
        return started is not None and started != self.started


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)  # keyed by pid, so that a forked child gets its own identity
def _process(pid: int) -> tuple[str, str, int, str]:
    return socket.gethostname(), _boot(), pid, _started(pid) or ""


def _boot() -> str:
    if platform.system() != "Linux":
        import psutil

        return str(int(psutil.boot_time()))
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""  # unknown: no process counts as dead before its lease expires


def _started(pid: int) -> str | None:
    """Return the time when a process started.

    The time is "zombie" if the process ended unreaped, None if unknown.
    """
    if platform.system() != "Linux":
        return _created(pid)
    try:
        # field 22, in ticks since boot (psutil's time since 1970 moves with the clock); the name may hold spaces
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "zombie" if fields[0] in "ZX" else fields[19]
    except OSError:
        return None


def _created(pid: int) -> str | None:
    import psutil

    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return None
