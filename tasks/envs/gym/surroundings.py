"""Settings of the process that an environment's code may change.

Such code may set torch's default type, NumPy's reaction to overflow, filters of warnings, the working directory or
handlers of signals. What it sets holds while it runs; the learner's settings return when it does.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its getsignal takes a hundredth of the time of signal's
import locale
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np

from ...errors import EnvironmentFailed, mark_environment
from ...runtime.jax_threads import one_jax_thread
from ...runtime.progress import mark_step, simulating
from ...runtime.watcher import set_limits

STEPPED = -2  # end of the settings that steps may change


class Setting(NamedTuple):
    """A setting: functions that return and set its value.

    `kept` is whether the environment finds what it has set when it runs again.
    """

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    kept: bool = True


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
            self.contexts.enter_context(one_jax_thread())
            if self.simulates:
                self.contexts.enter_context(simulating())
            self.outside = [setting.get() for setting in self.settings]
            self.apply(len(self.settings))
            self.leave_inference()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.depth == 1:
            self.return_to_inference()
            self.leave([setting.get() for setting in self.settings])
            self.contexts.close()
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

    def apply(self, count: int) -> None:
        """Apply what the environment's code has set, among the first settings."""
        for index, value in self.own_settings.items():
            if index < count:
                self.settings[index].put(value)

    def leave(self, now: Sequence[Any]) -> None:
        """Keep what the code has set, and return to the learner's settings."""
        for index, (setting, value, before) in enumerate(zip(self.settings, now, self.outside, strict=False)):
            if value == before:
                self.own_settings.pop(index, None)
                continue
            setting.put(before)
            if setting.kept:
                self.own_settings[index] = value


class SteppingGuard:
    """A context for steps.

    It takes three microseconds, and three more if it marks. It does not read the learner's settings, which change
    between epochs at most.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard, self.steps = guard, [setting.get for setting in guard.settings[:STEPPED]]

    def __enter__(self) -> None:
        self.guard.depth += 1
        self.limits = mark_step() if self.guard.simulates else None
        if self.guard.own_settings:
            self.guard.apply(len(self.steps))
        self.guard.leave_inference()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.guard.return_to_inference()
        now = [get() for get in self.steps]
        if now != self.guard.outside[:STEPPED]:
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


def _handler(number: int) -> Setting:
    def put(handler: Any) -> None:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(number, handler)

    return Setting(lambda: _signal.getsignal(number), put, kept=False)
