"""The worked example of CONTRIBUTING.md, as a package of another project."""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nursery
import pytest
from rekindle import Cohort
from rekindle.tasks import load
from rekindle.tasks.testing import ExactnessSuite

ROOT = Path(__file__).parents[2]


def example(wanted: str = "class REINFORCE(Task)") -> str:
    """The code block of CONTRIBUTING.md with these words."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if wanted in block]
    return code


def suite() -> type[ExactnessSuite]:
    """The suite of CONTRIBUTING.md, literally; its task is the example, once that can be imported."""
    names: dict[str, Any] = {"Mine": None}
    exec(example("class TestMine(ExactnessSuite)"), names)
    return names["TestMine"]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the import path with the module and the metadata that installing it would leave there."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "my_reinforce.py").write_text(example())
    info = folder / "my_reinforce-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-reinforce\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rekindle.tasks]\nreinforce = my_reinforce:REINFORCE\n")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def test_the_example_equals_its_file() -> None:
    assert (ROOT / "examples" / "own_algorithm.py").read_text() == example()


class TestTheExample(suite()):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def use_package(self, package: Path) -> None:
        type(self).task = importlib.import_module("my_reinforce").REINFORCE
        type(self).path = [str(package)]


def run(package: Path, folder: Path, *arguments: str) -> Any:
    """What the command line prints as JSON, in a fork of a new interpreter."""
    storage = ["--storage", f"sqlite:///{folder}/s.db", "--json"]
    command = [sys.executable, "-m", "rekindle.studies.cli", *arguments, *storage]
    result = nursery.run(command, env={**os.environ, "PYTHONPATH": str(package)})
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_command_line_finds_the_example_by_its_entry_point_and_resumes_it(package: Path, tmp_path: Path) -> None:
    small = ["--set", "epoch_steps=256", "--set", "num_steps=16"]
    first = run(package, tmp_path, "train", "reinforce", "CartPole-v1", "--epochs", "1", *small)
    second = run(package, tmp_path, "train", "reinforce", "CartPole-v1", "--epochs", "2", *small)
    whole = importlib.import_module("my_reinforce").REINFORCE("CartPole-v1").init(epoch_steps=256, num_steps=16)
    whole.fit(2)
    assert (first["uid"], second["resumed"], second["epochs"]) == (second["uid"], True, 2)
    assert (whole.uid, whole.digest) == (second["uid"], second["digest"])


@pytest.mark.slow
def test_the_command_line_tunes_the_example(package: Path, tmp_path: Path) -> None:
    study = run(
        package,
        tmp_path,
        "tune",
        "reinforce",
        "CartPole-v1",
        "--trials",
        "3",
        "--epochs",
        "1:2:2",
        "--study",
        "mine",
        "--workers",
        "1",
        "--set",
        "epoch_steps=256",
    )
    assert study["state"] == "complete"


def offered(folder: Path, package: str, *lines: str) -> None:
    """A package in this folder, with these entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[rekindle.tasks]", *lines]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", r"the task 'gone', no_such_module:Thing of one, cannot be imported: No module named 'no_such_module'"),
        ("lost", r"the task 'lost', json:Thing of one, cannot be imported: .*Thing"),
        ("other", r"must be a class derived from rekindle.Task, but json:JSONDecoder of one is <class"),
        ("mine", r"under its own name, .* rekindle:A2C of one is named 'a2c' and offered as 'mine'; make them equal"),
        ("twice", r"names of their own, but 'twice' is json:A of one and json:B of two; give yours another name"),
    ],
)
def test_a_faulty_offer_of_a_package_is_refused_by_name(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(
        tmp_path,
        "one",
        "gone = no_such_module:Thing",
        "lost = json:Thing",
        "other = json:JSONDecoder",
        "mine = rekindle:A2C",
        "ppo = json:JSONDecoder",
        "twice = json:A",
    )
    offered(tmp_path, "two", "twice = json:B")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(name)
    assert (load("a2c").name, load("ppo").__name__) == ("a2c", "PPO")


@pytest.mark.slow
def test_the_example_learns(package: Path) -> None:
    algorithm = importlib.import_module("my_reinforce").REINFORCE
    tasks = [algorithm("CartPole-v1", seed=seed).init() for seed in range(5)]
    Cohort(tasks).fit(40)
    assert statistics.median(task.evaluate() for task in tasks) > 300
