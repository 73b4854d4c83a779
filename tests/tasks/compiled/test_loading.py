"""Choice between kernels and torch, and its entry in the fingerprint."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch
from rekindle.tasks.compiled import loading
from rekindle.tasks.runtime.fingerprint import changes, fingerprint


def loaded_anew() -> ModuleType:
    """The module as a new process has it."""
    spec = importlib.util.spec_from_file_location("rekindle.tasks.compiled.anew", loading.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_switches_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded_anew().kernels() is not None
    monkeypatch.setenv("REKINDLE_KERNELS", "0")
    assert loaded_anew().kernels() is None


def test_without_numba_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert loaded_anew().kernels() is None


def test_kernels_take_float32_in_order_on_the_cpu_alone() -> None:
    x = torch.zeros(4, 6)
    assert loading.kernels_of(x, x[:2]) is not None
    for other in (x.double(), x.T, x[:, :3], x.to("meta")):
        assert loading.kernels_of(x, other) is None


def test_the_fingerprint_says_which_path_was_taken() -> None:
    now = fingerprint(torch.device("cpu"))
    with loading.without_kernels():
        plain = fingerprint(torch.device("cpu"))
    assert now["kernels"].startswith("numba ")
    assert changes(now, plain) == [f"kernels {now['kernels']} -> none"]
    assert loading.kernels() is not None
