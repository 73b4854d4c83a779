"""The best trial of a study: of equal results, the one with the better previous rung, in every view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.studies.cli.dispatch import main
from rekindle.studies.engine.confirmations import confirmation_config
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.engine.study_views import study_json, study_view, summary_view
from rekindle.studies.engine.task_views import task_view
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import write_report
from rekindle.studies.schedulers.seeds import replicate_seed
from rekindle.studies.storage.store import Store

HIGHEST = 500.0
# Options of a study that tries every value of x.
EACH_ONCE: dict[str, Any] = {"epochs": 1, "scheduler": "none", "sampler": "bruteforce", "trials": 4, "progress": False}


@pytest.fixture
def capped(tmp_path: Path) -> str:
    """A table of 200 trainings that all end with the highest return, the better ones earlier."""
    quality = np.random.default_rng(0).permutation(200)
    rise = np.linspace(10, 400, 8)[None] + quality[:, None]
    rise[:, -1] = HIGHEST
    path = tmp_path / "table.npz"
    curves = np.minimum(rise, HIGHEST)[:, None].repeat(2, 1)
    np.savez(path, **{"param.x": np.arange(200.0), "steps": np.arange(1, 9), "curves": curves})
    return str(path)


@pytest.mark.parametrize("seeds", [1, 2])
def test_of_equal_results_the_one_that_was_better_before_is_the_best(capped: str, sqlite_url: str, seeds: int) -> None:
    options: dict[str, Any] = {"trials": 12, "epochs": (1, 8, 2), "scheduler": "adaptive", "seeds": seeds, "seed": 7}
    options["repeats"] = 0
    with Store(sqlite_url) as store:
        progress: StudyProgress | None = None
        output = []

        def look(study: rekindle.Study, trial: Any) -> None:
            nonlocal progress
            progress = progress or StudyProgress(store, "s")
            output.append(progress.look().best)

        study = rekindle.tune("tabular", capped, storage=store, study="s", progress=False, callbacks=[look], **options)
        trials = study_json(store, "s")["trials"]
        ended = {trial["number"]: trial["rungs"][-2]["return"] for trial in trials if trial["epochs"] == 8}
        assert len(ended) > 1
        assert {trial["return"] for trial in trials if trial["epochs"] == 8} == {HIGHEST}
        best = max(ended, key=lambda number: ended[number])
        assert best != min(ended)  # what was tried first has no advantage
        ranked = [trial.number for trial in rank(study_view(store, "s").trials)]
        assert ranked[: len(ended)] == sorted(ended, key=lambda n: -ended[n])
        assert study.best is not None
        assert study.best.number == best
        assert study_json(store, "s")["best"]["number"] == summary_view(store, "s").to_json()["best"]["number"] == best
        assert confirmation_config(store, "s").options["confirms"]["trials"][0] == best
        assert output[-1] == StudyProgress(store, "s").look().best == (HIGHEST, best, 8, f"trial {best}")


def test_a_lucky_loser_of_a_race_is_the_best_in_no_view(tmp_path: Path, sqlite_url: str) -> None:
    """All are better on the first three seeds, after which all but the winner are out."""
    curves = np.arange(8.0)[:, None] + 100.0 * (np.arange(6) < 3)
    np.savez(tmp_path / "table.npz", **{"param.x": np.arange(8.0), "steps": np.array([1]), "curves": curves[..., None]})
    options = {**EACH_ONCE, "trials": 8, "seeds": 6, "racing": True, "storage": sqlite_url, "study": "s"}
    best = rekindle.tune("tabular", str(tmp_path / "table.npz"), **options).best
    assert best is not None
    assert (best.hyperparameters["x"], best.value) == (7, 57)
    with Store(sqlite_url) as store:
        assert max(trial.return_ or 0 for trial in study_view(store, "s").trials) > best.value
        assert summary_view(store, "s").to_json()["best"]["number"] == best.number
        assert StudyProgress(store, "s").look().best == (best.value, best.number, 1, f"trial {best.number}")


@pytest.fixture
def lucky(tmp_path: Path) -> str:
    """A table of four equally good trainings whose 32 seeds differ."""
    curves = np.random.default_rng(0).normal(0, 10, (4, 32, 1)).round()
    np.savez(tmp_path / "lucky.npz", **{"param.x": np.arange(4.0), "steps": np.array([1]), "curves": curves})
    return str(tmp_path / "lucky.npz")


def test_a_confirmation_is_worth_what_its_winner_is_on_fresh_seeds(
    lucky: str, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its race's seeds chose the winner, so that results on them are too high, and so is the highest estimate."""
    study = rekindle.tune("tabular", lucky, storage=sqlite_url, study="s", **EACH_ONCE)
    answer, name = study.confirm(top=4, seeds=4, progress=False), "s:confirmation"
    winner = answer["candidates"][answer["winner"]]
    best = answer["winner"], winner["estimate"]["value"]
    assert best[1] < max(candidate["estimate"]["value"] for candidate in answer["candidates"] if candidate["estimate"])
    assert winner["race"]["mean"] != best[1]
    with Store(sqlite_url) as store:
        view = study_json(store, name)
        for data in (view, summary_view(store, name).to_json()):
            assert (data["best"]["number"], data["best"]["return"]) == best
        told = {trial["number"]: trial["return"] for trial in view["trials"]}
        assert told == {
            n: (candidate["estimate"] or {}).get("value") for n, candidate in enumerate(answer["candidates"])
        }
        assert StudyProgress(store, name).look().best == (best[1], best[0], 1, f"trial {best[0]}")
        confirmed = rekindle.Study(name, store).best
        assert confirmed is not None
        assert (confirmed.number, confirmed.value) == best
    assert main(["status", "--storage", sqlite_url]) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert row.endswith(" on fresh seeds ")
    assert float(row.split()[-4]) == pytest.approx(best[1], abs=0.1)


