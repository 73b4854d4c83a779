"""Watcher that kills a process once it stands still.

`progress.watched` runs this file as a script, by a Python without packages, so that it starts in milliseconds. A
process that hangs in C code, and holds Python's lock there, can do nothing itself.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

WORDS = 2  # of the shared page: ticks, and how many parts of the process are at work
TRACE = signal.SIGUSR2  # makes the process write where it is
ANSWER = 0.5  # seconds in which a process says where it is
DOING = "while it made or tried its environment"  # all that is watched without a command
LAST_WORDS = 30.0  # seconds that writing down what happened may take


class Stillness:
    """Seconds for which a process has not ticked.

    A pause of the process, or of who looks (a machine that sleeps), does not count.
    """

    def __init__(self, limit: float, pid: int):
        self.limit, self.pid = limit, pid
        self.poll = min(1.0, limit / 4)  # seconds between two looks
        self.seconds, self.looked = 0.0, time.monotonic()
        self.ticks: int | None = None

    def exceeds(self, ticks: int) -> bool:
        """Return whether it has lasted too long, by the count of ticks."""
        now = time.monotonic()
        if ticks != self.ticks:
            self.ticks, self.seconds = ticks, 0.0
        elif not is_paused(self.pid):
            self.seconds += min(now - self.looked, 2 * self.poll)
        self.looked = now
        return self.seconds >= self.limit


def is_paused(pid: int) -> bool:
    """Return whether a signal or a debugger is known to pause it."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"
    return False


def watch(page: int, trace: int, pid: int, limit: float, then: list[str]) -> None:
    """Return when the parent has ended, or was killed for standing still.

    Without a command nobody else tells of it: then it prints where the process hangs, or that it ended while at work.

    Args:
        page: the descriptor of the shared page.
        trace: that of the file in which the process says where it is.
        pid: of the process, the parent of this one.
        limit: in seconds.
        then: the command that writes down what happened, before the process is killed; its last argument is `trace`.
    """
    words = memoryview(mmap.mmap(page, 8 * WORDS)).cast("q")
    still = Stillness(limit, pid)
    while os.getppid() == pid and not select.select([0], [], [], still.poll)[0]:
        if still.exceeds(words[0]) and words[1] and os.getppid() == pid:
            _end(trace, pid, limit, then)
            return
        if not words[1]:
            still.ticks = None
    if words[1] and not then:
        _tell(f"process {pid} ended {DOING}: its code exits, or crashes in C")


def _end(trace: int, pid: int, limit: float, then: list[str]) -> None:
    try:
        doing = "" if then else f" {DOING}"
        _tell(f"process {pid} has made no step for {limit:g} s{doing}, and is killed (--stuck)")
        if not then:
            os.kill(pid, TRACE)
            time.sleep(ANSWER)
            _tell(os.pread(trace, 1 << 16, 0).decode(errors="replace").strip() or "it did not say where")
        else:
            subprocess.run([*then, str(trace)], pass_fds=(trace,), timeout=LAST_WORDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass  # the lease of the killed process tells as much, later
    finally:
        os.kill(pid, signal.SIGKILL)


def _tell(text: str) -> None:
    sys.stderr.write(f"rekindle: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent
    watch(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
