"""Shared setup of all tests: helpers, devices, and random examples that are the same in every run."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # for `import fakes`, also by EnvSpec("fakes:...")

# Tests run in parallel: the threads of one would wait for the cores of others. Must be set before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import in_memory

# Databases would spend half of their time waiting for a disk.
if place := in_memory.place():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device for the exactness suites, such as cuda")


def pytest_configure(config: pytest.Config) -> None:
    if (device := config.getoption("--device")) != "cpu":
        from rekindle.tasks.testing import VariantSuite

        VariantSuite.device = device


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that train on the device of --device."""
    if config.getoption("--device") != "cpu":
        from rekindle.tasks.testing import VariantSuite

        def trains_there(item: pytest.Item) -> bool:
            suite = getattr(item, "cls", None)
            trains = suite is not None and issubclass(suite, VariantSuite)
            return trains or item.get_closest_marker("cuda") is not None

        items[:] = [item for item in items if trains_there(item)]


# A slow example on a busy machine is not a failure.
settings.register_profile("rekindle", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("rekindle")

# Imports make half a million objects, which every full garbage collection would visit.
gc.set_threshold(5_000, 10, 10)


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Kernels for this machine, compiled by one process: half a minute once, which no test has to pay."""
    from rekindle.tasks.compiled.loading import cache_folder, kernels

    with (Path(tempfile.gettempdir()) / f"rekindle-{cache_folder('').name}.lock").open("w") as lock:
        for _ in range(60):  # seconds; a process of low priority may take much longer, and then both compile
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(1)
        kernels()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the objects of imports from garbage collections."""
    try:
        return (yield)
    finally:
        gc.freeze()
