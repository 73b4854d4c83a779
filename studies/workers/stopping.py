"""How a worker process is asked to stop: by a signal, or by the end of its parent."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopSignals:
    """While entered, SIGTERM and SIGINT ask the worker to stop; so does the end of stdin, a parent's pipe, if asked."""

    def __init__(self, until_stdin_ends: bool = False):
        self.asked: signal.Signals | None = None
        if until_stdin_ends:
            threading.Thread(target=self._wait_for_parent, daemon=True).start()

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)

    def _wait_for_parent(self) -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
