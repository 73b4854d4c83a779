"""Choice between kernels and torch, and its entry in the fingerprint."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import llvmlite.binding
import numba
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


def test_without_numbas_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert loaded_anew().kernels() is None


CLIPPED = """
import numpy as np
from rekindle.tasks.compiled.loading import kernels
gradient, factors = np.array([[3, 4]], "f4"), np.zeros((1, 1), "f4")
kernels().clip(gradient, np.array([[1]], "f4"), factors)
print(*factors[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["off_policy.store*.nbc", "off_policy.store*.nbi"])
def test_machine_code_that_a_crash_cut_short_is_compiled_again(cut: str, tmp_path: Path) -> None:
    assert loading.kernels() is not None
    folder = loading.cache_folder(numba.config.CACHE_DIR)
    shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("*.tmp.*"))
    for file in tmp_path.rglob(cut):  # one of each checkout on this machine
        os.truncate(file, 10)
    command = [sys.executable, "-c", CLIPPED]
    settings = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(0.2)  # a norm of 5 that may be 1
    assert "make room on the disk, or remove the folder" in done.stderr


def test_a_process_that_can_keep_no_machine_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loading.kernels() is not None
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/proc/rekindle")
    text = "no machine code can be kept in /proc/rekindle/.*, so every process compiles its own .*; set NUMBA_CACHE_DIR"
    with pytest.warns(RuntimeWarning, match=text):
        assert loaded_anew().kernels() is not None
    assert numba.config.CACHE_DIR == "/proc/rekindle"


def test_a_user_without_a_home_keeps_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    assert loading.kernels() is not None
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.warns(RuntimeWarning, match="no machine code can be kept in /dev/null/"):
        assert loaded_anew().kernels() is not None


def test_versions_and_processors_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = loading.cache_folder("")
    monkeypatch.setattr(numba.config, "CPU_NAME", "nehalem")
    other = loading.cache_folder("")
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert len({folder, other, loading.cache_folder("")}) == 3


def test_machine_code_that_was_not_used_for_a_month_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current, old, recent = (
        loading.cache_folder(str(tmp_path)),
        tmp_path / f"kernels-{'0a' * 8}",
        tmp_path / f"kernels-{'1' * 16}",
    )
    others = [tmp_path / "mine", tmp_path / "kernels-of-mine"]
    now = time.time()
    for folder in (current, old, recent, *others):
        (folder / "compiled").mkdir(parents=True)
        (folder / "compiled" / "play.nbi").touch()
        os.utime(folder, (now, now - (29 if folder == recent else 31) * 86400))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert loaded_anew().kernels() is not None
    assert {*tmp_path.iterdir()} == {current, recent, *others}
    assert current.stat().st_mtime >= now - 1


def test_kernels_take_float32_in_order_on_the_cpu_alone() -> None:
    x = torch.zeros(4, 6)
    assert loading.kernels_of(x, x[:2]) is not None
    for other in (x.double(), x.T, x[:, :3], x.to("meta")):
        assert loading.kernels_of(x, other) is None


FINGERPRINT = """
from rekindle.tasks.compiled.loading import version
print(version())
"""


def test_the_fingerprint_names_the_processor_that_machine_code_is_for(tmp_path: Path) -> None:
    assert loading.version() == f"numba {numba.__version__} {llvmlite.binding.get_host_cpu_name()}"
    settings = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse2,-avx"}
    settings["NUMBA_CACHE_DIR"] = str(tmp_path)
    version = subprocess.check_output([sys.executable, "-c", FINGERPRINT], env=os.environ | settings, text=True)
    assert version.strip() == f"numba {numba.__version__} nehalem +sse2,-avx"
    assert [*tmp_path.iterdir()] == []  # no kernel was compiled for it


def test_the_fingerprint_says_which_path_was_taken() -> None:
    now = fingerprint(torch.device("cpu"))
    with loading.without_kernels():
        plain = fingerprint(torch.device("cpu"))
    assert now["kernels"].startswith("numba ")
    assert changes(now, plain) == [f"kernels {now['kernels']} -> none"]
    assert loading.kernels() is not None
