"""Exit of a worker before the SIGKILL that follows a SIGTERM.

A worker that is asked to stop does so between two steps, and saves. Where a step takes longer than the scheduler waits
(SLURM's KillWait, Kubernetes' grace period), it gives its trials up and exits: what it saved last is resumed at once,
and no trial is blamed for a killed process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..storage.store import Store

POLL = 0.1  # seconds between two looks
RESERVE = (0.2, 5.0)  # of the grace, and seconds at most, that giving up may take


@contextmanager
def graceful(
    store: Store, grace: float, asked: Callable[[], bool], status: int = 128 + signal.SIGTERM
) -> Iterator[None]:
    """Exit before the grace time after a stop request is over.

    Args:
        store: holds the trials.
        grace: seconds between the request and the SIGKILL.
        asked: returns whether a stop is asked for.
        status: with which it exits.
    """
    done = threading.Event()
    threading.Thread(target=_watch, args=(store, grace, asked, done, status), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(store: Store, grace: float, asked: Callable[[], bool], done: threading.Event, status: int) -> None:
    while not asked():
        if done.wait(POLL):
            return
    ends = time.monotonic() + grace - min(RESERVE[0] * grace, RESERVE[1])
    if done.wait(max(0.0, ends - time.monotonic())):
        return
    sys.stderr.write(
        f"rekindle: a step takes longer than --grace {grace:g}: exits with what was saved last, to be resumed\n"
    )
    sys.stderr.flush()
    store.close()
    os._exit(status)
