"""Waiting for a task that another process or thread is training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import MachineMismatch, TaskBusy
from ..study.code import IN_PYTHON, check_resumed

if TYPE_CHECKING:
    from ...tasks.task import Task

POLL = (0.1, 2.0)  # seconds between attempts, at first and at most


@contextmanager
def open_when_free(make: Callable[[], Task], values: Mapping[str, Any], code: bool = False) -> Iterator[Task]:
    """Open a task once no other process holds it; finally finish it.

    Args:
        make: creates the task.
        values: its hyperparameters.
        code: whether it may continue with other code than it began with.

    Raises:
        MachineMismatch: it would, but may not.
    """
    pause = POLL[0]
    while True:
        task = make()
        try:
            task.init(**values)
        except TaskBusy:
            time.sleep(pause)
            pause = min(2 * pause, POLL[1])
            continue
        if not code:
            try:
                check_resumed(task, IN_PYTHON)
            except MachineMismatch:
                task.close()
                raise
        try:
            yield task
        finally:
            task.finish()
        return
