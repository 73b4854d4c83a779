"""A clock that is ahead, for environments that depend on the time."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np

from ..gym.layers import modules_of

SHIFT = datetime.timedelta(days=40, hours=5, minutes=23, seconds=17.37)  # another month, weekday, hour and second
SECONDS = "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"
NANOSECONDS = tuple(f"{name}_ns" for name in SECONDS)
MOMENTS = {"localtime": 0, "gmtime": 0, "ctime": 0}  # number of arguments before the moment, which is now if it is None
PARTS = {"asctime": 0, "strftime": 1}  # the same of functions that take the parts of a local moment
NOW = {datetime.datetime: ("now", "utcnow", "today"), datetime.date: ("today",)}


@contextmanager
def clock_ahead(env: gym.Env[Any, Any]) -> Iterator[None]:
    """Let an environment read a clock that is ahead, in this thread.

    Its modules, `time`, `datetime` and `numpy` have it; other code in C reads the right one.
    """
    thread: int | None = threading.get_ident()
    seconds, clock, local = SHIFT.total_seconds(), time.time, time.localtime

    def is_ahead() -> bool:
        return threading.get_ident() == thread

    def shifted(read: Callable[..., Any], shift: Any) -> Callable[..., Any]:
        return lambda *how: read(*how) + shift if is_ahead() else read(*how)

    def of_now(read: Callable[..., Any], first: int, now: Callable[[], Any]) -> Callable[..., Any]:
        def read_ahead(*how: Any) -> Any:
            is_now = len(how) >= first and all(moment is None for moment in how[first:])
            return read(*how[:first], now()) if is_now and is_ahead() else read(*how)

        return read_ahead

    def moment() -> float:
        return clock() + seconds

    def numpy_moment(_: Any, *values: Any) -> Any:
        number = usual_moment(*values)
        if not is_ahead() or values[:1] not in (("now",), ("today",)):
            return number
        return (number + np.timedelta64(SHIFT)).astype(number.dtype)  # SHIFT has a unit of its own

    usual_moment: Any = np.datetime64
    ahead: dict[int, Any] = {id(getattr(time, name)): shifted(getattr(time, name), seconds) for name in SECONDS}
    ahead |= {id(getattr(time, name)): shifted(getattr(time, name), int(seconds * 1e9)) for name in NANOSECONDS}
    for functions, now in ((MOMENTS, moment), (PARTS, lambda: local(moment()))):
        ahead |= {id(getattr(time, name)): of_now(getattr(time, name), n, now) for name, n in functions.items()}
    for usual, names in NOW.items():
        ahead[id(usual)] = _class(usual, {name: staticmethod(shifted(getattr(usual, name), SHIFT)) for name in names})
    ahead[id(usual_moment)] = _class(usual_moment, {"__new__": numpy_moment})
    with ExitStack() as stack:
        for module in (time, datetime, np, *modules_of(env)):
            for name, value in [*vars(module).items()]:
                # a function that a module has imported while its reads were noted is wrapped, see `chance.noted_reads`
                read: Any = getattr(value, "__wrapped__", value) if isinstance(value, FunctionType) else value
                if id(read) in ahead:
                    setattr(module, name, ahead[id(read)])
                    stack.callback(setattr, module, name, value)
        try:
            yield
        finally:
            thread = None  # what was imported meanwhile is right from now on


def _class(usual: Any, methods: dict[str, Any]) -> Any:
    """Return a class with other methods and the usual instances."""
    checks = type(usual.__name__, (type(usual),), {"__instancecheck__": lambda _, value: isinstance(value, usual)})
    return checks(usual.__name__, (usual,), {"__new__": lambda _, *values, **named: usual(*values, **named), **methods})
