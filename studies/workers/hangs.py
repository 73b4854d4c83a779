"""Rescue of the trials of a hanging process.

The process's watcher runs this module, then kills the process. The module revokes the leases of the process and records
where it hangs; any worker may then resume the trials.
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

ANSWER = 0.5  # seconds that the process has to write its stack traces
PATIENCE = 20.0  # seconds to wait for the database; without it, the leases expire by themselves


def watched(url: str, stuck: float | None, doing: str = "") -> AbstractContextManager[None]:
    """Watch this process within the context, and kill it if it hangs.

    Args:
        url: URL of the storage of its trials.
        stuck: seconds without a step after which it counts as hanging; None not to watch.
        doing: that of `progress.watched`.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    then = [sys.executable, "-m", __name__, str(Owner.current()), f"{stuck}"]
    return progress.watched(stuck, then, {**os.environ, URL_VARIABLE: url, "PYTHONPATH": path}, doing)


def main(owner: str, seconds: float, trace: int) -> None:
    """Revoke the leases of a process.

    Args:
        owner: the process, as named in its leases.
        seconds: how long it has made no step.
        trace: descriptor of the file to which the process writes its stack traces on request.
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
        report = printable(text.decode(errors="replace")).strip() or "it did not say where"
        return Hung(f"process {pid} made no step for {seconds:g} s, and was killed (--stuck)\n{report}")

    with Store(os.environ[URL_VARIABLE], retry=RetryPolicy(PATIENCE, full=True)) as store:
        store.evict_hung(owner, ask)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
