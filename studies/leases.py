"""Who holds a task: the identity of a process, the lease it holds, and the thread that keeps its leases alive."""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from ..tasks.storage import Saved
from .errors import LeaseLost, StoreError

if TYPE_CHECKING:
    from .store import Store


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other one, also from a later one with the same pid.

    Attributes:
        host: its machine's name.
        boot: which start of the machine, and which pid namespace (a container's pids are not its host's).
        started: when the process started, in the system's own unit; no change of the clock changes it.
    """

    host: str
    boot: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.host}:{self.boot}:{self.pid}:{self.started}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The owner of a string that ``str`` made."""
        host, boot, pid, started = text.rsplit(":", 3)
        return cls(host, boot, int(pid), started)

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or "")

    def is_dead(self) -> bool:
        """Whether this process certainly no longer runs; False for one on another machine, which nobody can know."""
        here = Owner.current()
        if (self.host, self.boot) != (here.host, here.boot) or not here.boot:
            return False
        if not psutil.pid_exists(self.pid):
            return True
        started = _started(self.pid)
        return started is not None and started != self.started


def _boot() -> str:
    if not sys.platform.startswith("linux"):
        return str(int(psutil.boot_time()))
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""  # unknown: then no process counts as dead before its lease ends


def _started(pid: int) -> str | None:
    """When a process started; "zombie" if it ended and only waits to be buried; None if that cannot be seen."""
    try:
        if sys.platform.startswith("linux"):
            # field 22, in ticks since boot (psutil's time since 1970 moves with the clock); the name may hold spaces
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return "zombie" if fields[0] in "ZX" else fields[19]
        return f"{psutil.Process(pid).create_time():.2f}"
    except (OSError, psutil.Error):
        return None


# Every lease that lives in this process, whatever its Store. A row that names this process but none of these is left
# over from a commit whose answer was lost, or from a Lease that was dropped without release: it may be taken again.
held_here: weakref.WeakValueDictionary[tuple[str, int], StoreLease] = weakref.WeakValueDictionary()


class StoreLease:
    """The right to write one task, until it is released, or another process takes it over.

    Attributes:
        uid: the task.
        token: the fencing token; every write names it, and a smaller one than the task's is refused.
        lost: whether the heartbeat has seen that another process took over.
    """

    def __init__(self, store: Store, uid: str, token: int):
        self.store, self.uid, self.token, self.lost = store, uid, token, False
        self._pid = os.getpid()
        held_here[uid, token] = self

    def load(self, allow_previous: bool = False) -> Saved | None:
        """The last checkpoint, every byte of it checked, or None if there is none.

        A damaged one raises DamagedCheckpoint, unless ``allow_previous``: then the newest sound one before it is
        used, and an event says so.
        """
        return self.store._load(self, allow_previous)

    def discard(self) -> None:
        """Deletes all checkpoints of the task, so that it starts from nothing; an event says so."""
        self.store._discard(self)

    def release(self) -> None:
        """Lets another process take the task; does nothing if that happened already."""
        self.store._release([self])

    def check(self) -> None:
        """Raises LeaseLost if this process cannot hold the lease."""
        if self._pid != os.getpid():
            raise LeaseLost([self.uid], "a forked process does not inherit its parent's leases")
        if self.lost:
            raise LeaseLost([self.uid])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lease {self.token} on task {self.uid}{', lost' if self.lost else ''}>"


class Heartbeat:
    """A daemon thread that calls a method every few seconds, until stopped or until the method's object is gone."""

    def __init__(self, beat: Callable[[], None], seconds: float):
        self._beat, self._seconds, self._stop = weakref.WeakMethod(beat), seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, name="rekindle-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits until it has ended."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            beat = self._beat()
            if beat is None:
                return
            try:
                beat()
            except StoreError:
                continue  # the database may come back before the leases end
            finally:
                del beat  # do not keep the store alive while waiting
