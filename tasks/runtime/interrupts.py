"""SIGTERM and SIGINT, which take effect only between two steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar, Self

from ..errors import Stopped
from .guard import is_control_flow

# Seconds in which a repeated signal is the same request. `timeout` signals its process, then the process's group; a
# cluster's scheduler signals all processes of a job, and a supervisor passes it on to its workers. People press Ctrl-C
# again on purpose.
ECHO = {signal.SIGTERM: 1.0, signal.SIGINT: 0.1}


class StepInterrupted(KeyboardInterrupt):
    """A second signal ended a step before it was saved.

    Attributes:
        signal: the signal received.
    """

    def __init__(self, number: signal.Signals):
        self.signal = number
        super().__init__(f"stopped by a second {number.name} in the middle of a step")


class Terminated(KeyboardInterrupt):
    """SIGTERM ended a command.

    Attributes:
        signal: the signal received.
    """

    signal = signal.SIGTERM

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"


def in_this_process(handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
    """Return a signal's handler for this process, called once per request.

    An echo of a signal does not call it again. Forks do not inherit it: an environment's simulators may be forks of its
    process, and end at the signal, as processes do by default.
    """
    process, requested = os.getpid(), dict[int, float]()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        now = time.monotonic()
        if number not in requested or now - requested[number] >= ECHO[signal.Signals(number)]:
            requested[number] = now
            handler(number, frame)

    return handle


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated at SIGTERM, which otherwise ends this process silently."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, in_this_process(end))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Interrupts:
    """Context in which the first SIGTERM or SIGINT only sets `pending`.

    A second one acts at once, unless it is an echo (`ECHO`): it raises StepInterrupted. In threads other than the main
    one nothing changes, since Python delivers signals to the main thread.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    _entered: ClassVar[list[Interrupts]] = []

    @classmethod
    def pending_anywhere(cls) -> bool:
        """Return whether a signal is pending in any such context.

        Waits within a step call it, so that they can end early.
        """
        return any(interrupts.pending is not None for interrupts in cls._entered)

    @classmethod
    def raise_if_asked(cls, *step: object) -> None:
        """Raise what is pending in any such context, at a step."""
        for interrupts in cls._entered:
            interrupts.raise_if_pending()

    def __init__(self) -> None:
        self.pending: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            note = in_this_process(self._note)
            self._before = {number: signal.signal(number, note) for number in self.SIGNALS}
            self._entered.append(self)
        return self

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if self in self._entered:
            self._entered.remove(self)
        if error is None:
            self.raise_if_pending()  # a signal that arrived after the last step's check
        elif self.pending is not None and not is_control_flow(error):
            signal.raise_signal(self.pending)  # another error is under way: the restored handlers get the signal

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            raise StepInterrupted(signal.Signals(number))
        self.pending = signal.Signals(number)

    def raise_if_pending(self) -> None:
        """Raise KeyboardInterrupt after SIGINT, and Stopped after SIGTERM."""
        if self.pending == signal.SIGINT:
            raise KeyboardInterrupt
        if self.pending is not None:
            raise Stopped("training was asked to stop by SIGTERM; the state is saved, and the same call resumes it")
