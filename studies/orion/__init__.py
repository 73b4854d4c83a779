"""Orion on the store's database: hunts from Python, and Orion's plug-ins.

Orion finds the plug-ins by entry points.

Only code that needs Orion belongs here, and the tables of its documents; training itself is `tasks`, and the trials of
Rekindle's own studies are `storage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hunts import OrionObjective, hunt, storage_of

__all__ = ["OrionObjective", "hunt", "storage_of"]


def __getattr__(name: str) -> Any:  # Orion imports the plug-ins, and need not get the hunts with them
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import hunts

    return getattr(hunts, name)
