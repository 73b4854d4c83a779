"""Digests of the user's code: what changes them, and what does not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from rekindle.tasks import load
from rekindle.tasks.runtime.own_code import digest_of, named_digest

SCRIPT = """import math
from nets import width

CONFIG = {"rate": 0.1}
CONFIG.update(decay=0.5)
COLOUR = "blue"

def helper(x):
    return CONFIG["rate"] * x

def plot(x):
    print(COLOUR, x)

def train(hp, state, seed):
    return helper(math.pi) * width

if __name__ == "__main__":
    study = run(train, trials=16)
    plot(study)
"""
NETS = "from sizes import SMALL\nwidth = 2 * SMALL\n"
SIZES = "SMALL = 16\n"


def digest(folder: Path, script: str = SCRIPT, nets: str = NETS, sizes: str = SIZES) -> str:
    for name, text in (("script_of_mine", script), ("nets", nets), ("sizes", sizes)):
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return digest_of(importlib.import_module("script_of_mine").train)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trials=16", "trials=32"),
        ('"blue"', '"red"'),
        ("print(COLOUR", "print(2, COLOUR"),
        ("\ndef plot", "\n# x\ndef plot"),
    ],
)
def test_lines_that_a_function_does_not_use_change_nothing(folder: Path, old: str, new: str) -> None:
    assert digest(folder, SCRIPT.replace(old, new)) == digest(folder)


@pytest.mark.parametrize(
    ("old", "new"), [("math.pi", "math.e"), ("0.1", "0.2"), ("decay=0.5", "rate=0.5"), ("* x", "+ x")]
)
def test_lines_that_a_function_uses_change_its_digest(folder: Path, old: str, new: str) -> None:
    assert digest(folder, SCRIPT.replace(old, new)) != digest(folder)


def test_files_beside_a_module_that_it_imports_count(folder: Path) -> None:
    plain = digest(folder)
    assert digest(folder, nets=NETS.replace("2", "3")) != plain
    assert digest(folder, sizes="SMALL = 8\n") != plain
    assert digest(folder) == plain


def test_nothing_installed_is_imported_to_find_the_users_files(folder: Path) -> None:
    script = SCRIPT.replace("    return helper", "    import wsgiref.headers\n    return helper")
    for name in ("wsgiref", "wsgiref.headers"):
        sys.modules.pop(name, None)
    digest(folder, script)
    assert "wsgiref" not in sys.modules


def test_the_code_of_packages_is_not_the_users() -> None:
    assert load("ppo").learner.files() == {}
    assert load("sb3:PPO").learner.files() == {}
    assert named_digest(test_the_code_of_packages_is_not_the_users).keys() == {
        f"{__name__}:test_the_code_of_packages_is_not_the_users"
    }


DECORATED = """def task(**space):
    return lambda function: function

def times(factor):
    return lambda function: lambda x: factor * function(x)

match 3:
    case width:
        pass
if (depth := 2) > 1:
    pass

@times(2)
def helper(x):
    return x * width * depth

@times(4)
@task(lr=(0, 1))
def train(hp, state, seed):
    return helper(hp.lr)

def source():
    return train
"""


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("times(2)", "times(3)", True),
        ("times(4)", "times(5)", True),
        ("match 3", "match 4", True),
        ("depth := 2", "depth := 3", True),
        ("lr=(0, 1)", "lr=(0, 2)", False),  # hyperparameters are in the identity, and edited for another study
    ],
)
def test_decorators_count_but_for_the_one_that_makes_a_task(folder: Path, old: str, new: str, differs: bool) -> None:
    def digest_of_train(text: str) -> str:
        (folder / "script_of_mine.py").write_text(text)
        sys.modules.pop("script_of_mine", None)
        importlib.invalidate_caches()
        function = importlib.import_module("script_of_mine").source
        function.__qualname__ = "train"  # a decorator may return anything
        return digest_of(function)

    assert (digest_of_train(DECORATED.replace(old, new)) != digest_of_train(DECORATED)) is differs
