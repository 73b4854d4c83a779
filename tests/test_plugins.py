"""Registries, and packages that add to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nursery
import pytest
from rekindle.plugins import PluginError, Registry
from rekindle.studies.methods import OF_SAMPLERS, OF_SCHEDULERS, OF_SINKS
from rekindle.tasks.envs import EnvSpec, EnvSpecError
from rekindle.tasks.registry import TASKS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the example."""
    source, site = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "examples" / "plugin", source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", site, source], check=True, capture_output=True)
    return site


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a folder of packages."""
    command = [sys.executable, "-m", "rekindle.studies.cli", *arguments]
    return nursery.run(command, env={**os.environ, "PYTHONPATH": str(site)})


def offer(site: Path, package: str, *groups: str) -> None:
    """Leave the metadata of a package that offers something."""
    info = site / f"{package}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("\n".join(groups))


def test_plugins_are_listed_with_their_origin_and_version(site: Path) -> None:
    result = run(site, "plugins", "--json")
    plugins = json.loads(result.stdout)["plugins"]
    assert [(plugin["kind"], plugin["name"]) for plugin in plugins] == [
        ("task", "frugal-ppo"),
        ("environment", "Corridor-v0"),
        ("scheduler", "drop-one"),
        ("sampler", "early-random"),
        ("sink", "jsonlines"),
    ]
    assert {(plugin["package"], plugin["version"], plugin["error"]) for plugin in plugins} == {
        ("my-rekindle-parts", "1.2", "")
    }
    assert result.returncode == 0


def test_a_study_is_made_of_the_parts_of_a_package(site: Path, tmp_path: Path) -> None:
    storage = ["--storage", f"sqlite:///{tmp_path}/s.db"]
    study = ["tune", "frugal-ppo", "Corridor-v0", "--study", "mine", "--trials", "4", "--epochs", "1:2:2"]
    parts = ["--scheduler", "drop-one", "--sampler", "early-random", "--log", f"jsonlines:{tmp_path}/curves.jsonl"]
    small = ["--workers", "1", "--set", "epoch_steps=64", "--set", "num_steps=16", "--set", "num_envs=2"]
    result = run(site, *study, *parts, *small, *storage, "--json")
    assert result.returncode == 0, result.stderr
    made = json.loads(result.stdout)
    assert (made["scheduler"], made["sampler"], made["state"]) == ("drop-one", "early-random", "complete")
    assert made["counts"] == {**made["counts"], "complete": 3, "pruned": 1}  # successive halving promotes two of four
    lines = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert Counter(line["epoch"] for line in lines) == {1: 4, 2: 3}
    without = run(tmp_path, "worker", "--study", "mine", *storage)
    assert without.returncode != 0
    assert "but got 'drop-one'; use the Rekindle and the packages that created the study" in without.stderr
    assert "Traceback" not in without.stderr


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages whose offers are faulty."""
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no licence\\nfound')\n")
    groups = ("[rekindle.schedulers]", "broken = broken_module:Mine", "shape = json:JSONDecoder", "pbt = json:dumps")
    more = ("[rekindle.samplers]", "no-of = json:JSONDecoder", "[rekindle.sinks]", "nothing = json:JSONDecoder")
    envs = (
        "[rekindle.environments]",
        "Twice-v0 = json:A",
        "Gone-v0 = no_such_module:Env",
        "Text-v0 = json:JSONDecoder",
    )
    more += (
        *envs,
        "CartPole-v1 = gymnasium:Env",
        "No id = gymnasium:Env",
        "[rekindle.encoders]",
        "net = json:JSONDecoder",
    )
    offer(tmp_path, "one", *groups, *more)
    offer(tmp_path, "two", "[rekindle.environments]", "Twice-v0 = json:B")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("broken_module", None)


@pytest.mark.parametrize(
    ("registry", "name", "message"),
    [
        (OF_SCHEDULERS, "broken", r"'broken', broken_module:Mine of one, cannot be imported: RuntimeError: no licence"),
        (
            OF_SCHEDULERS,
            "shape",
            r"methods of rekindle's Scheduler, but json:JSONDecoder of one .* without observe, plan",
        ),
        (OF_SCHEDULERS, "halvin", r"a scheduler must be one of adaptive, .* but got 'halvin'; did you mean halving\?"),
        (OF_SAMPLERS, "no-of", r"a class with a method of\(draw\), but json:JSONDecoder of one"),
        (OF_SINKS, "nothing", r"but json:JSONDecoder of one lacks last, write, end, flush, close"),
    ],
)
def test_a_faulty_plugin_is_named(registry: Registry, name: str, message: str, faulty: Path) -> None:
    with pytest.raises(PluginError, match=message):
        registry.load(name)


def test_two_packages_cannot_offer_one_environment(faulty: Path) -> None:
    with pytest.raises(EnvSpecError, match=r"'Twice-v0' is json:A of one and json:B of two"):
        EnvSpec("Twice-v0")


def test_faulty_plugins_are_listed_in_a_line_each_and_disturb_nothing_else(faulty: Path) -> None:
    result = run(faulty, "plugins", "--json")
    errors = {plugin["name"]: plugin["error"] for plugin in json.loads(result.stdout)["plugins"]}
    assert errors["broken"].endswith("cannot be imported: RuntimeError: no licence found")
    assert all(errors.values())
    assert "'pbt' is Rekindle's own and json:dumps of one; give yours another name" in errors["pbt"]
    assert "'CartPole-v1' is Gymnasium's; give gymnasium:Env of one another one" in errors["CartPole-v1"]
    assert "must be a class derived from gymnasium.Env, but json:JSONDecoder of one is" in errors["Text-v0"]
    assert "is written Name-v0, but that of gymnasium:Env of one is 'No id'" in errors["No id"]
    assert "must be a class derived from torch.nn.Module" in errors["net"]
    assert not any("\n" in error for error in errors.values())
    assert (result.returncode, result.stderr) == (1, "")
    assert run(faulty, "space", "a2c").returncode == 0
    assert OF_SCHEDULERS.load("pbt").__name__ == "PBT"


def test_every_object_of_ours_is_importable() -> None:
    for registry in (TASKS, OF_SCHEDULERS, OF_SAMPLERS, OF_SINKS):
        for name in registry.homes:
            offered = registry.load(name)
            assert registry.problem(name, offered, name) == ""
