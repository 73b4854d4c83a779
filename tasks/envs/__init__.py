"""Environments whose state is part of a task's state.

`make_envs` creates them, and `Envs` is their interface. Each kind of environment is a sub-package on top of `base`,
and `selftest` finds out how one of Gymnasium's is restored; only `factory` knows all kinds. Nothing here knows about
networks.
"""

from __future__ import annotations

from .base.envs import Envs, Episodes, StepResult
from .base.joined import Joined
from .base.spec import EnvSpec, EnvSpecError
from .factory import allows_one, make_envs, numbers_episodes, spaces_of, steps_all_at_once, time_limit
from .goals import Goals, goals_of

__all__ = [
    "EnvSpec",
    "EnvSpecError",
    "Envs",
    "Episodes",
    "Goals",
    "Joined",
    "StepResult",
    "allows_one",
    "goals_of",
    "make_envs",
    "numbers_episodes",
    "spaces_of",
    "steps_all_at_once",
    "time_limit",
]
