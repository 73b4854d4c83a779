"""New environments in place of those whose code raises.

A simulator that raises in one of a hundred episodes would otherwise fail every trial, since a trial that is resumed
meets the same error again. Where it raises, the episode ends. RLlib calls this `restart_failed_sub_environments`. The
metric ``info.raised`` is the share of such episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import gymnasium as gym

from ...errors import EnvironmentFailed, TaskError, is_lack_of_memory, text_of
from ..base.failures import close_env
from ..base.info import as_dict
from ..base.spec import RAISED, EnvSpec, reset_result

Env = gym.Env[Any, Any]
RESETS = 3  # attempts to begin an episode, with a new environment and another seed for each
SHARE, FEW = 0.05, 3  # of a training's episodes, and a number of them beside, that may raise

MOST = 20  # errors that a process tells
_TOLD: set[str] = set()  # texts of these


class RestartOnError(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that truncates an episode where the environment raises.

    The step that raised gives the observation before it again, and no reward.
    """

    def __init__(self, spec: EnvSpec, make: Callable[[], Env]) -> None:
        """Make the first environment.

        Args:
            spec: its spec.
            make: function that makes one.
        """
        super().__init__(make())
        self.described, self.make = spec, make
        self.broken = False
        self.raised = 0.0  # 1 in an episode in which it did
        self.last: Any = None  # observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.raised, errors = 0.0, list[Exception]()
        for attempt in range(RESETS):
            # The parity of a seed tells training from evaluation.
            another = None if seed is None else (seed + 2 * attempt) % 2**31
            try:
                self._renew()
                self.last, info = reset_result(self.env.reset(seed=another, options=options), self.described.id)
                return self.last, info
            except Exception as error:  # noqa: BLE001 - an environment may raise anything
                self._note(error, "reset")
                errors.append(error)
        raise errors[0]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            self.last, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:  # noqa: BLE001 - an environment may raise anything
            self._note(error, "step")
            return self.last, 0.0, False, True, {RAISED: self.raised}
        return self.last, reward, terminated, truncated, {**as_dict(info, self.described.id), RAISED: self.raised}

    def close(self) -> None:
        with suppress(EnvironmentFailed) if self.broken else nullcontext():
            close_env(self.env, self.described)

    def _renew(self) -> None:
        """Make a new environment in place of one that raised."""
        if self.broken:
            self.close()
            self.env, self.broken = self.make(), False

    def _note(self, error: Exception, method: str) -> None:
        """Note an error of the environment's code, or raise another one."""
        if is_lack_of_memory(error) or (isinstance(error, TaskError) and not isinstance(error, EnvironmentFailed)):
            raise error
        self.raised, self.broken = 1.0, True
        text = f"{self.described.id}: its {method} raised {type(error).__name__} ({text_of(error)})"
        if len(_TOLD) < MOST and text not in _TOLD:
            _TOLD.add(text)
            warnings.warn(f"{text}; the episode ends there, and a new environment goes on (on_error)", stacklevel=4)


def check_share(spec: EnvSpec, raised: int, episodes: int) -> None:
    """Raise EnvironmentFailed if too many episodes of a training raised."""
    if raised > FEW + SHARE * episodes:
        raise EnvironmentFailed(
            f"{spec.id}: at most {SHARE:.0%} of a training's episodes may raise, and {FEW} beside (on_error), but "
            f"{raised} of {episodes} did; a warning names each error; fix what raises"
        )
