"""Demonstrations on the command line and in studies: recorded, shown, stored once, and not needed on resuming."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nursery
import pytest
from gated import Gate
from rekindle.spaces import unflatten
from rekindle.studies.engine.lineage import lineage, retrain
from rekindle.studies.storage.store import Store
from rekindle.studies.storage.stored_policies import put_policy
from rekindle.studies.upkeep.fsck import check
from rekindle.tasks import PPO
from rekindle.tasks.experience.recorded_actions import Replayed
from rekindle.tasks.signals.demonstrations import Demonstrations
from studying import TINY, run, tiny

Cli = Callable[..., tuple[int, str, str]]
LEARNING = {**TINY, "cloning.use": True, "gail.use": True, "gail.width": 16}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("demonstrations") / "cartpole.npz")


def recorded(path: Path, seed: int = 9, episodes: int = 2, env: str = "CartPole-v1") -> Path:
    task = PPO(env, seed=seed).init(**unflatten(TINY))
    return task.record(episodes).save(path)


def train(url: str, file: Path, epochs: int = 2, env: str = "CartPole-v1") -> list[str]:
    settings = [part for name, value in LEARNING.items() for part in ("--set", f"{name}={value}")]
    return [
        "train",
        "ppo",
        env,
        "--storage",
        url,
        *settings,
        "--epochs",
        str(epochs),
        "--json",
        "--demonstrations",
        str(file),
    ]


def alone(file: Path, epochs: int, env: str = "CartPole-v1") -> PPO:
    task = PPO(env, demonstrations=file).init(**unflatten(LEARNING))
    task.fit(epochs)
    return task


def test_a_stored_checkpoint_is_recorded_and_shown_to_another_task(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    source = ["train", "ppo", "CartPole-v1", "--storage", sqlite_url, *settings, "--epochs", "1", "--json"]
    uid = json.loads(cli(*source)[1])["uid"]
    file = tmp_path / "demo.npz"
    status, out, _ = cli("evaluate", uid, "--episodes", "3", "--record", str(file), "--storage", sqlite_url, "--json")
    result = json.loads(out)
    assert (status, result["record"]) == (0, str(file))
    assert Demonstrations.load(file).steps == result["steps"] == round(3 * result["return"])  # a reward of 1 each
    rollout = tmp_path / "rollout.npz"
    assert cli(*source, "--record", str(tmp_path / "rollout.txt"))[0] == 2  # before anything is trained
    assert cli(*source[:-3], "--epochs", "2", "--record", str(rollout))[0] == 0
    assert len(Replayed.load(rollout).recording.lengths) == Demonstrations.load(rollout).begins.sum() > 0
    status, out, errors = cli(*train(sqlite_url, file))
    assert status == 0
    report, whole = json.loads(out), alone(file, 2)
    assert (report["uid"], report["digest"]) == (whole.uid, whole.digest)
    assert f"of {file}: 3 loaded" in " ".join(errors.split())
    with Store(sqlite_url) as store:
        assert check(store) == []
        assert retrain(lineage(store, report["uid"]), 2).digest == whole.digest
    assert cli("replay", report["uid"], "--storage", sqlite_url)[0] == 0
    assert cli("evaluate", report["uid"], "--episodes", "2", "--storage", sqlite_url)[0] == 0
    status, out, _ = cli(
        "fork", report["uid"], "--at", "1", "--set", "gail.strength=0.5", "--storage", sqlite_url, "--json"
    )
    assert status == 0
    assert json.loads(out)["changed"] == {"gail.strength": [1.0, 0.5]}


@pytest.mark.slow
def test_a_command_carries_on_when_its_file_is_gone_and_says_when_it_has_changed(
    sqlite_url: str, tmp_path: Path, cli: Cli, file: Path
) -> None:
    mine = tmp_path / "mine.npz"
    mine.write_bytes(file.read_bytes())
    first = json.loads(cli(*train(sqlite_url, mine, epochs=1))[1])
    mine.unlink()
    status, out, errors = cli(*train(sqlite_url, mine, epochs=2))
    assert status == 0
    assert f"task {first['uid']} started from it, and resumes" in " ".join(errors.split())
    result = json.loads(out)
    assert (result["uid"], result["resumed"], result["digest"]) == (first["uid"], True, alone(file, 2).digest)
    recorded(mine, seed=8)
    changed = json.loads(cli(*train(sqlite_url, mine, epochs=1))[1])
    assert changed["uid"] != first["uid"]
    assert not changed["resumed"]


def test_a_task_is_initialized_once_and_a_second_time_only_for_its_start(
    sqlite_url: str, cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, init = [], PPO.init

    def counted(task: PPO, **values: Any) -> PPO:
        calls.append(values)
        return init(task, **values)

    monkeypatch.setattr(PPO, "init", counted)
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    assert cli("train", "ppo", "CartPole-v1", "--epochs", "1", *settings, "--storage", sqlite_url)[0] == 0
    assert len(calls) == 1
    assert cli(*train(sqlite_url, file, epochs=1))[0] == 0
    assert len(calls) == 3


def test_a_file_that_was_never_there_is_refused_before_any_training(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    status, _, errors = cli(*train(sqlite_url, tmp_path / "none.npz"))
    assert status == 2
    assert "there is no file" in errors
    status, _, errors = cli("train", "ppo", "CartPole-v1", "--set", "gail.use=true", "--storage", sqlite_url)
    assert status == 2
    assert "--demonstrations FILE" in " ".join(errors.split())


def test_a_killed_task_carries_on_without_the_file_with_the_same_bits(
    sqlite_url: str, tmp_path: Path, gate: Gate, wait_until: Callable[..., None]
) -> None:
    mine, kept = (recorded(tmp_path / name, env="gated:Gated-v0") for name in ("mine.npz", "kept.npz"))
    command = [sys.executable, "-m", "rekindle.studies.cli", *train(sqlite_url, mine, epochs=4, env="gated:Gated-v0")]
    gate.close(150)  # in the third epoch
    with nursery.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: gate.waiting() or process.poll() is not None)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    gate.open()
    mine.unlink()
    with nursery.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, errors = process.communicate()
    assert process.returncode == 0, errors
    result = json.loads(out)
    assert (result["resumed"], result["digest"]) == (True, alone(kept, 4, env="gated:Gated-v0").digest)
    assert "resumes" in errors


def test_every_trial_of_a_study_is_shown_the_same_and_shares_cohorts(tmp_path: Path, file: Path) -> None:
    fixed = {name: value for name, value in LEARNING.items() if name not in TINY}
    steps = Demonstrations.load(file).steps
    url = f"sqlite:///{tmp_path / 'a.db'}"
    config = tiny(trials=2, fixed={**fixed, "demonstrated_steps": steps}, cohort=3, generation=3, epochs=(1, 2, 2))
    assert "gail.strength" in config.open
    with Store(url) as store:
        task = PPO("CartPole-v1", demonstrations=file).init(**unflatten(LEARNING))
        config = replace(config, options={"warm_start": put_policy(store, task, "given")})
    run(url, config)
    with Store(url) as store:
        assert check(store) == []
        trial, segment = store.trials("s")[0], store.segments("s")[0]
    whole = PPO("CartPole-v1", demonstrations=file).init(**unflatten(trial.params))
    whole.fit(segment.epochs)
    assert (whole.uid, whole.digest) == (trial.uid, segment.digest)


def test_the_command_tunes_what_learns_from_demonstrations(sqlite_url: str, cli: Cli, file: Path) -> None:
    settings = [part for name, value in LEARNING.items() for part in ("--set", f"{name}={value}")]
    command = [
        "tune",
        "ppo",
        "CartPole-v1",
        "--trials",
        "2",
        "--generation",
        "2",
        "--epochs",
        "1:1",
        "--study",
        "s",
        "--workers",
        "1",
        *settings,
        "--demonstrations",
        str(file),
        "--storage",
        sqlite_url,
        "--json",
    ]
    status, out, errors = cli(*command)
    assert status == 0, errors
    assert json.loads(out)["counts"]["complete"] == 2
