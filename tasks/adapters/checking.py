"""Measurement of whether a training resumes exactly.

Rekindle's own tasks are proven by their suites. Of a program only its reports are known, so two trainings are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..checkpoint.state import Tree, pack, unpack
from ..runtime.observers import EpochEvent
from ..task import Task

MOST = 3  # differences that are named
LONGEST = 10_000  # files of the working directory that are looked at


class Killed(Exception):
    """Training ends here, as if it were killed."""


def check(make: Callable[[], Task], epochs: int) -> list[str]:
    """Return how a training with a kill differs from one without.

    The second training is stored after half of the epochs, resumed elsewhere and killed during the next epochs, and
    resumed elsewhere from the same checkpoint.

    Args:
        make: creates the task, without a storage.
        epochs: epochs to train, at least 2.

    Raises:
        ValueError: there are too few epochs.
    """
    if epochs < 2:
        raise ValueError(f"a resume is checked with at least 2 epochs, but got {epochs}")
    whole = make()
    whole.fit(epochs)
    half = make()
    half.fit(epochs // 2)
    state = _stored(half.state_dict())
    half.close()
    killed = _resumed(make, state)
    try:
        killed.fit(epochs, _kill)
    except Killed:
        killed.close()
    resumed = _resumed(make, state)
    resumed.fit(epochs)
    expected, got = dict(whole.history), {**dict(half.history), **dict(resumed.history)}
    differences = [
        f"{name} of epoch {epoch} is {expected[epoch].get(name)!r} without a kill, and "
        f"{got.get(epoch, {}).get(name)!r} after it"
        for epoch in expected
        for name in sorted(expected[epoch].keys() | got.get(epoch, {}).keys())
        if expected[epoch].get(name) != got.get(epoch, {}).get(name)
    ]
    more = [f"and {len(differences) - MOST} more"] if len(differences) > MOST else []
    return differences[:MOST] + more


def files_outside() -> set[tuple[str, int, int]]:
    """Return path, time and size of each file below the working directory.

    Databases are left out, and so is what lies beyond the first LONGEST files.
    """
    names = set()
    for index, path in enumerate(Path.cwd().rglob("*")):
        if index >= LONGEST:
            break
        if path.is_file() and ".db" not in path.name and "__pycache__" not in path.parts:
            stat = path.stat()
            names.add((str(path), stat.st_mtime_ns, stat.st_size))
    return names


def _kill(event: EpochEvent) -> None:
    raise Killed


def _stored(state: Tree) -> Tree:
    """Return a state as a storage would give it back."""
    packed = pack(state)
    return unpack(packed.manifest, packed.blobs.__getitem__)


def _resumed(make: Callable[[], Task], state: Tree) -> Task:
    task = make()
    task.load_state_dict(state)
    return task
