"""Shared fixtures of Orion's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from orion.core.worker.trial_pacemaker import TrialPacemaker


@pytest.fixture(autouse=True)
def _no_thread_of_orion_s_outlives_a_test() -> Iterator[None]:
    """End Orion's threads: pytest would wait for one if a test failed while holding a trial."""
    yield
    for thread in threading.enumerate():
        if isinstance(thread, TrialPacemaker):
            thread.stop()
