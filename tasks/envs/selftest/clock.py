"""A clock that is ahead, for environments that depend on the time."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym

from ..gym.layers import modules_of

SHIFT = datetime.timedelta(days=40, hours=5, minutes=23, seconds=17.37)  # another month, weekday, hour and second
SECONDS, NANOSECONDS = ("time", "monotonic", "perf_counter"), ("time_ns", "monotonic_ns", "perf_counter_ns")
NOW = {datetime.datetime: ("now", "utcnow", "today"), datetime.date: ("today",)}


@contextmanager
def clock_ahead(env: gym.Env[Any, Any]) -> Iterator[None]:
    """Let an environment read a clock that is ahead, in this thread.

    Its modules, `time` and `datetime` have it; code in C reads the right one.
    """
    thread: int | None = threading.get_ident()

    def shifted(read: Callable[..., Any], shift: Any) -> Callable[..., Any]:
        return lambda *how: read(*how) + shift if threading.get_ident() == thread else read(*how)

    seconds = SHIFT.total_seconds()
    ahead: dict[int, Any] = {id(getattr(time, name)): shifted(getattr(time, name), seconds) for name in SECONDS}
    ahead |= {id(getattr(time, name)): shifted(getattr(time, name), int(seconds * 1e9)) for name in NANOSECONDS}
    for usual, names in NOW.items():
        ahead[id(usual)] = _class(usual, {name: staticmethod(shifted(getattr(usual, name), SHIFT)) for name in names})
    with ExitStack() as stack:
        for module in (time, datetime, *modules_of(env)):
            for name, value in [*vars(module).items()]:
                if id(value) in ahead:
                    setattr(module, name, ahead[id(value)])
                    stack.callback(setattr, module, name, value)
        try:
            yield
        finally:
            thread = None  # what was imported meanwhile is right from now on


def _class(usual: Any, methods: dict[str, Any]) -> Any:
    """Return a class with other methods and the usual instances."""
    checks = type(usual.__name__, (type(usual),), {"__instancecheck__": lambda _, value: isinstance(value, usual)})
    return checks(usual.__name__, (usual,), {"__new__": lambda _, *values, **named: usual(*values, **named), **methods})
