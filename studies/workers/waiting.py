"""Waiting for a task that another process or thread is training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import TaskBusy

if TYPE_CHECKING:
    from ...tasks.task import Task

POLL = (0.1, 2.0)  # seconds between attempts, at first and at most


@contextmanager
def open_when_free(make: Callable[[], Task], values: Mapping[str, Any]) -> Iterator[Task]:
    """Open a task once no other process holds it; finally finish it."""
    pause = POLL[0]
    while True:
        task = make()
        try:
            task.init(**values)
        except TaskBusy:
            time.sleep(pause)
            pause = min(2 * pause, POLL[1])
            continue
        try:
            yield task
        finally:
            task.finish()
        return
