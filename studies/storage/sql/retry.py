"""Retries of database transactions: time limit, back-off, notification."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....tasks.runtime.progress import tick
from ...errors import StoreError, StoreFull

_RANDOM = random.SystemRandom()  # environments may use or seed the global generator
SHORTEST, LONGEST = 0.005, 2.0  # seconds between attempts, at first and at most, without jitter
SAY_AFTER, SAY_EVERY = 1.0, 30.0  # seconds until the first notification, and between further ones
WAITING = "waiting for the database"  # the beginning of a notification
SLICE = 0.1  # seconds between checks, during a wait, whether to stop


def _never() -> bool:
    return False


@dataclass(frozen=True)
class RetryPolicy:
    """Limits and notification of the retries of a transaction.

    Attributes:
        seconds: total time to retry while the database is busy or unreachable.
        full: whether to retry while the disk is full.
        first: whether to retry if the database has never answered, which usually means a wrong address.
        say: called with a line when the process waits, and when the wait is over.
        stop: returns whether to end the wait early, as if the time were over.
    """

    seconds: float = 60.0
    full: bool = False
    first: bool = False
    say: Callable[[str], None] | None = None
    stop: Callable[[], bool] = _never

    def silent(self, seconds: float) -> RetryPolicy:
        """Return a policy for a background thread: `seconds`, no notification."""
        return replace(self, seconds=seconds, say=None)


class Backoff:
    """Pauses between the attempts of one transaction."""

    def __init__(self, policy: RetryPolicy):
        self.policy = policy
        self.began = time.monotonic()
        self.pause = SHORTEST
        self._say_at = self.began + SAY_AFTER
        self._said = False

    @property
    def seconds(self) -> float:
        """Seconds since the first attempt."""
        return time.monotonic() - self.began

    def wait_or_raise(self, problem: StoreError, passing: bool, answered: bool) -> None:
        """Sleep, longer each time, or raise the problem.

        Args:
            problem: error of the last attempt; raised if a retry cannot help or the time is over.
            passing: whether a retry may help.
            answered: whether the database has ever answered.
        """
        policy = self.policy
        if not (passing or (policy.full and isinstance(problem, StoreFull))) or not (answered or policy.first):
            raise problem
        if self.seconds + self.pause > policy.seconds or policy.stop():
            waited = self.seconds
            raise problem if waited < SAY_AFTER else type(problem)(f"{problem} (waited for {waited:.0f} s)")
        if policy.say is not None and time.monotonic() >= self._say_at:
            left = policy.seconds - self.seconds
            policy.say(f"{WAITING}, for {left:.0f} s more at most: {problem}")
            self._said, self._say_at = True, time.monotonic() + SAY_EVERY
        pause = self.pause * _RANDOM.uniform(0.5, 1.5)  # jitter keeps processes from colliding again
        until = time.monotonic() + min(pause, policy.seconds - self.seconds)
        while (left := until - time.monotonic()) > 0 and not policy.stop():
            time.sleep(min(left, SLICE))
            tick()
        self.pause = min(2 * self.pause, LONGEST)

    def succeeded(self) -> None:
        """Notify that the wait is over, if it was notified."""
        if self._said and self.policy.say is not None:
            self.policy.say(f"the database is back after {self.seconds:.0f} s")
