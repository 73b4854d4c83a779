"""Settings of the process that an environment's code may change.

Such code may set torch's default type, NumPy's reaction to overflow, filters of warnings, the working directory,
environment variables or handlers of signals. What it sets holds while it runs; the learner's settings return when it
does.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its getsignal takes a hundredth of the time of signal's
import locale
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np

from ...errors import EnvironmentFailed, mark_environment
from ...runtime.jax_threads import one_jax_thread
from ...runtime.progress import mark_step, simulating
from ...runtime.watcher import set_limits

STEPPED = -3  # end of the settings that are read in every step


def _last(before: Any, now: Any) -> Any:
    return now


class Setting(NamedTuple):
    """A setting: functions that return and set its value.

    Attributes:
        get: returns the value.
        put: sets a value.
        kept: whether the environment finds what it has set when it runs again.
        change: returns what to put to get from a value to another one.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    kept: bool = True
    change: Callable[[Any, Any], Any] = _last


class Guard:
    """A context for an environment's code, such as its constructor or reset.

    Attributes:
        outside: values of the settings for the learner, read when the context was last entered.
        differentiates: whether torch computes gradients in the environment's code, as in a program of its own.
        own_settings: by the index of a setting, the value that the environment's code has set.
        contexts: one thread for JAX, and marks for the processes that the code starts, unless the environment is one of
            Gymnasium's, see `simulating`.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.settings, self.own_settings = _settings(), dict[int, Any]()
        self.outside: list[Any] = []
        self.differentiates, self.mode = True, cast(Any, None)
        self.contexts = ExitStack()
        self.simulates = not str(getattr(gym.registry.get(id), "entry_point", "")).startswith("gymnasium.")
        self.depth = 0  # garbage collection may close one environment within another one's code

    def __enter__(self) -> None:
        self.depth += 1
        if self.depth == 1:
            self.apply()
            self.contexts.enter_context(one_jax_thread())
            if self.simulates:
                self.contexts.enter_context(simulating())
            self.leave_inference()

    def __exit__(self, error_type: Any, error: BaseException | None, trace: Any) -> None:
        if self.depth == 1:
            self.return_to_inference()
            self.contexts.close()
            self.leave([setting.get() for setting in self.settings])
        self.depth -= 1
        _explain(error, self.id)

    def leave_inference(self) -> None:
        """Leave the learner's modes, in which tensors have no gradients."""
        torch: Any = sys.modules["torch"]
        self.mode = torch._C._InferenceMode(False)  # half the time of torch.inference_mode
        self.mode.__enter__()
        if not self.differentiates:
            torch._C._set_grad_enabled(False)

    def return_to_inference(self) -> None:
        """Return to the learner's modes."""
        self.differentiates = sys.modules["torch"].is_grad_enabled()
        self.mode.__exit__(None, None, None)

    def apply(self) -> None:
        """Read the learner's settings, and apply what the environment's code has set."""
        self.outside = [setting.get() for setting in self.settings]
        for index, value in self.own_settings.items():
            self.settings[index].put(value)

    def leave(self, now: Sequence[Any]) -> None:
        """Keep what the code has set, and return to the learner's settings."""
        for index, (setting, value, before) in enumerate(zip(self.settings, now, self.outside, strict=False)):
            if value == before:
                self.own_settings.pop(index, None)
                continue
            setting.put(setting.change(value, before))
            if setting.kept:
                self.own_settings[index] = setting.change(before, value)


class SteppingGuard:
    """A context for steps.

    It takes four microseconds, and three more if it marks. Unless the environment's code has set something, it does
    not read the learner's settings, which change between epochs at most, nor those that steps hardly change.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard, self.all = guard, [setting.get for setting in guard.settings]
        self.steps = self.read = self.all[:STEPPED]

    def __enter__(self) -> None:
        self.guard.depth += 1
        self.limits = mark_step() if self.guard.simulates else None
        self.read = self.steps
        if self.guard.own_settings:
            self.guard.apply()
            self.read = self.all
        self.guard.leave_inference()

    def __exit__(self, error_type: Any, error: BaseException | None, trace: Any) -> None:
        self.guard.return_to_inference()
        now = [get() for get in self.read]
        if now != self.guard.outside[: len(now)]:
            self.guard.leave(now)
        if self.limits is not None:
            set_limits(*self.limits)
        self.guard.depth -= 1
        _explain(error, self.guard.id)


def _explain(error: BaseException | None, id: str) -> None:
    if isinstance(error, StopIteration):
        raise stopped(id) from error
    if error is not None:
        mark_environment(error, id)


def stopped(id: str) -> EnvironmentFailed:
    """Return the error for a StopIteration, which would end our generators."""
    return EnvironmentFailed(f"{id}: its own code raised StopIteration; does it read past the end of its data?")


class Guards(NamedTuple):
    """Guards of an environment's code."""

    always: AbstractContextManager[None]
    stepping: AbstractContextManager[None]


UNGUARDED = Guards(nullcontext(), nullcontext())


@lru_cache(maxsize=64)
def guards_of(id: str) -> Guards:
    """Return the guards of an environment, by its id."""
    guard = Guard(id)
    return Guards(guard, SteppingGuard(guard))


def _settings() -> list[Setting]:
    """Return the settings, last two that no step changes."""
    torch: Any = sys.modules["torch"]
    return [
        Setting(torch.get_default_dtype, torch.set_default_dtype),
        Setting(torch.get_num_threads, torch.set_num_threads, kept=False),
        Setting(lambda: [*warnings.filters], _set_filters),
        Setting(_folder, _set_folder),
        Setting(np.geterr, lambda reactions: np.seterr(**reactions)),
        *(_handler(number) for number in (signal.SIGINT, signal.SIGTERM)),
        Setting(_has_alarm, _set_alarm, kept=False),  # before the handler, without which an alarm ends the process
        _handler(signal.SIGALRM, kept=True),
        Setting(_variables, _set_variables, change=_changes),
        Setting(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
        Setting(lambda: (sys.stdout, sys.stderr), _set_streams),
    ]


def _set_filters(filters: Sequence[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]  # a list, declared as a sequence
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as `warnings.catch_warnings` does


def _set_streams(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _variables() -> Mapping[bytes, bytes]:
    """Return a copy of the environment variables."""
    return os.environb._data.copy()  # type: ignore[attr-defined]  # a hundredth of the time


def _changes(before: Mapping[bytes, bytes], now: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
    changed = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())


def _set_variables(changes: Mapping[bytes, bytes | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value


def _has_alarm() -> bool:
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_alarm(on: bool) -> None:
    """Stop a timer that the environment has left."""
    if not on:  # one of the learner's that it has stopped is lost
        signal.setitimer(signal.ITIMER_REAL, 0)


def _handler(number: int, kept: bool = False) -> Setting:
    def put(handler: Any) -> None:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(number, handler)

    return Setting(lambda: _signal.getsignal(number), put, kept)
