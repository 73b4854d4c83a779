"""Freed memory is reused, instead of requested again from the operating system."""

from __future__ import annotations

import platform
import resource

import pytest
import rekindle
from rekindle.tasks.runtime.allocator import keep_freed_memory


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_large_cohort_takes_no_new_pages_once_it_trains() -> None:
    tasks = [rekindle.PPO("CartPole-v1", seed=seed).init(epoch_steps=1024, model={"width": 128}) for seed in range(8)]
    cohort = rekindle.Cohort(tasks)
    faults = []
    for epochs in (1, 2, 3, 4):
        before = page_faults()
        cohort.fit(epochs)
        faults.append((page_faults() - before) / (8 * 1024))
    glibc = platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory() is glibc
    assert faults[-1] < 0.1 or not glibc, faults  # the heap takes some epochs to settle


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    keep_freed_memory.cache_clear()
    try:
        assert not keep_freed_memory()
    finally:
        keep_freed_memory.cache_clear()
