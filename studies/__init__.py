"""Studies: storage, schedulers, samplers, workers and the command line.

Code that trains one task belongs in `tasks`; code that handles a database or several trials belongs here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tasks.checkpoint.retention import Keep as Keep
    from .objective import Objective as Objective
    from .storage.store import Store as Store
    from .tuning import Study as Study
    from .tuning import tune as tune

_HOMES = {
    "Keep": "..tasks.checkpoint.retention",
    "Objective": ".objective",
    "Store": ".storage.store",
    "Study": ".tuning",
    "tune": ".tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
