"""Environments whose state is part of a task's state.

`make_envs` makes them, `Envs` is their interface. Kinds of environments are sub-packages over `base`; `factory` alone
knows them all. Nothing here knows networks.
"""

from __future__ import annotations

from .base.envs import Envs, Episodes, StepResult
from .base.joined import Joined
from .base.spec import EnvSpec, EnvSpecError
from .factory import make_envs, spaces_of

__all__ = ["EnvSpec", "EnvSpecError", "Envs", "Episodes", "Joined", "StepResult", "make_envs", "spaces_of"]
