"""The store of tasks and studies, and what drives, runs and shows them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .storage.retention import Keep as Keep
    from .storage.store import Store as Store

_NAMES = {"Store": ".store", "Keep": ".retention"}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_NAMES)
