"""What is not bit-exact is said by every command, with reason and cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rekindle.studies.cli import main
from support_path import SUPPORT

ENV = "faulty_envs:faults/Forgets-v0"
SMALL = ["num_steps=10", "num_envs=2", "num_minibatches=2", "epoch_steps=40", "update_epochs=1"]
REASON = "two new environments with the same seed and actions differ in the observation at step 0"
CURE = "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"


@pytest.fixture(autouse=True)
def faulty_envs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    """The JSON and the messages of a command that succeeds."""
    assert main([*words, "--storage", "sqlite:///labels.db"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out) if "--json" in words else out, " ".join((err + ("" if "--json" in words else out)).split())


def test_a_training_that_is_not_exact_says_so_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    setting = [word for assignment in SMALL for word in ("--set", assignment)]
    result, output = run(capsys, "train", "ppo", ENV, "--epochs", "1", *setting, "--json")
    [reason] = result["inexact"]
    assert REASON in reason
    assert reason.endswith(CURE)
    assert output.count(f"not bit-exact: {reason}") == 1
    again, output = run(capsys, "train", "ppo", ENV, "--epochs", "2", *setting, "--json")
    assert again["resumed"]
    assert f"not bit-exact: {reason}" in output
    output, _ = run(capsys, "show", result["uid"], "--json")
    assert output["inexact"] == [reason]
    assert f"not bit-exact: {reason}" in run(capsys, "show", result["uid"])[1]


def test_a_study_that_is_not_exact_says_so_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    setting = [word for assignment in SMALL for word in ("--set", assignment)]
    study, output = run(
        capsys, "tune", "ppo", ENV, "--epochs", "1", "--trials", "2", "--workers", "1", *setting, "--json"
    )
    [(reason, count)] = study["inexact"].items()
    assert (count, REASON in reason) == (2, True)
    assert f"2 trainings not bit-exact: {reason}" in output
    [listed] = run(capsys, "status", "--json")[0]["studies"]
    assert listed["inexact"] == {reason: 2}
    assert f"2 trainings not bit-exact: {reason}" in run(capsys, "status")[1]
    findings = run(capsys, "diagnose", study["study"], "--json")[0]["findings"]
    assert {"check": "exactness", "cure": CURE} in [{k: finding[k] for k in ("check", "cure")} for finding in findings]
    run(capsys, "report", study["study"], "--output", "report.html")
    assert REASON in Path("report.html").read_text()
