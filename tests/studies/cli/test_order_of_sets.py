"""Sets of texts have the same order in every process of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_path import SUPPORT

START = "import sys; from rekindle.studies.cli import main; sys.exit(main())"


def train(folder: Path, **variables: str) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {"PYTHONPATH": SUPPORT, **variables}
    words = ["train", "own_functions:walk_a_set", "--epochs", "1", "--json", "--storage", f"sqlite:///{folder}/db"]
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", START, *words], env=environment, capture_output=True, text=True, check=True
    )
    return str(json.loads(done.stdout)["digest"])


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("usual") / "storage")


def test_two_processes_go_through_a_set_in_the_same_order(tmp_path: Path, usual: str) -> None:
    assert train(tmp_path / "random", PYTHONHASHSEED="random") == usual


def test_hashes_that_a_user_fixes_are_kept(tmp_path: Path, usual: str) -> None:
    assert train(tmp_path / "fixed", PYTHONHASHSEED="7") != usual
