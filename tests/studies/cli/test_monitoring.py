"""Output for other programs: status, Prometheus' text, and logs in JSON."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

import own_functions
import pytest
import rekindle
import sample_study
from rekindle.studies.cli import main
from rekindle.studies.cli.output.prometheus import prometheus
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.status_views import status_view
from rekindle.studies.engine.study_views import study_view, summary_view
from rekindle.studies.engine.views import StatusView, SummaryView
from rekindle.studies.live.serving import Studies
from rekindle.studies.live.views import LiveStudy
from rekindle.studies.report.data import report_view
from rekindle.studies.storage.commands import STOP, hold
from rekindle.studies.storage.rows import Result
from rekindle.studies.storage.store import Store
from studying import surrogate, tiny


def test_status_names_the_workers_of_all_studies(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        for seed, name in enumerate(("s", "t")):
            start_study(store, name, tiny(trials=2, seed=seed))
            store.claim(name, [StudyRunner(store, name).advance()[0].trial.uid], 1)
        sample_study.hold(store, store.trials("t")[0].uid, "elsewhere:boot:7:1", 60.0)
        here, there = os.getpid(), 7
        of = {name: {worker.pid for worker in status_view(store, name).workers} for name in ("s", "t", None)}
        assert of == {"s": {here}, "t": {there}, None: {here, there}}
        assert [study.workers for study in status_view(store).studies] == [1, 1]
        ended = "UPDATE rk_trial SET state = 'complete' WHERE study = 't'"  # its task may go on for another study
        store.database.write(lambda connection: connection.exec_driver_sql(ended))
        assert [study.workers for study in status_view(store).studies] == [1, 0]


def test_status_names_no_worker_for_a_trial_between_rungs(sqlite_url: str) -> None:
    """Its task is trained for another study alone."""
    with Store(sqlite_url) as store:
        for name in ("s", "t"):
            start_study(store, name, tiny(trials=2))
        shared = {name: StudyRunner(store, name).advance()[0].trial for name in ("s", "t")}
        assert shared["s"].uid == shared["t"].uid
        between = "UPDATE rk_segment SET state = 'done', score = 0 WHERE study = 't'"
        store.database.write(lambda connection: connection.exec_driver_sql(between))
        lease = store.claim("s", [shared["s"].uid], 1)
        status = status_view(store)
        assert [study.workers for study in status.studies] == [1, 0]
        assert [trained.study for worker in status.workers for trained in worker.trials] == ["s"]
        assert status_view(store, "t").workers == []
        store.release([held for held, _ in lease])


def test_status_names_each_worker_with_its_trials_and_lease(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(sqlite_url, lease_seconds=50) as store:
        start_study(store, "s", tiny(trials=4))
        ready = StudyRunner(store, "s").advance()
        claimed = store.claim("s", [segment.trial.uid for segment in ready[:2]], 2)
        assert main(["status", "--json", "--storage", sqlite_url]) == 0
        [worker] = json.loads(capsys.readouterr().out)["workers"]
        assert worker["pid"] == os.getpid()
        numbers = sorted(trial["number"] for trial in worker["trials"])
        assert [trial["study"] for trial in worker["trials"]] == ["s", "s"]
        assert numbers == sorted(segment.trial.number for segment in ready[:2])
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


@pytest.mark.parametrize("seeds", [1, 2])
def test_all_views_tell_trials_that_wait_from_those_in_training(
    sqlite_url: str, seeds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*command: str) -> Any:
        assert main([*command, "--storage", sqlite_url]) == 0
        return capsys.readouterr().out

    def states_shown() -> list[Any]:
        """The states of trials 0 to 2, by each view."""
        study, states = json.loads(shown("trials", "s", "--json")), ["running", "waiting"]
        summary, watched = (
            json.loads(shown("status", "--json"))["studies"][0],
            json.loads(shown("watch", "s", "--json")),
        )
        counts = [{name: some["counts"][name] for name in states} for some in (study, summary)]
        counts += [{name: watched["counts"].get(name, 0) // seeds for name in states}]
        table = re.findall(r"^ *\d +0 +[0-9a-f]{8} +(\w+)", shown("trials", "s"), re.MULTILINE)
        [of_task] = json.loads(shown("show", study["trials"][1]["uid"], "--json"))["trials"]
        with Store(sqlite_url) as store:
            study_handle = rekindle.Study("s", store)
            views = [table, [trial.state for trial in study_handle.trials]]
            views += [[trial.state for trial in report_view(store, "s").study.trials]]
        assert counts == [counts[0]] * 3
        assert views == [views[0]] * 3
        assert of_task["state"] == views[0][1]
        assert Counter(views[0]) == +Counter(counts[0])
        heads = " ".join(shown("status").split())
        assert [name in heads for name in states] == [name in views[0] for name in states]
        return views[0]

    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(trials=3, options={"seeds": seeds, "aggregate": "mean"} if seeds > 1 else {}))
        ready = StudyRunner(store, "s").advance()
        with_lease = [segment.trial.uid for segment in ready if segment.trial.configuration == 1]
        claimed = store.claim("s", with_lease, seeds)
        assert states_shown() == ["waiting", "running", "waiting"]
        store.release([lease for lease, _ in claimed])
        store.command(lambda c: hold(c, "s", STOP, "me", ""))
    assert states_shown() == ["waiting"] * 3


def test_labels_are_escaped_and_each_metric_has_its_help_once() -> None:
    absent: dict[str, Any] = dict.fromkeys(SummaryView.fields)
    counts = {"complete": 2, "failed": 0}
    study = SummaryView(**{**absent, "study": 'a"b\\c\nd', "state": "complete", "counts": counts, "workers": 0})
    text = prometheus(StatusView(storage="", studies=[study], workers=[], tasks=0))
    assert 'rekindle_study_state{study="a\\"b\\\\c\\nd",state="complete"} 1\n' in text
    assert "rekindle_study_best" not in text
    helps = [line for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)) == 3


def test_the_best_result_is_of_the_objective_in_every_view(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be no return."""
    options: dict[str, Any] = {"epochs": 1, "trials": 2, "scheduler": "none", "progress": False}
    study = rekindle.tune(own_functions.descend, storage=sqlite_url, study="s", **options)
    assert study.best is not None
    text = f"{study.best.objectives['error']:.4g}"
    assert main(["status", "--prometheus", "--storage", sqlite_url]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rekindle_study_best{")]
    assert f"{float(line.split()[-1]):.4g}" == text
    assert f">{text}<" in Studies(study.store).index()


def test_every_view_has_one_best_trial_of_several_objectives(sqlite_url: str) -> None:
    """The others have the same return with a longer episode, or less of it."""
    objectives = {"objectives": {"return": "maximize", "episode_length": "minimize"}}
    results = [(1.0, 5.0), (0.0, 1.0), (1.0, 3.0), (1.0, 4.0)]
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(trials=4, epochs=(1, 1), scheduler="none", options=objectives))
        StudyRunner(store, "s").advance()
        for number, (value, length) in enumerate(results):
            measured = {"return": value, "episode_length": length}
            with store.open(store.trials("s")[number].uid, None) as lease:
                store.finish_segments("s", [Result(lease, number, 0, value, "digest", objectives=measured)])
        best = rekindle.Study("s", store).best
        live = LiveStudy(store, "s").look().best
        assert best is not None
        assert live is not None
        summaries = [summary_view(store, "s"), study_view(store, "s").summary()]
        assert [best.number, live.trial, *(view.best.number for view in summaries if view.best)] == [2] * 4
        assert [view.front for view in summaries] == [[2, 1]] * 2


def test_a_worker_logs_lines_of_json(sqlite_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(trials=2, epochs=(1,)))
    assert main(["worker", "--study", "s", "--storage", sqlite_url, "--log-format", "json"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert all((line["study"], line["worker"]) == ("s", os.getpid()) for line in lines)
    assert sum("has 1 epoch:" in line["message"] for line in lines) == 2
    assert lines[-1]["message"] == "study s is complete"
