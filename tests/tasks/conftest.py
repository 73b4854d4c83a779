"""What the tests of tasks share: processes of environments and workers of studies that are forked."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import nursery
import pytest
from rekindle.studies.workers import forked
from rekindle.tasks.envs.processes import wire


@pytest.fixture(scope="session", autouse=True)
def _forked_processes() -> Iterator[None]:
    """What a test's own process starts is forked; what such a process starts is a new interpreter."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": nursery.Popen})
    with mock.patch.object(wire, "subprocess", forking), mock.patch.object(forked, "subprocess", forking):
        yield
    nursery.close()
