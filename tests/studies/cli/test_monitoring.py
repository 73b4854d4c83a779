"""What other programs read of studies and workers: status, Prometheus' text, logs in JSON."""

from __future__ import annotations

import json
import os
import re

import pytest
from rekindle.studies.cli import main
from rekindle.studies.cli.output.prometheus import prometheus
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.storage.store import Store
from studying import tiny


def test_status_names_each_worker_with_its_trials_and_lease(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(sqlite_url, lease_seconds=50) as store:
        start_study(store, "s", tiny(trials=4))
        ready = StudyRunner(store, "s").advance()
        claimed = store.claim("s", [each.trial.uid for each in ready[:2]], 2)
        assert main(["status", "--json", "--storage", sqlite_url]) == 0
        [worker] = json.loads(capsys.readouterr().out)["workers"]
        assert worker["pid"] == os.getpid()
        numbers = sorted(each["number"] for each in worker["trials"])
        assert [each["study"] for each in worker["trials"]] == ["s", "s"]
        assert numbers == sorted(each.trial.number for each in ready[:2])
        assert 0 < worker["lease_left"] <= 50
        assert main(["status", "--storage", sqlite_url]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"{os.getpid()} on \S+ trains s \d+, \d+ for \d+ s; its lease has \d+ s left", said)
        assert main(["status", "--prometheus", "--storage", sqlite_url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert 'rekindle_study_state{study="s",state="running"} 1' in lines
        assert 'rekindle_study_workers{study="s"} 1' in lines
        assert any(re.fullmatch(rf'rekindle_worker_trials{{host=".+",pid="{os.getpid()}"}} 2', line) for line in lines)
        store.release([lease for lease, _ in claimed])
    assert main(["status", "--storage", sqlite_url]) == 0
    assert "no process trains any now" in capsys.readouterr().out


def test_labels_are_escaped_and_each_metric_has_its_help_once() -> None:
    study = {"study": 'a"b\\c\nd', "state": "complete", "counts": {"complete": 2, "failed": 0}, "best": None}
    text = prometheus({"studies": [study | {"workers": 0}], "workers": []})
    assert 'rekindle_study_state{study="a\\"b\\\\c\\nd",state="complete"} 1\n' in text
    assert "rekindle_study_best" not in text
    helps = [line for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)) == 3


def test_a_worker_logs_lines_of_json(sqlite_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(trials=2, epochs=(1,)))
    assert main(["worker", "--study", "s", "--storage", sqlite_url, "--log-format", "json"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert all((line["study"], line["worker"]) == ("s", os.getpid()) for line in lines)
    assert sum("has 1 epochs" in line["message"] for line in lines) == 2
    assert lines[-1]["message"] == "study s is complete"
