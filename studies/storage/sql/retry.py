"""How a database that is busy, full or gone is waited for: for how long, for what, and who hears of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import StoreError, StoreFull

_RANDOM = random.SystemRandom()  # an environment may use the global stream
SHORTEST, LONGEST = 0.005, 2.0  # seconds between two tries, at first and at most; jitter comes on top
SAY_AFTER, SAY_EVERY = 1.0, 30.0  # seconds: nobody needs to hear of a wait of milliseconds
SLICE = 0.1  # seconds after which a wait looks up whether it was asked to stop


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Patience:
    """How long a transaction is tried again.

    Attributes:
        seconds: in all, while the database is busy or gone.
        full: whether also while there is no room to write.
        first: whether also while a database has never answered, which is more likely a wrong address.
        say: is told, in a line, what is waited for, and that the wait is over.
        stop: ends a wait early, as if the seconds were over.
    """

    seconds: float = 60.0
    full: bool = False
    first: bool = False
    say: Callable[[str], None] | None = None
    stop: Callable[[], bool] = _never

    @classmethod
    def of(cls, patience: float | Patience) -> Patience:
        """Plain seconds as a patience."""
        return patience if isinstance(patience, Patience) else cls(float(patience))

    def silent(self, seconds: float) -> Patience:
        """The same for a thread in the background: so many seconds, and nobody hears of it."""
        return replace(self, seconds=seconds, say=None)


class Wait:
    """The waiting of one transaction."""

    def __init__(self, patience: Patience):
        self.patience = patience
        self.began = time.monotonic()
        self.pause = SHORTEST
        self._say_at = self.began + SAY_AFTER
        self._said = False

    @property
    def seconds(self) -> float:
        """Since when."""
        return time.monotonic() - self.began

    def before_the_next_try(self, problem: StoreError, passing: bool, answered: bool) -> None:
        """Waits a little, longer each time; raises the problem if it does not pass by waiting, or not in time."""
        patience = self.patience
        if not (passing or (patience.full and isinstance(problem, StoreFull))) or not (answered or patience.first):
            raise problem
        if self.seconds + self.pause > patience.seconds or patience.stop():
            raise self._over(problem)
        if patience.say is not None and time.monotonic() >= self._say_at:
            left = patience.seconds - self.seconds
            patience.say(f"waiting for the database, for {left:.0f} s more at most: {problem}")
            self._said, self._say_at = True, time.monotonic() + SAY_EVERY
        until = time.monotonic() + self.pause * _RANDOM.uniform(0.5, 1.5)  # who collided does not collide again
        while (left := until - time.monotonic()) > 0 and not patience.stop():
            time.sleep(min(left, SLICE))
        self.pause = min(2 * self.pause, LONGEST)

    def over(self) -> None:
        """Tells those who heard of the wait that it is over."""
        if self._said and self.patience.say is not None:
            self.patience.say(f"the database is back after {self.seconds:.0f} s")

    def _over(self, problem: StoreError) -> StoreError:
        if self.seconds < SAY_AFTER:
            return problem
        return type(problem)(f"{problem} (waited for {self.seconds:.0f} s)")
