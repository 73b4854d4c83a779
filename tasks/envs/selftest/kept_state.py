"""State that an environment, its modules and classes keep, such as counters.

If a reset does not clear it, episodes may depend on the age of an instance or of a process.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import _lru_cache_wrapper
from itertools import islice
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from ..base.failures import attribute
from ..gym.layers import is_of_environment, layers_of, modules_of

PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)
MANY, DEEP = 20_000, 6  # values that are read, and levels of containers


def shared_state(env: gym.Env[Any, Any]) -> list[str]:
    """Return the data in an environment's modules and classes, as texts.

    These are the modules of its classes, and those beside them. Data in C and in files is not seen.
    """
    reader = _Reader(env)
    for module in reader.modules:
        reader.read(module, DEEP)
    return reader.texts


def instance_state(env: gym.Env[Any, Any]) -> list[str]:
    """Return the data in an environment and its wrappers, as texts."""
    reader = _Reader(env)
    for layer in reader.layers:
        reader.read(layer, DEEP)
    return reader.texts


def _folder(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if file else None


class _Reader:
    """Reads values and what they refer to, each object once."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.layers, self.modules = layers_of(env), modules_of(env)
        self.folders = {_folder(module) for module in self.modules}
        self.texts: list[str] = []
        self.visited: dict[int, Any] = {}  # with the objects, whose ids hold while they exist

    def read(self, value: Any, depth: int) -> None:
        """Add the texts of a value and its data, if readable."""
        if len(self.texts) < MANY:
            with suppress(Exception):  # an object of others may raise anything, such as a proxy of what is gone
                self._read(value, depth)

    def _read(self, value: Any, depth: int) -> None:
        if isinstance(value, int):
            self.texts.append(f"{value:x}")  # in decimals Python refuses more than 4300 digits
        elif isinstance(value, PLAIN):
            self.texts.append(repr(value))
        elif isinstance(value, np.ndarray):
            self.texts.append(str(value.shape if value.dtype.hasobject else hash(value.tobytes())))
        elif depth and id(value) not in self.visited:
            self.visited[id(value)] = value
            self._read_parts(value, depth - 1)

    def _read_parts(self, value: Any, depth: int) -> None:
        if isinstance(value, list | tuple | set | frozenset | deque):
            self._read_all(value, len(value), depth)
        elif isinstance(value, dict):
            pairs = list(islice(value.items(), MANY))
            self._read_all([part for pair in pairs for part in pair], len(value), depth)
        elif isinstance(value, random.SystemRandom):
            pass  # it has no state
        elif isinstance(value, random.Random):
            self.read(value.getstate(), depth)
        elif isinstance(value, np.random.Generator):
            self.read(value.bit_generator.state, depth)
        elif isinstance(value, _lru_cache_wrapper):
            self.read(value.cache_info().currsize, depth)
        elif isinstance(value, staticmethod | classmethod):
            self.read(value.__func__, depth)
        elif isinstance(value, FunctionType):
            if self._is_near(value.__module__):
                cells = [cell.cell_contents for cell in value.__closure__ or () if cell != type(cell)()]
                self.read([value.__defaults__, value.__kwdefaults__, vars(value), cells], depth + 1)
        elif isinstance(value, ModuleType):
            if _folder(value) in self.folders:
                self._read_names(vars(value), depth)
        elif self._is_near((value if isinstance(value, type) else type(value)).__module__):
            self._read_names(attribute(value, "__dict__") or {}, depth)

    def _read_names(self, names: Mapping[str, Any], depth: int) -> None:
        data = [value for name, value in list(names.items()) if not name.startswith("__")]
        self._read_all(data, len(data), depth)

    def _read_all(self, values: Iterable[Any], count: int, depth: int) -> None:
        self.texts.append(str(count))
        for value in list(islice(values, MANY)):  # a copy, since an environment's thread may change a container
            self.read(value, depth)

    def _is_near(self, module: str) -> bool:
        return is_of_environment(module) and _folder(sys.modules.get(module)) in self.folders
