"""Exit of a worker before the SIGKILL that follows a SIGTERM.

A worker that is asked to stop finishes the current step and saves. If the step takes longer than the scheduler waits
(SLURM's KillWait, Kubernetes' grace period), the worker releases its trials and exits instead: they resume at once from
the last checkpoint, and no trial is blamed for a killed process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...tasks.runtime.progress import end_work
from ..storage.store import Store

POLL = 0.1  # seconds between checks for a stop request
LEFT = "exits with what was saved last, to be resumed"  # the end of what is said then
RESERVE = (0.2, 5.0)  # time reserved for releasing the trials: a fraction of the grace, and seconds at most


@contextmanager
def graceful(
    store: Store, grace: float, stop_requested: Callable[[], bool], status: int = 128 + signal.SIGTERM
) -> Iterator[None]:
    """Exit before the grace period after a stop request ends.

    Args:
        store: store with the trials.
        grace: seconds between the request and the SIGKILL.
        stop_requested: returns whether a stop was requested.
        status: exit status.
    """
    done = threading.Event()
    threading.Thread(target=_watch, args=(store, grace, stop_requested, done, status), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(store: Store, grace: float, stop_requested: Callable[[], bool], done: threading.Event, status: int) -> None:
    while not stop_requested():
        if done.wait(POLL):
            return
    if done.wait(grace - min(RESERVE[0] * grace, RESERVE[1])):
        return
    sys.stderr.write(f"rekindle: a step takes longer than --grace {grace:g}: {LEFT}\n")
    sys.stderr.flush()
    store.close()
    end_work()
    os._exit(status)
