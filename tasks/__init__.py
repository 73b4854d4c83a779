"""Resumable tasks.

The contract of a task lies here: identity, record, learner, cohort and evaluation. Algorithms, and the parts that they
share, lie in the packages below; nothing here knows studies, databases or terminals. Names are loaded on first use, so
that importing this package imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "SVPG": ".algorithms.svpg",
    "SVPGPPO": ".algorithms.svpg",
    "SVPGPPO2": ".algorithms.svpg",
    "PPO2": ".algorithms.ppo2",
    "A2C": ".algorithms.a2c",
    "DQN": ".algorithms.dqn",
    "PPO": ".algorithms.ppo",
    "SAC": ".algorithms.sac.sac",
    "Task": ".task",
    "Learner": ".learner",
    "Cohort": ".cohort",
    "EpochEvent": ".runtime.observers",
    "EnvSpec": ".envs",
    "BadResume": ".errors",
    "BadResumeGuard": ".runtime.guard",
    "DamagedState": ".errors",
    "Demonstrations": ".signals.demonstrations",
    "Diverged": ".errors",
    "StateMismatch": ".errors",
    "Keep": ".checkpoint.retention",
    "Recording": ".experience.recorded_actions",
    "Replayed": ".experience.recorded_actions",
    "Stopped": ".errors",
    "TaskError": ".errors",
    "WarmStart": ".warm_start",
    "ALGORITHMS": ".registry",
    "load": ".registry",
    "names": ".registry",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
