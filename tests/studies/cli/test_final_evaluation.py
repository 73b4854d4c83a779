"""The evaluation at the end of `rekindle train`: it follows the last save, and a signal ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import nursery
import pytest
from rekindle import Store
from rekindle.tasks.evaluation import episodes as played_episodes
from support_path import SUPPORT

Cli = Callable[..., tuple[int, str, str]]
TRAIN = "import sys; from rekindle.studies.cli import main; sys.exit(main(sys.argv[1:]))"
SETS = {"num_envs": 1, "num_steps": 16, "num_minibatches": 1, "epoch_steps": 16, "update_epochs": 1}
WORDS = ["train", "ppo", "simulators:Endless-v0", "--epochs", "1", "--json"]
WORDS += [word for name, value in SETS.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_evaluation_loses_no_training(
    number: signal.Signals, sqlite_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": SUPPORT}
    command = [sys.executable, "-c", TRAIN, *WORDS, "--storage", sqlite_url]
    with nursery.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if b"epoch 1" in line and b"starts" not in line:
                break
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 128 + number, rest
    assert b"longer than --grace" not in rest
    with Store(sqlite_url) as store:
        [task] = store.tasks()
        assert task.epochs == 1
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setattr(played_episodes, "EVALUATION_STEPS", 50)
    status, out, _ = cli(*WORDS, "--storage", sqlite_url)
    assert status == 0
    assert json.loads(out)["return"] == 50
    status, out, _ = cli("show", task.uid, "--storage", sqlite_url, "--json")
    assert json.loads(out)["metrics"][-1]["return"] == 50


def test_another_number_of_episodes_is_measured_anew(
    sqlite_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    words = ["simulators:Simulated-v0" if word == WORDS[2] else word for word in WORDS]
    results = []
    for more in ([], ["--eval-episodes", "3", "--eval-envs", "2"], []):
        status, out, _ = cli(*words, *more, "--storage", sqlite_url)
        assert status == 0
        results.append(json.loads(out))
    first, second, third = results
    assert second["metrics"]["return_episodes"] == 3
    status, out, _ = cli("evaluate", first["uid"], "--episodes", "3", "--storage", sqlite_url, "--json")
    assert json.loads(out)["return"] == pytest.approx(second["return"]) != first["return"]
    assert third["return"] == first["return"]
    assert third["metrics"]["return_episodes"] == 20
