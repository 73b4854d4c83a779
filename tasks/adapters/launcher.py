"""Launcher of a program that ends with the process that started it.

`programs` runs this file as a script, with a Python without packages, so it starts in milliseconds. Everything that the
program starts, in whatever session, is ended when the program ends, when the starting process dies, by SIGKILL too, or
on SIGUSR1. SIGTERM is passed on to the program and its process group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
HARD = signal.SIGUSR1  # ends everything at once
POLL = 0.5  # seconds between looks at the parent, where its death sends no signal
WATCHED = {signal.SIGCHLD, signal.SIGTERM, HARD}


def children(pid: int) -> list[int]:
    """Return the child processes of a process; Linux only."""
    children = []
    for entry in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with suppress(OSError, IndexError), open(f"/proc/{entry}/stat") as file:
            if file.read().rpartition(")")[2].split()[1] == str(pid):
                children.append(int(entry))
    return children


def end_all(group: int) -> None:
    """Kill the program, its group and all that it has left."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    while left := children(os.getpid()):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)


def start(words: list[str]) -> int:
    """Start the program in a session of its own."""
    pid = os.fork()
    if not pid:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        try:
            os.execvp(words[0], words)
        except OSError as error:
            os.write(2, f"{words[0]}: {error.strerror}\n".encode())
        os._exit(127)
    return pid


def wait(pid: int, parent: int) -> int:
    """Return the exit status of the program; negative after a signal."""
    while True:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return os.waitstatus_to_exitcode(ended[1])
        got = None
        if hasattr(signal, "sigtimedwait"):
            info = signal.sigtimedwait(WATCHED, POLL)
            got = info and info.si_signo
        else:
            time.sleep(POLL / 10)
            got = next(iter(signal.sigpending() & {signal.SIGTERM, HARD}), None)
            if got is not None:
                signal.sigwait({got})
        if os.getppid() != parent or got == HARD:
            return -signal.SIGKILL  # `main` kills what is left
        elif got == signal.SIGTERM:
            with suppress(OSError):
                os.killpg(pid, signal.SIGTERM)


def main(parent: int, words: list[str]) -> int:
    """Run the program until it ends, and return its status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    with suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = start(words)
    status = wait(pid, parent)
    if status == 0 and (left := len(children(os.getpid()))):
        os.write(2, f"ended before {left} of its processes, which were killed; it must wait for them\n".encode())
    end_all(pid)
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
