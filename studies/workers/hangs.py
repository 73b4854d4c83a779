"""Rescue of the trials that a hanging process holds.

Its watcher runs this module: the trials are taken away from the process, with an event that says where it hangs, and
any worker may resume them. After that the watcher kills it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager

from ...tasks.errors import Hung
from ...tasks.runtime import progress
from ...tasks.runtime.watcher import TRACE
from ..redact import printable
from ..storage.locks.owner import Owner
from ..storage.sql.retry import RetryPolicy
from ..storage.store import Store
from . import URL_VARIABLE

ANSWER = 0.5  # seconds in which a process tells where it is
PATIENCE = 20.0  # seconds for a database that does not answer; after that the leases tell as much, later


def watched(url: str, stuck: float | None) -> AbstractContextManager[None]:
    """Watch this process meanwhile, and kill it once it hangs.

    Args:
        url: of the storage of its trials.
        stuck: seconds without a step; None: it is not watched.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    then = [sys.executable, "-m", __name__, str(Owner.current()), f"{stuck}"]
    return progress.watched(stuck, then, {**os.environ, URL_VARIABLE: url, "PYTHONPATH": path})


def main(owner: str, seconds: float, trace: int) -> None:
    """Take the trials away from a process.

    Args:
        owner: the process, as leases name it.
        seconds: for which it has made no step.
        trace: the descriptor of the file in which it writes where it is, when it is asked.
    """
    pid = Owner.parse(owner).pid

    def ask() -> Hung:
        os.kill(pid, TRACE)
        deadline = time.monotonic() + ANSWER
        text = written = b""
        while (not text or text != written) and time.monotonic() < deadline:
            text = written
            time.sleep(0.02)
            written = os.pread(trace, 1 << 16, 0)
        where = printable(text.decode(errors="replace")).strip() or "it did not say where"
        return Hung(f"process {pid} made no step for {seconds:g} s, and was killed (--stuck)\n{where}")

    with Store(os.environ[URL_VARIABLE], retry=RetryPolicy(PATIENCE, full=True)) as store:
        store.evict_hung(owner, ask)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
