"""What all tests share: the folder of helpers, and random examples that are the same in every run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # for `import fakes`, also by EnvSpec("fakes:...")

# Tests run side by side: threads of one would spin for a core that another one has. Before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import in_memory

# Databases wait for a disk as long as they compute.
if place := in_memory.place():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="that the suites of exactness train on, such as cuda")


def pytest_configure(config: pytest.Config) -> None:
    if (device := config.getoption("--device")) != "cpu":
        from rekindle.tasks.testing import VariantSuite

        VariantSuite.device = device


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On another device, leave the tests that know of none."""
    if config.getoption("--device") != "cpu":
        from rekindle.tasks.testing import VariantSuite

        def trains_there(item: pytest.Item) -> bool:
            suite = getattr(item, "cls", None)
            trains = suite is not None and issubclass(suite, VariantSuite)
            return trains or item.get_closest_marker("cuda") is not None

        items[:] = [item for item in items if trains_there(item)]


# A busy machine is no failure.
settings.register_profile("rekindle", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("rekindle")

# Of all that a test process imports, garbage collections would walk through half a million objects each time.
gc.set_threshold(5_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps what the imports made out of garbage collections."""
    try:
        return (yield)
    finally:
        gc.freeze()
