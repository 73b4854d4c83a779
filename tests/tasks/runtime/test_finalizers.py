"""Finalizers wait for the end of a garbage collection."""

from __future__ import annotations

import gc
import random
import subprocess
import sys

import numpy as np
from rekindle.tasks.runtime.finalizers import Finalizer, finalize_collected


class Cyclic:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself: Cyclic | None = self


def test_an_object_that_is_collected_is_finalized_later() -> None:
    calls: list[str] = []
    plain, cyclic, closed = Cyclic(), Cyclic(), Cyclic()
    Finalizer(plain, calls.append, "plain")
    Finalizer(cyclic, calls.append, "cyclic")
    close = Finalizer(closed, calls.append, "closed")
    plain.itself = None
    del plain
    close()
    del cyclic, closed
    gc.collect()
    assert calls == ["plain", "closed"]
    finalize_collected()
    finalize_collected()
    assert calls == ["plain", "closed", "cyclic"]


def test_context_variables_survive_what_finalizers_set() -> None:
    # In a process of its own, which crashes within a thousand rounds if a finalizer runs while a variable is set.
    program = "import test_finalizers; test_finalizers.set_context_variables()"
    path = f"import sys; sys.path.insert(0, {str(__file__).rpartition('/')[0]!r}); "
    ended = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["10000", "end"]


def set_context_variables() -> None:
    numbers, kept, calls = random.Random(0), list[object](), list[None]()
    gc.set_threshold(50, 10, 10)

    def finalize() -> None:
        np.seterr(**np.seterr(all="raise"))
        calls.append(None)

    for _ in range(10_000):
        Finalizer(Cyclic(), finalize)
        kept = [*kept, *([] for _ in range(numbers.randrange(12)))][-200:]
        with np.errstate(over="ignore"):
            pass
        finalize_collected()
    gc.collect()
    finalize_collected()
    print(len(calls))
    last = Cyclic()
    Finalizer(last, print, "end")
