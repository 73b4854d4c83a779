"""Signals while kernels compile, and folders for machine code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba
import pytest
from rekindle.tasks.compiled.decorators import is_cached
from rekindle.tasks.compiled.loading import kernels

INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it
from numba.core.codegen import CPUCodeLibrary
from rekindle.tasks.compiled import loading
real, left = CPUCodeLibrary._object_getbuffer_hook.__func__, 4 * [signal.SIGINT]  # an impatient user

def hook(cls, module):
    while left:
        signal.raise_signal(left.pop())
    return real(cls, module)

CPUCodeLibrary._object_getbuffer_hook = classmethod(hook)
try:
    loading.kernels()
except KeyboardInterrupt:
    print("stopped", signal.getsignal(signal.SIGINT) is signal.default_int_handler, loading.kernels() is not None)
"""


def test_ctrl_c_is_not_lost_while_llvm_calls_python() -> None:
    assert kernels() is not None
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("stopped True True\n", "")


def test_a_folder_that_cannot_be_written_keeps_no_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "folder"))
    assert is_cached()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/proc/rekindle")
    assert not is_cached()
