"""Watcher that kills a process once it hangs, and ends its simulators.

`progress.watched` runs this file as a script, with a Python without packages, so it starts in milliseconds. A process
that hangs in C code while it holds Python's lock can do nothing itself, and one that was killed cannot end the
simulators that its environments have started.
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

WORDS = 2  # words of the shared page: ticks, and how many parts of the process are at work
TRACE = signal.SIGUSR2  # on this signal the process writes where it is
ANSWER = 0.5  # seconds in which a process says where it is
# What a process does.
TRYING, TRAINING, PLAYING = "while it made or tried its environment", "while it trained", "while it played"
LAST_WORDS = 30.0  # seconds that the command may take
STARTED_BY = "REKINDLE_STARTED_BY"  # environment variable of the processes that others start, with the names of these
LIMIT = getattr(resource, "RLIMIT_RTTIME", None)  # a limit whose value tells the same, see `mark`
MARKED, HALF, NAME = 1 << 60, 30, (1 << 30) - 1  # a bit of all marks, and bits of a name in them
PATIENCE = 5.0  # seconds in which such a process ends after SIGTERM


class Stillness:
    """Seconds for which a process has not ticked.

    Pauses of the process, or of the observer (a machine that sleeps), do not count.
    """

    def __init__(self, limit: float, pid: int):
        self.limit, self.pid = limit, pid
        self.poll = min(1.0, limit / 4)  # seconds between two looks
        self.seconds, self.looked = 0.0, time.monotonic()
        self.ticks: int | None = None

    def exceeds(self, ticks: int) -> bool:
        """Return whether the limit is reached, given the process's tick count."""
        now = time.monotonic()
        if ticks != self.ticks:
            self.ticks, self.seconds = ticks, 0.0
        elif not is_paused(self.pid):
            self.seconds += min(now - self.looked, 2 * self.poll)
        self.looked = now
        return self.seconds >= self.limit


def is_paused(pid: int) -> bool:
    """Return whether a signal or debugger is known to pause a process."""
    return _has_state(pid, "Tt")


def _has_state(pid: int | str, states: str) -> bool:
    """Return whether a process has one of these states, see proc(5)."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode() in states
    return False


def mark(soft: int, name: str) -> int:
    """Return the soft limit for processes that a named one starts.

    A new session, parent or environment, closed descriptors and other programs leave the limits of a process as they
    are. The one on time of real-time scheduling has no effect here, and takes any number: the bits of two names. If the
    limit has marked already, its first name stays.
    """
    bits = _bits(name)
    return MARKED | (names_in(soft) or [bits])[0] << HALF | bits


def limits() -> tuple[int, int]:
    """Return this process's soft and hard limit."""
    return (-1, -1) if LIMIT is None else resource.getrlimit(LIMIT)


def set_limits(soft: int, hard: int) -> None:
    """Set both limits, unless the hard one is a number.

    Then the variable alone marks.
    """
    if LIMIT is not None and hard == resource.RLIM_INFINITY:
        resource.setrlimit(LIMIT, (soft, hard))


def _bits(name: str) -> int:
    return int(name.partition("-")[2], 16) & NAME


def names_in(soft: int) -> list[int]:
    """Return the bits of both names in a soft limit, if any."""
    return [soft >> HALF & NAME, soft & NAME] if soft >> 2 * HALF == 1 else []


def started_by(name: str) -> set[int]:
    """Return the processes that a process has started, wherever they are.

    The variable with which a process began tells it, or its limit, see `mark`. Only Linux shows them.
    """
    processes = set()
    for entry in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with suppress(OSError, IndexError), open(f"/proc/{entry}/limits", "rb") as file:
            soft = file.read().partition(b"Max realtime timeout")[2].split()[0]
            marks = soft.isdigit() and _bits(name) in names_in(int(soft))
            if marks and not _has_state(entry, "ZX"):  # one that has ended keeps its limits until its parent asks
                processes.add(int(entry))
        with suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            values = (word.partition(b"=") for word in file.read().split(b"\0"))
            if any(key == STARTED_BY.encode() and name.encode() in value.split(b"/") for key, _, value in values):
                processes.add(int(entry))
    return processes - {os.getpid(), int(name.partition("-")[0])}


def end_started_by(name: str, patience: float = PATIENCE) -> None:
    """End the processes that a process has started: SIGTERM, then SIGKILL."""
    signalled: set[int] = set()
    end = time.monotonic() + patience
    while (left := started_by(name)) and time.monotonic() < end + PATIENCE:
        late = time.monotonic() >= end
        for pid in left if late else left - signalled:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled |= left
        time.sleep(0.02)


def not_ignoring(number: int, frame: object) -> None:
    """Do nothing; unlike SIG_IGN, processes do not inherit it."""


def watch(page: int, trace: int, pid: int, limit: float, doing: str, then: list[str]) -> None:
    """Watch the parent until it ends, or kill it if it hangs.

    Without a command, nobody else reports what happened, so this prints where the process hangs.

    Args:
        page: descriptor of the shared page.
        trace: descriptor of the file in which the process writes where it is.
        pid: id of the process, this one's parent.
        limit: seconds without a tick that count as a hang.
        doing: what the process does while it is at work; if it ends meanwhile, this is told. "" if others tell it.
        then: command that records what happened, run before the process is killed; `trace` is added as its last
            argument.
    """
    words = memoryview(mmap.mmap(page, 8 * WORDS)).cast("q")
    still = Stillness(limit, pid)
    while os.getppid() == pid and not select.select([0], [], [], still.poll)[0]:
        if still.exceeds(words[0]) and words[1] and os.getppid() == pid:
            _end(trace, pid, limit, doing, then)
            return
        if not words[1]:
            still.ticks = None
    if words[1] and doing:
        cure = "; run the same command again, and it resumes" if doing == TRAINING else ""
        _tell(f"process {pid} ended {doing}: its code exits, or crashes in C, or something killed it{cure}")


def _end(trace: int, pid: int, limit: float, doing: str, then: list[str]) -> None:
    try:
        _tell(f"process {pid} has made no step for {limit:g} s{doing and ' '}{doing}, and is killed (--stuck)")
        if not then:
            os.kill(pid, TRACE)
            time.sleep(ANSWER)
            _tell(os.pread(trace, 1 << 16, 0).decode(errors="replace").strip() or "it did not say where")
        else:
            subprocess.run([*then, str(trace)], pass_fds=(trace,), timeout=LAST_WORDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass  # others learn of the death from the process's expired lease
    finally:
        os.kill(pid, signal.SIGKILL)


def _tell(text: str) -> None:
    sys.stderr.write(f"rekindle: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, not_ignoring)  # it ends with its parent
    try:
        watch(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6], sys.argv[7:])
    finally:
        end_started_by(sys.argv[1])
