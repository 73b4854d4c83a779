"""Hunts of Orion's by several processes, some of which are killed on the way."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable

from rekindle.studies.orion.db import RekindleSQL

FORK = multiprocessing.get_context("fork")


def _begin(work: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    work()


def run_killed(
    work: Callable[[], object],
    database: RekindleSQL,
    max_trials: int,
    count: int,
    kills: int,
    wait_until: Callable[..., None],
    seconds: float,
) -> None:
    """Works with so many processes, kills some at random moments, starts as many anew, and waits for the end."""

    def start() -> multiprocessing.process.BaseProcess:
        worker = FORK.Process(target=_begin, args=(work,))
        worker.start()
        return worker

    workers = [start() for _ in range(count)]
    for kill in range(kills):  # spread over the first two thirds of the hunt
        done = (kill + 1) * 2 * max_trials // (3 * (kills + 1))
        wait_until(lambda done=done: database.count("trials", {"status": "completed"}) >= done, seconds)
        victim = random.choice([worker for worker in workers if worker.is_alive()])
        os.kill(victim.pid or 0, signal.SIGKILL)
        workers.append(start())
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.1, deadline - time.monotonic()))
    left = [worker for worker in workers if worker.is_alive()]
    for worker in left:
        worker.kill()
    assert not left, "the hunt did not end"
    assert sorted(worker.exitcode or 0 for worker in workers) == [-signal.SIGKILL] * kills + [0] * count