def test_a_winner_without_one_of_its_seeds_is_complete(
    lucky: str, sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = np.arange(4.0)[:, None, None].repeat(1009, 1)
    curves[3] += np.random.default_rng(0).normal(0, 0.1, (1009, 1))
    with Store(sqlite_url) as store:
        study = rekindle.tune("tabular", lucky, storage=store, study="before", **EACH_ONCE)
        config = confirmation_config(store, "before", top=3, seeds=4)
        fails, loses = (replicate_seed(config, replicate) % 1009 for replicate in (3 + 1, 0))
        curves[3, fails] = curves[1, loses] = np.nan  # of the estimate of the best, and of the race of another
        np.savez(tmp_path / "fails.npz", **{"param.x": np.arange(4.0), "steps": np.array([1]), "curves": curves})
        study = rekindle.tune("tabular", str(tmp_path / "fails.npz"), storage=store, study="s", **EACH_ONCE)
        answer, name = study.confirm(top=3, seeds=4, progress=False), "s:confirmation"
        assert "1 of its fresh trainings failed and is not counted. The search" in report_view(store, "s").verdict[0]
        assert [candidate["hyperparameters"]["x"] for candidate in answer["candidates"]] == [3, 2, 1]
        assert [candidate["race"]["failed"] for candidate in answer["candidates"]] == [0, 0, 1]
        view = study_json(store, name)
        assert [trial["state"] for trial in view["trials"]] == ["complete", "complete", "failed"]
        assert view["best"]["return"] == answer["candidates"][0]["estimate"]["value"]
        assert summary_view(store, name).to_json()["counts"]["failed"] == 1
        [verdict, _] = report_view(store, name).verdict
        assert verdict.endswith("on 3 seeds that took part in no choice; trainings of 1 further seed failed.")
        of_both = report_view(store, "s"), report_view(store, name)
        assert [shown.band.seeds for shown in of_both] == [3, 3]
        value = answer["candidates"][0]["estimate"]["value"]
        assert [shown.band.points[-1][1] for shown in of_both] == [pytest.approx(value)] * 2
        assert of_both[1].curves.trials[0] == [(1, pytest.approx(value))]  # not with the race's seeds
        study.report(tmp_path / "report.html")
        spared = [seed["uid"] for seed in view["trials"][2]["seeds"] if seed["state"] == "pruned"]
        assert len(spared) > 4  # of the race and of the estimate
        write_report([report_view(store, name)], tmp_path / "fresh.html")
        replayed = set(re.findall("rekindle replay ([0-9a-f]+)", (tmp_path / "fresh.html").read_text()))
        assert replayed == {seed["uid"] for trial in view["trials"] for seed in trial["seeds"]} - {*spared}
        [view] = task_view(store, view["trials"][2]["seeds"][0]["uid"]).to_json()["trials"]
        assert (view["number"], view["state"]) == (2, "failed")  # as in `trials`
        html = (tmp_path / "report.html").read_text()
        assert '<th class="n">failed</th>' in html
        number, defaults = (candidate["trial"] for candidate in answer["candidates"][:2])
        assert f"<b>trial {number}</b>, the winner" in html
        assert f"<td>trial {defaults}, the defaults</td>" in html
    assert main(["trials", name, "--storage", sqlite_url]) == 0
    text = capsys.readouterr().out
    assert "complete, 1 training failed" in text
    assert f" 0  trial {number} " in text
    assert f" 1  trial {defaults}, the defaults " in text
    assert "a training of trial 0 failed: Diverged" in text
    assert "\ntrial 2 failed: Diverged" in text


def test_a_candidate_that_loses_the_race_is_pruned(lucky: str, sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        study = rekindle.tune("tabular", lucky, storage=store, study="s", **EACH_ONCE)
        answer = study.confirm(top=4, seeds=3, progress=False)
        estimated = [candidate["estimate"] is not None for candidate in answer["candidates"]]
        assert len(estimated) > sum(estimated)
        states = [trial["state"] for trial in study_json(store, "s:confirmation")["trials"]]
        assert states == ["complete" if result else "pruned" for result in estimated]
