"""States of Orion's algorithms, read without running code from them.

Orion stores an algorithm's state as a pickle, and loading a pickle can call any function. The reader here builds only
the types that Orion's own algorithms have in their states, and refuses everything else by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from typing import Any

_DATA = {
    "builtins": {"set", "frozenset"},
    "collections": {"OrderedDict", "defaultdict"},
    "datetime": {"datetime", "timedelta"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "orion.algo.hyperband.hyperband": {"BudgetTuple"},
    "orion.algo.pbt.pbt": {"LineageNode", "Lineages"},
    "orion.core.utils.tree": {"TreeNode"},
    "orion.core.worker.trial": {"Trial", "Trial.Param", "Trial.Result"},
}
# Errors that a damaged pickle raises; LookupError, AttributeError and ImportError come from names in it.
_DAMAGES = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AssertionError, MemoryError, RecursionError)


class UnreadableState(Exception):
    """A state that is damaged, or contains more than plain data."""


def dump_state(state: Any) -> bytes:
    """Return the state as bytes that Orion's own storage can read."""
    return pickle.dumps(state)


def load_state(data: bytes | None, trusted: Collection[str] = ()) -> Any:
    """Return the state, built only from data.

    ``trusted`` names further allowed classes, as ``module:Class``.
    """
    if data is None:
        return None
    try:
        return _Reader(bytes(data), trusted).load()
    except (*_DAMAGES, LookupError, AttributeError, ImportError) as error:
        raise UnreadableState(
            f"the state of an algorithm must be what Orion wrote, but it is damaged: {error}"
        ) from error


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, trusted: Collection[str]):
        super().__init__(io.BytesIO(data))
        self._trusted = trusted

    def find_class(self, module: str, name: str) -> Any:
        if name in _DATA.get(module, ()) or f"{module}:{name}" in self._trusted:
            return super().find_class(module, name)
        raise UnreadableState(
            f"the state of an algorithm is made of numbers, arrays and trials, but this one names {module}:{name}. If "
            "that is a class of an algorithm that you use, and all who can write to the database may run programs "
            f"here, allow it: storage={{'type': 'rekindlestorage', 'trusted': ['{module}:{name}'], ...}}"
        )
