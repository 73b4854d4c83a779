"""Resumable training tasks.

The top level holds what every algorithm shares: tasks, cohorts, learners, records, identities and evaluation.
Algorithms and their parts (networks, replay buffers, returns, environments, checkpoints) are sub-packages. Nothing here
imports `studies`, a database or the command line.

Names are loaded on first use, so importing this package does not import PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

from .catalog import CLASSES

_ROOT = __name__.rpartition(".")[0]
_NAMES = {
    ".base_learner": ["BaseLearner"],
    ".checkpoint.retention": ["Keep"],
    ".checkpoint.sb3_files": ["ImportedPolicy", "import_policy"],
    ".cohort": ["Cohort"],
    ".envs": ["EnvSpec"],
    ".errors": ["BadResume", "DamagedState", "Diverged", "StateMismatch", "Stopped", "TaskError"],
    ".experience.recorded_actions": ["Recording", "Replayed"],
    ".learner": ["Learner"],
    ".registry": ["load", "names"],
    ".runtime.guard": ["BadResumeGuard"],
    ".runtime.observers": ["EpochEvent"],
    ".signals.demonstrations": ["Demonstrations"],
    ".task": ["Task"],
    ".warm_start": ["WarmStart"],
}
_HOMES = {name: f".tasks{module}" for module, names in _NAMES.items() for name in names} | CLASSES
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], _ROOT), name)
