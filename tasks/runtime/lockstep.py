"""Jobs that run side by side and meet at every step.

Each job has a thread, so that code that calls a function and waits for its result needs no change to wait for others.
Only one thread runs at any moment, and always in the same order, so results do not depend on scheduling.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch


class Abandoned(BaseException):
    """Raised inside a job whose neighbor failed."""


class Lockstep:
    """Runs jobs by name, which meet whenever all of them call `meet`."""

    def __init__(self, exchange: Callable[[], None]) -> None:
        """Store the function to call at each meeting.

        It is called in the thread of `run`.
        """
        self.exchange = exchange
        self._turns: dict[str, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._abandoned = False

    def meet(self, name: str) -> None:
        """Wait inside a job until all jobs have met and `exchange` returned.

        Args:
            name: name of the job that calls.
        """
        self._back.release()
        self._turns[name].acquire()
        if self._abandoned:
            raise Abandoned

    def run(self, jobs: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Run jobs, and return their results.

        Raises:
            RuntimeError: a job ended while others wait for it.
            BaseException: what `exchange` or the first job that failed raised; the others are abandoned.
        """
        self._abandoned, self._turns = False, {name: threading.Semaphore(0) for name in jobs}
        results: dict[str, Any] = {}
        errors: list[BaseException] = []
        threads = torch.get_num_threads()

        def work(name: str, job: Callable[[], Any]) -> None:
            self._turns[name].acquire()
            try:
                if not self._abandoned:
                    torch.set_num_threads(threads)  # a new thread has its own number
                    results[name] = job()
            except BaseException as error:  # noqa: BLE001  # raised again by `run`, in the caller's thread
                if not isinstance(error, Abandoned):
                    errors.append(error)
            finally:
                waiting.discard(name)
                self._back.release()

        waiting = set(jobs)
        workers = [
            threading.Thread(target=contextvars.copy_context().run, args=(work, name, job), daemon=True)
            for name, job in jobs.items()
        ]
        for worker in workers:
            worker.start()
        try:
            while waiting:
                self._take_turns(jobs, waiting)
                if errors:
                    raise errors[0]
                if waiting and len(waiting) < len(jobs):
                    raise RuntimeError(f"{', '.join(sorted(waiting))} must take as many steps as the others, but wait")
                if waiting:
                    self.exchange()
        finally:
            self._abandoned = True
            self._take_turns(jobs, waiting)
            for worker in workers:
                worker.join()
        return results

    def _take_turns(self, jobs: Mapping[str, Any], waiting: set[str]) -> None:
        """Let each waiting job run until it meets the others or ends."""
        for name in jobs:
            if name in waiting:
                self._turns[name].release()
                self._back.acquire()
