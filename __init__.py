"""Rekindle: hyperparameter optimization for reinforcement learning, where every trial can be stopped and resumed.

Names are loaded on first use, so that `import rekindle` costs milliseconds and imports no torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .tasks.catalog import CLASSES

# Torch's matrix products come from MKL, whose last bits depend, on some processors, on where in memory a matrix lies:
# a member of a cohort would differ from the same task alone. MKL reads this before its first product; it costs nothing.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from . import spaces, studies, tasks
    from .spaces import (
        Space,
        categorical,
        fidelity,
        fixed,
        integer,
        log_real,
        lognormal,
        maybe,
        near_one,
        normal,
        ordinal,
        real,
    )
    from .studies.objective import Objective
    from .studies.options.study_options import StudyOptions
    from .studies.storage.store import Store
    from .studies.tuning import Study, tune
    from .studies.workers.sharing import work
    from .tasks.adapters.functions import rng, task
    from .tasks.adapters.reporting import report
    from .tasks.algorithms.a2c import A2C as A2C
    from .tasks.algorithms.ars import ARS as ARS
    from .tasks.algorithms.behaviours import Behaviours as Behaviours
    from .tasks.algorithms.continuous.crossq import CrossQ as CrossQ
    from .tasks.algorithms.continuous.ddpg import DDPG as DDPG
    from .tasks.algorithms.continuous.sac import SAC as SAC
    from .tasks.algorithms.continuous.td3 import TD3 as TD3
    from .tasks.algorithms.continuous.tqc import TQC as TQC
    from .tasks.algorithms.dqn.dqn import DQN as DQN
    from .tasks.algorithms.dqn.qrdqn import QRDQN as QRDQN
    from .tasks.algorithms.ppo import PPO as PPO
    from .tasks.algorithms.ppo2 import PPO2 as PPO2
    from .tasks.algorithms.pqn import PQN as PQN
    from .tasks.algorithms.svpg import SVPG as SVPG
    from .tasks.algorithms.svpg import SVPGPPO as SVPGPPO
    from .tasks.algorithms.svpg import SVPGPPO2 as SVPGPPO2
    from .tasks.algorithms.trpo import TRPO as TRPO
    from .tasks.cohort import Cohort
    from .tasks.envs.base.spec import EnvSpec
    from .tasks.errors import BadResume
    from .tasks.runtime.guard import BadResumeGuard
    from .tasks.runtime.progress import tick
    from .tasks.task import Task

__all__ = [
    "BadResume",
    "BadResumeGuard",
    "Cohort",
    "EnvSpec",
    "Objective",
    "Space",
    "Store",
    "Study",
    "StudyOptions",
    "Task",
    "__version__",
    "categorical",
    "fidelity",
    "fixed",
    "integer",
    "log_real",
    "lognormal",
    "maybe",
    "near_one",
    "normal",
    "ordinal",
    "real",
    "report",
    "rng",
    "spaces",
    "studies",
    "task",
    "tasks",
    "tick",
    "tune",
    "work",
]
__all__ += CLASSES

_FOLDERS = ("spaces", "studies", "tasks")
_HOMES = {
    **CLASSES,
    "BadResume": ".tasks.errors",
    "BadResumeGuard": ".tasks.runtime.guard",
    "Cohort": ".tasks.cohort",
    "EnvSpec": ".tasks.envs",
    "Objective": ".studies.objective",
    "Store": ".studies.storage.store",
    "Study": ".studies.tuning",
    "StudyOptions": ".studies.options.study_options",
    "tune": ".studies.tuning",
    "work": ".studies.workers.sharing",
    "Task": ".tasks.task",
    "report": ".tasks.adapters.reporting",
    "rng": ".tasks.adapters.functions",
    "task": ".tasks.adapters.functions",
    "tick": ".tasks.runtime.progress",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _FOLDERS:
        return importlib.import_module(f".{name}", __name__)
    value = getattr(importlib.import_module(_HOMES.get(name, ".spaces"), __name__), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
