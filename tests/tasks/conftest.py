"""Shared setup of the tests of tasks: forked processes for environments and workers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import nursery
import pytest
from rekindle.studies.workers import forked
from rekindle.tasks import testing
from rekindle.tasks.envs.processes import wire


@pytest.fixture(scope="session", autouse=True)
def _forked_processes(compiled_kernels: None) -> Iterator[None]:
    """Fork the processes that a test starts; those that they start are new interpreters."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": nursery.Popen})
    with ExitStack() as patched:
        for module in (wire, forked, testing):
            patched.enter_context(mock.patch.object(module, "subprocess", forking))
        yield
    nursery.close()
