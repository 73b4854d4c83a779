"""Limits on the time of code of others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 1.0  # seconds after which code is interrupted again that goes on, as after a bare `except:`


class TooLong(BaseException):
    """Code of others took too long.

    `except Exception` in that code does not stop this.
    """


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TooLong inside this context once it takes longer.

    It does so in Python, and where Python waits. There is no limit outside of the main thread, or if the program has
    set a timer of its own.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
