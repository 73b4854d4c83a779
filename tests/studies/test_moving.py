"""Environments that change the working directory, while the storage and other files are relative paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import rekindle
from rekindle.spaces import unflatten
from rekindle.studies.orion.hunts import hunt
from studying import TINY

URL, FIXED = "sqlite:///mine.db", unflatten(TINY)


@pytest.mark.parametrize("how", ["train", "tune", "Objective", "hunt"])
def test_an_environment_that_changes_the_directory_does_not_move_the_database(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "simulator").mkdir()
    monkeypatch.chdir(tmp_path)
    env = {"id": "moving:Moving-v0", "kwargs": {"folder": str(tmp_path / "simulator")}}
    if how == "train":
        settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
        status, _, errors = cli("train", "ppo", json.dumps(env), *settings, "--epochs", "1", "--storage", URL)
        assert status == 0, errors
    elif how == "tune":
        rekindle.tune("ppo", env, trials=1, epochs=1, storage=URL, fixed=FIXED, progress=False)
    elif how == "Objective":
        objective = rekindle.Objective("ppo", env, epochs=1, storage=URL, **FIXED)
        optuna.create_study(direction="maximize").optimize(objective, n_trials=1)
    else:
        hunt("ppo", env, name="h", max_trials=1, storage=URL, **FIXED)
    assert [*tmp_path.glob("**/*.db")] == [tmp_path / "mine.db"]


def test_an_environment_that_changes_the_directory_moves_no_file_that_a_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "simulator").mkdir()
    env = json.dumps({"id": "moving:Moving-v0", "kwargs": {"folder": str(tmp_path / "simulator")}})
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    at = ["--storage", URL]

    def run(*words: str) -> str:
        monkeypatch.chdir(tmp_path)
        status, out, errors = cli(*words)
        assert status == 0, errors
        return out

    written = ["--record", "steps.npz", "--save-config", "run.toml", "--log", "csv:trained.csv"]
    uid = json.loads(run("train", "ppo", env, *settings, "--epochs", "1", *written, "--json", *at))["uid"]
    run("evaluate", uid, "--episodes", "2", "--record", "episodes.npz", *at)
    run("export-policy", "--format", "safetensors", *at, "--", uid, "-policy.safetensors")
    run(
        "tune", "ppo", env, *settings, "--trials", "1", "--epochs", "1", "--workers", "1", "--log", "csv:tuned.csv", *at
    )
    names = {"trained.csv", "steps.npz", "run.toml", "episodes.npz", "-policy.safetensors", "tuned.csv"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert not list((tmp_path / "simulator").iterdir())


def test_an_environment_that_changes_the_directory_moves_no_file_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "simulator").mkdir()
    spec = {"id": "moving:Moving-v0", "kwargs": {"folder": str(tmp_path / "simulator")}}
    env, sets = json.dumps(spec), [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]

    def run(*words: str) -> str:
        monkeypatch.chdir(tmp_path)
        status, out, errors = cli(*words)
        assert status == 0, errors
        return out

    at = ["--storage", URL]
    uid = json.loads(run("train", "ppo", env, *sets, "--epochs", "1", "--record", "steps.npz", "--json", *at))["uid"]
    run("export-policy", uid, "policy.safetensors", "--format", "safetensors", *at)
    tuned = ["tune", "ppo", env, *sets, "--epochs", "1", "--workers", "1", "--scheduler", "none"]
    run(*tuned, "--trials", "8", "--study", "old", *at)
    cloning = ["--set", "cloning.use=True", "--demonstrations", "steps.npz"]
    run("train", "ppo", env, *sets, "--epochs", "1", "--seed", "1", *cloning, "--warm-start", "policy.safetensors", *at)
    shaped = [*tuned, "--trials", "1", "--set", "normalize_obs=false"]
    run(*shaped, *cloning, "--warm-start", "policy.safetensors", "--study", "shown", *at)
    run(*tuned, "--trials", "1", "--study", "new", "--learn-from", f"{URL}#old", "--storage", "sqlite:///other.db")
    monkeypatch.chdir(tmp_path)
    task = rekindle.PPO(spec, warm_start="policy.safetensors", demonstrations="steps.npz")
    monkeypatch.chdir(tmp_path / "simulator")
    task.init(**FIXED, cloning={"use": True}).fit(1)
    monkeypatch.chdir(tmp_path)
    fixed = {**FIXED, "normalize_obs": False}
    options = {"trials": 1, "epochs": 1, "fixed": fixed, "scheduler": "none", "progress": False}
    rekindle.tune("ppo", spec, storage=URL, study="mine", warm_start="policy.safetensors", **options)
    monkeypatch.chdir(tmp_path)
    rekindle.tune("ppo", spec, storage="sqlite:///other.db", study="mine", learn_from=f"{URL}#old", **options)
