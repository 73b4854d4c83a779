"""Orion on the store's database: hunts from Python, and plug-ins for Orion.

Orion finds the plug-ins through entry points. Only code that needs Orion belongs here, and the tables of Orion's
documents. Training belongs in `tasks`, and the trials of Rekindle's own studies in `storage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hunts import OrionObjective, hunt, storage_of

__all__ = ["OrionObjective", "hunt", "storage_of"]


def __getattr__(name: str) -> Any:  # lazy, since Orion imports the plug-ins and does not need the hunts
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import hunts

    return getattr(hunts, name)
