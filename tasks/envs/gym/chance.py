"""Random generators of the process, which an environment has to itself.

An environment may draw from NumPy's, Python's or torch's global generator. All environments of a process share these,
so its episodes would depend on its neighbors. If the self-test finds that an environment uses one, each environment
gets its own, seeded by its episode's seed.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...runtime.own_code import INSTALLED


class Generator(NamedTuple):
    """A global generator: functions that return, set and seed its state."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    seed: Callable[[int], Any]


def _torch() -> Any:
    return sys.modules["torch"].default_generator


GENERATORS = {
    "numpy.random": Generator(np.random.get_state, np.random.set_state, np.random.seed),
    "random": Generator(random.getstate, random.setstate, random.seed),
    "torch": Generator(
        lambda: _torch().get_state(), lambda state: _torch().set_state(state), lambda seed: _torch().manual_seed(seed)
    ),
}


# What differs between processes; NumPy's generators and `secrets` read the second.
DIFFERS = (os, "urandom"), (random, "_urandom"), (time, "time"), (time, "time_ns")
# The same, but only where the user's code reads them; libraries measure times without an effect on episodes.
COUNTED = (os, "getpid"), *((time, name) for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"))
SEEDS = (random, "seed"), (random.Random, "seed")  # they read it if there is no seed
suspects: set[str] = set()  # modules that may keep what they have read of it
Place = tuple[tuple[CodeType, int], ...]  # lines of code that are being executed, the innermost first
firsts: dict[str, set[Place]] = {}  # where the first constructor of an environment has read it, by the id


@dataclass(eq=False)
class Reads:
    """Reads of what differs between processes, by an environment's code.

    Attributes:
        on_import: whether a module that was being imported has read it.
        of_process: whether the number of the process was read, which no repetition in this process changes.
        places: where else something was read.
    """

    on_import: bool = False
    of_process: bool = False
    places: set[Place] = field(default_factory=set)


_noting: list[Reads] = []  # those that are being noted


@contextmanager
def noted_reads() -> Iterator[Reads]:
    """Note reads of `DIFFERS`."""
    reads = Reads()
    with ExitStack() as stack:
        for module, name in () if _noting else (*DIFFERS, *SEEDS, *COUNTED):
            usual = getattr(module, name)
            setattr(module, name, _noting_calls_of(usual, (module, name) in COUNTED))
            stack.callback(setattr, module, name, usual)
        _noting.append(reads)
        stack.callback(_noting.remove, reads)
        yield reads


def _noting_calls_of(function: Callable[..., Any], only_users: bool) -> Callable[..., Any]:
    """Return a function whose calls are noted.

    With `only_users`, those of libraries are left out.
    """

    @wraps(function)
    def noted(*values: Any, **named: Any) -> Any:
        if _noting and not (only_users and _is_of_library(sys._getframe(1))):  # an import may keep it for ever
            seeds = [value for value in (*values, *named.values()) if not isinstance(value, random.Random | None)]
            if not seeds or function.__name__ != "seed":
                _note_read(function.__name__ == "getpid")
        return function(*values, **named)

    return noted


def _is_of_library(frame: FrameType) -> bool:
    """Return whether Python's library or an installed package calls."""
    top = str(frame.f_globals.get("__name__")).partition(".")[0]
    return top in sys.stdlib_module_names or not INSTALLED.isdisjoint(Path(frame.f_code.co_filename).parts)


def _note_read(of_process: bool) -> None:
    """Note that an environment reads what differs between processes."""
    callers: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("rekindle."):
        callers.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    for reads in _noting:
        if any(code.co_name == "<module>" for code, _ in callers):
            reads.on_import = True
        elif callers:
            reads.of_process |= of_process
            reads.places.add(tuple(callers))


@contextmanager
def first_import(modules: Collection[str]) -> Iterator[None]:
    """Seed global generators for a first import, and note other reads.

    What modules draw from these generators is then the same in all processes. What they read of `DIFFERS` may have no
    effect on episodes, so they become suspects only. Modules that are there already are left alone.
    """
    if all(name in sys.modules for name in modules):
        yield
        return
    with watched_generators(set()), noted_reads() as reads:
        try:
            yield
        finally:
            if reads.on_import:
                suspects.update(modules)


@contextmanager
def first_constructor(id: str) -> Iterator[None]:
    """Seed global generators for a process's first environment; note other reads.

    Its class may keep what the constructor draws. See `note_kept`.
    """
    if id in firsts:
        yield
        return
    with watched_generators(set()), noted_reads() as reads:
        firsts[id] = reads.places
        yield


def note_kept(id: str, modules: Collection[str], before: Reads, again: Reads) -> None:
    """Suspect modules that have read what differs between processes, but not again.

    Args:
        id: id of the environment.
        modules: its modules.
        before: reads of its first episodes.
        again: reads of the same episodes in new environments; what these read, the comparison of the episodes tests.
    """
    if again.of_process or (firsts.get(id, set()) | before.places) - again.places:
        suspects.update(modules)


@contextmanager
def watched_generators(used: set[str]) -> Iterator[None]:
    """Add the names of global generators that are used, and restore them."""
    present = _present()
    before = {name: generator.get() for name, generator in present.items()}
    for generator in present.values():
        generator.seed(0x5EED)
    marks = generator_marks()
    try:
        yield
    finally:
        used |= {name for name, mark in generator_marks().items() if mark != marks.get(name, mark)}
        for name, generator in present.items():
            generator.put(before[name])


def generator_marks() -> dict[str, str]:
    """Return digests of the states of global generators, by name."""
    return {name: _digest(generator.get()) for name, generator in _present().items()}


def _present() -> dict[str, Generator]:
    return {name: generator for name, generator in GENERATORS.items() if name != "torch" or "torch" in sys.modules}


def _digest(state: Any) -> str:
    parts = state if isinstance(state, tuple) else (state,)
    return hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts if part is not None)).hexdigest()


class OwnGenerators(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that gives an environment global generators of its own."""

    def __init__(self, env: gym.Env[Any, Any], names: Sequence[str]) -> None:
        super().__init__(env)
        self.generators = [GENERATORS[name] for name in names]
        self.states: list[Any] = []  # of the running episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._own_generators():
            for generator in self.generators:
                generator.seed(seed or 0)
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._own_generators():
            return self.env.step(action)

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        before = [generator.get() for generator in self.generators]
        for generator, state in zip(self.generators, self.states, strict=False):
            generator.put(state)
        try:
            yield
        finally:
            self.states = [generator.get() for generator in self.generators]
            for generator, state in zip(self.generators, before, strict=True):
                generator.put(state)
