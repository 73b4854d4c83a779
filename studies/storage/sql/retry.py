"""Retry policy for database errors: timeout, back-off, notification."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....tasks.runtime.progress import tick
from ...errors import StoreError, StoreFull

_RANDOM = random.SystemRandom()  # an environment may use the global stream
SHORTEST, LONGEST = 0.005, 2.0  # seconds between two tries, at first and at most; jitter comes on top
SAY_AFTER, SAY_EVERY = 1.0, 30.0  # seconds: a wait of milliseconds is no news
SLICE = 0.1  # seconds after which a wait looks up whether it was asked to stop


def _never() -> bool:
    return False


@dataclass(frozen=True)
class RetryPolicy:
    """Limits and notification of the retries of a transaction.

    Attributes:
        seconds: in all, while the database is busy or gone.
        full: whether also while the disk is full.
        first: whether also while a database has never answered, which is more likely a wrong address.
        say: is told, in a line, why the process waits, and that the wait is over.
        stop: ends a wait early, as if the seconds were over.
    """

    seconds: float = 60.0
    full: bool = False
    first: bool = False
    say: Callable[[str], None] | None = None
    stop: Callable[[], bool] = _never

    def silent(self, seconds: float) -> RetryPolicy:
        """Return the policy of a background thread: other seconds, and no notification."""
        return replace(self, seconds=seconds, say=None)


class Backoff:
    """The pauses between the attempts of one transaction."""

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
        """Sleep, longer each time.

        Raise the problem if a retry cannot help, or the time is over.
        """
        policy = self.policy
        if not (passing or (policy.full and isinstance(problem, StoreFull))) or not (answered or policy.first):
            raise problem
        if self.seconds + self.pause > policy.seconds or policy.stop():
            waited = self.seconds
            raise problem if waited < SAY_AFTER else type(problem)(f"{problem} (waited for {waited:.0f} s)")
        if policy.say is not None and time.monotonic() >= self._say_at:
            left = policy.seconds - self.seconds
            policy.say(f"waiting for the database, for {left:.0f} s more at most: {problem}")
            self._said, self._say_at = True, time.monotonic() + SAY_EVERY
        pause = self.pause * _RANDOM.uniform(0.5, 1.5)  # jitter: no second collision
        until = time.monotonic() + min(pause, policy.seconds - self.seconds)
        while (left := until - time.monotonic()) > 0 and not policy.stop():
            time.sleep(min(left, SLICE))
            tick()
        self.pause = min(2 * self.pause, LONGEST)

    def succeeded(self) -> None:
        """Notify of the end of the wait, if the wait was notified."""
        if self._said and self.policy.say is not None:
            self.policy.say(f"the database is back after {self.seconds:.0f} s")
