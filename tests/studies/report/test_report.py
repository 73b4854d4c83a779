"""Reports: their content, and their files."""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rekindle import Space, Store, Study, categorical, maybe, real, task, tune
from rekindle.studies.analysis.health import diagnose
from rekindle.studies.analysis.importance import CLEAR
from rekindle.studies.cli.output.tables import best_table
from rekindle.studies.engine.confirmations import confirmation_config, start_confirmation
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.failures import FAILED
from rekindle.studies.report import figures, what_mattered
from rekindle.studies.report.content import (
    BandView,
    DimensionView,
    LostView,
    MarkView,
    ProcessView,
    TimelineView,
    WorkView,
)
from rekindle.studies.report.data import report_view
from rekindle.studies.report.drawing import LETTER, Chart, Scale, brief, escape, labelled
from rekindle.studies.report.markup import prose
from rekindle.studies.report.matplotlib_figures import figure_of
from rekindle.studies.report.page import page, write_report
from rekindle.studies.report.pictures import save
from rekindle.studies.report.results import samples_of
from rekindle.studies.report.timeline import timeline
from rekindle.studies.storage.rows import Event, Segment, Trial
from rekindle.studies.storage.sql.schema import event
from rekindle.studies.study.number_text import in_digits_alone
from rekindle.studies.workers import training
from sample_study import CONFIG, NAME, execute, fill, uid
from studying import surrogate

EVIL = '<script>alert("x")</script>'
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Studies of the surrogate: halving with a confirmation, a population, a front, several seeds."""
    with Store(f"sqlite:///{tmp_path_factory.mktemp('report') / 'r.db'}") as store:
        same = {"storage": store, "progress": False, "fixed": {"noise": 2.0}, "sampler": "random"}
        halved = tune("surrogate", study="halved", trials=18, epochs=(1, 9), scheduler="halving", **same)
        halved.confirm(2, 4, progress=False)
        tune("surrogate", study="bred", scheduler="pbt", population=4, interval=1, epochs=4, **same)
        objectives = ["return", "env_steps:minimize"]
        tune("surrogate", study=EVIL, trials=6, epochs=2, scheduler="none", objective=objectives, **same)
        tune("surrogate", study="seeded", trials=4, seeds=3, epochs=(1, 3), scheduler="halving", **same)
        yield store


def parts(html: str) -> list[str]:
    return re.findall("<h3>(.*?)</h3>", html)


def test_a_report_is_the_same_bytes_when_built_twice(studies: Store) -> None:
    names = ["halved", "bred", EVIL, "seeded"]
    assert page([report_view(studies, name) for name in names]) == page([report_view(studies, name) for name in names])


def test_a_confirmed_study_begins_with_what_its_winner_is_worth(studies: Store) -> None:
    view = report_view(studies, "halved")
    html, [winner] = page([view]), [view.confirmation.winner]
    assert view.verdict[0].startswith("Expect ")
    assert view.verdict[0].split(".")[0] in html
    assert "epochs. All 18 trainings to the end would have taken 162" in view.verdict[1]
    assert view.band.seeds == 4  # without those of the race, which chose the winner
    assert view.confirmation.candidates[winner].estimate is not None
    assert parts(html)[:5] == ["Confirmation", "Health checks", "Learning curves", "Promotions", "Statistics"]


def test_a_report_shows_the_last_complete_confirmation_while_a_further_one_runs(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 's.db'}") as store:
        same: dict[str, Any] = {"storage": store, "progress": False, "fixed": {"noise": 2.0}, "seed": 3}
        study = tune("surrogate", study="s", trials=6, epochs=1, scheduler="none", **same)
        answer = study.confirm(2, 3, progress=False)
        before = report_view(store, "s")
        further = start_confirmation(store, "s", confirmation_config(store, "s", 1, 5))
        view = report_view(store, "s")
        html = page([view])
    assert (before.unfinished, further) == (None, "s:confirmation-2")
    assert view.confirmation is not None
    assert view.confirmation.to_json() == answer
    assert view.band == before.band is not None
    assert "Statistics" in parts(html)
    assert "on seeds that the search has not used, in s:confirmation." in html
    assert view.verdict[1] == (
        "A further confirmation, s:confirmation-2, is not complete; `rekindle confirm s --top 1 --seeds 5` resumes it."
    )


def test_a_report_on_a_confirmation_tells_what_the_confirmation_tells(studies: Store) -> None:
    """The seeds of its race chose the winner, so results on them are too high and count nowhere."""
    of, view = report_view(studies, "halved").confirmation, report_view(studies, "halved:confirmation")
    estimates = {n: candidate.estimate.results for n, candidate in enumerate(of.candidates) if candidate.estimate}
    value = in_digits_alone(of.candidates[of.winner].estimate.value)
    assert ("Dashed lines are rungs" in page([view]), "Dashed" in page([report_view(studies, "halved")])) == (
        False,
        True,
    )
    number = of.candidates[of.winner].trial
    who = "the defaults" if number is None else f"trial {number} of halved"
    assert f"<td>{of.candidates[of.winner].description}</td>" in page([view])
    assert view.verdict == [
        f"Trial {of.winner}, {who}, won the race of 3: return {value} on 4 seeds that took part in no choice.",
        f"The confirmation trained {of.cost.epochs} epochs.",
    ]
    assert dict(samples_of(view)) == {f"trial {n}": results for n, results in estimates.items()}
    assert samples_of(view)[0][0] == f"trial {of.winner}"
    assert (view.band.seeds, view.band.label) == (4, f"trial {of.winner}")
    told = dict(view.checklist)
    assert told["Seeds of the search"] == "none: this confirms halved"
    assert told["Seeds of the test"].endswith(" disjoint from those of the search; 3 others chose the winner")
    html = page([view])
    assert "Results over seeds that were not used for any choice." in html
    assert "flatter" not in html


def test_a_report_names_the_defaults_and_has_no_median_over_one_environment(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 's.db'}") as store:
        same: dict[str, Any] = {"storage": store, "progress": False, "fixed": {"noise": 2.0}}
        tune("surrogate", study="s", trials=1, epochs=1, scheduler="none", **same).confirm(1, 3, progress=False)
        html = page([report_view(store, "s")])
    assert "<b>trial 0, the defaults</b>, the winner" in html
    assert "return after 1 epoch, on seeds" in html
    assert "The search trained 1 epoch." in html
    [statistics] = re.findall("<h3>Statistics</h3>.*?</table>", html, re.DOTALL)
    assert ("mean" in statistics, "median" in statistics) == (True, False)


def test_importances_and_health_are_those_of_diagnose(studies: Store) -> None:
    view, diagnosis = report_view(studies, "seeded"), diagnose(studies, "seeded")
    assert view.findings == diagnosis.findings
    view = report_view(studies, "halved")
    diagnosis = diagnose(studies, "halved")
    for name in ("importances", "marginals", "pairs"):
        assert getattr(view, name) == getattr(diagnosis, name) != []
    best, html = view.importances[0], page([view])
    text = f"{best.name}: {best.estimate:.0%} ({best.low:.0%} to {best.high:.0%})"
    assert f"<title>{text}</title>" in html
    [pair, *_] = view.pairs
    text = f"{' and '.join(pair.names)}: {pair.estimate:.0%} ({pair.low:.0%} to {pair.high:.0%})"
    assert f"<title>{text}</title>" in html
    for marginal in view.marginals:
        for point in marginal.points:
            assert f": {point.estimate:+.3g} ({point.low:+.3g} to {point.high:+.3g})</title>" in html
    for finding in view.findings:
        assert f"<td>{escape(finding.cure)}</td>" in html


def test_a_clear_pair_is_drawn_by_its_trials(studies: Store) -> None:
    view = report_view(studies, "halved")
    [pair, *_] = view.pairs
    bars, *clouds = what_mattered.pairs(view.replace(pairs=[pair.replace(low=0.9 * CLEAR)]))
    assert clouds == []
    same, cloud = what_mattered.pairs(view.replace(pairs=[pair.replace(low=CLEAR)]))
    assert same.title == bars.title
    assert cloud.title == "results by {} and {}".format(*pair.names)
    assert cloud.x_ticks
    assert cloud.y_ticks
    dots = [point for mark in cloud.marks if mark.shape == "dots" for point in mark.points]
    assert len(dots) == len(view.results) == 18
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in dots)
    assert len({x for x, _ in dots}) > 9


def test_the_commands_tell_what_the_report_shows(studies: Store, cli: Cli) -> None:
    storage = ("--storage", studies.database.url.render_as_string(hide_password=False))
    status, out, _ = cli("diagnose", "halved", *storage)
    said = " ".join(out.split())
    assert (status, "what explains return, of 18 configurations" in said) == (0, True)
    shares = re.findall(r"(\w+) (\d+)% (\d+)% to (\d+)%", said)
    importances = report_view(studies, "halved").importances
    clear = {importance.name for importance in importances if importance.high >= 0.005}
    assert {name for name, *_ in shares} == clear
    counts = re.findall(r"0% \(0% to 0%\) is explained by each of (\d+) other hyperparameter", said)
    assert counts == [str(len(importances) - len(clear))] * (len(clear) < len(importances))
    assert all(int(low) <= int(share) <= int(high) for _, share, low, high in shares)
    assert "importances need 8 configurations with results, but there are 7" in cli("diagnose", "bred", *storage)[1]
    branch = next(trial for trial in study_view(studies, "bred").trials if trial.branch)
    assert f"{branch.branch.trial} at {branch.branch.epochs}" in cli("trials", "bred", *storage)[1]
    task = cli("show", branch.uid, *storage)[1]
    assert "lineage" in task
    assert not re.search(r"^\W*return\b", task.partition("hyperparameters")[0], re.MULTILINE)  # no environment
    front = study_view(studies, EVIL)
    table = best_table(front, ["lr"])
    assert str(table.title).startswith("Pareto front of")
    assert [column.header for column in table.columns] == ["trial", *map(str, front.front)]


def test_the_epochs_are_those_of_all_finished_rungs(studies: Store) -> None:
    view = report_view(studies, "halved")
    assert view.epochs == sum(trial.epochs for trial in study_view(studies, "halved").trials)
    assert report_view(studies, "bred").epochs == 4 * 4  # a branch does not count its parent's


def test_the_epochs_of_a_population_are_those_of_all_its_seeds(sqlite_url: str) -> None:
    options: dict[str, Any] = {"scheduler": "pbt", "population": 4, "interval": 3, "epochs": 12, "seeds": 2}
    study = tune("surrogate", storage=sqlite_url, study="s", progress=False, **options)
    assert any(seed.number > 7 for seed in study.store.trials("s"))  # branches
    assert report_view(study.store, "s").epochs == StudyProgress(study.store, "s").look().epochs == 4 * 2 * 12


def test_each_trial_has_its_numbers_its_digest_and_its_replay(studies: Store) -> None:
    study = study_view(studies, "halved")
    html = page([report_view(studies, "halved")])
    for trial in study.trials:
        row = next(row for row in re.findall("<tr data-trial.*?</tr>", html) if f'data-trial="{trial.number}"' in row)
        assert f"data-v={trial.return_!r}" in row
        assert trial.digest[:12] in row
        assert f"rekindle replay {trial.uid}<" in row
        assert f"data-v={trial.hyperparameters['lr']!r}" in row


def test_a_hyperparameter_that_no_trial_with_a_result_has_is_no_axis(studies: Store) -> None:
    """Those of the study's other algorithm, whose trials have all failed."""
    view = report_view(studies, "halved")
    without = [x.replace(hyperparameters={"gamma": x.hyperparameters["gamma"]}) for x in view.study.trials]
    other = view.replace(study=view.study.replace(trials=without))
    whole, drawn = figures.parallel(view), figures.parallel(other)
    assert whole is not None
    assert drawn is not None
    assert [name for name, _ in whole.axes] == ["lr", "gamma", "width", "return"]
    assert [name for name, _ in drawn.axes] == ["gamma", "return"]
    assert "Parallel coordinates" in parts(page([other]))


def test_parts_without_data_are_left_out(studies: Store) -> None:
    bred, front, seeded = (parts(page([report_view(studies, name)])) for name in ("bred", EVIL, "seeded"))
    assert "Genealogy" in bred
    assert "Promotions" not in bred
    assert "Pareto front" in front
    assert not {"Genealogy", "Confirmation", "Promotions", "Agreement of rungs"} & set(front)
    assert "Statistics" in seeded
    assert "Pareto front" not in seeded


def test_a_report_says_that_intervals_of_few_seeds_are_too_narrow(studies: Store) -> None:
    text = "are too narrow. They contain the truth in fewer than 95 of 100 cases: with 4 runs, 87 to 88 (IQM)"
    view = report_view(studies, "halved")
    assert text in (html := page([view]))
    assert "median</th>" not in html  # that is one over environments
    many = [
        candidate.replace(
            estimate=candidate.estimate and candidate.estimate.replace(results=[*candidate.estimate.results] * 3)
        )
        for candidate in view.confirmation.candidates
    ]
    html = page([view.replace(confirmation=view.confirmation.replace(candidates=many))])
    assert ("Statistics" in parts(html), "too narrow" in html) == (True, False)


def test_a_command_in_a_verdict_is_code(studies: Store) -> None:
    assert "<code>rekindle confirm seeded</code> estimates it" in page([report_view(studies, "seeded")])
    assert prose("say `rekindle <b>`") == "say <code>rekindle &lt;b&gt;</code>"


def test_numbers_of_an_ordinal_are_short_at_their_axis() -> None:
    """The first ten letters of 1.2328467394420659e-05 are another number."""
    dimension = DimensionView(name="x", prior="", axis="choice", help="")
    place, ticks = figures.axis(dimension, [2, 0.0123284673, 1.2328467394420659e-05, "adam"], 0.0, 1.0)
    assert [text for _, text in ticks] == ["1.233e-5", "0.01233", "2", "adam"]
    assert [place(value) for value in (1.2328467394420659e-05, 0.0123284673, 2, "adam")] == [at for at, _ in ticks]


def test_names_are_text_and_nothing_is_loaded(studies: Store) -> None:
    html = page([report_view(studies, EVIL), report_view(studies, "halved")])
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(&quot;x&quot;)" in html
    assert html.count("<script") == 1
    assert not re.search(r"""(?i)(src|href)=["']?(https?:|//)|@import|url\(""", html)


def test_an_empty_study_says_so(tmp_path: Path, cli: Cli) -> None:
    url, file = f"sqlite:///{tmp_path / 'e.db'}", tmp_path / "e.html"
    assert cli("create", "surrogate", "--study", "empty", "--storage", url)[0] == 0
    assert cli("report", "empty", "--storage", url, "-o", str(file))[0] == 0
    assert "The study has nothing to show: no trial has a result yet." in file.read_text()


def test_a_study_with_few_configurations_has_importances_but_no_marginals(tmp_path: Path) -> None:
    priors = {"noise": "uniform(0, 1)", "seconds": "uniform(0.0, 0.001)"}  # five with lr, gamma and width
    same: dict[str, Any] = {"scheduler": "none", "epochs": 2, "sampler": "random", "seed": 3, "priors": priors}
    with Store(f"sqlite:///{tmp_path / 's.db'}") as store:
        for trials in (9, 10):
            tune("surrogate", study=str(trials), trials=trials, storage=store, progress=False, **same)
        few, enough = report_view(store, "9"), report_view(store, "10")
    assert len(few.importances) == len(few.dimensions) == len(enough.marginals) == 5
    assert all(importance.low < importance.high for importance in few.importances)
    assert few.marginals == []
    assert {"Importance of hyperparameters", "Slices"} < set(parts(page([few])))
    assert set(parts(page([enough]))) - set(parts(page([few]))) == {"Marginals"}


def test_statistics_over_seeds_are_those_of_the_objective(sqlite_url: str) -> None:
    """Not of the return, which is measured as well."""
    options: dict[str, Any] = {"trials": 2, "seeds": 3, "epochs": 2, "sampler": "random", "progress": False}
    tune("surrogate", objective="env_steps:minimize", storage=sqlite_url, study="s", **options)
    with Store(sqlite_url) as store:
        report = report_view(store, "s")
    assert dict(samples_of(report)) == {f"trial {n}": [2.0, 2.0, 2.0] for n in (0, 1)}  # a step in each epoch
    assert report.to_json()["of_seeds"] == {0: [2.0, 2.0, 2.0], 1: [2.0, 2.0, 2.0]}


@pytest.mark.parametrize(
    ("low", "high", "form", "labels"),
    [
        (499.85, 500.0, "linear", "499.85 499.9 499.95 500"),
        (12345.0, 12349.0, "linear", "12345 12346 12347 12348 12349"),
        (0.0, 3e-12, "linear", "0 1e-12 2e-12 3e-12"),
        (0.9, 0.99999, "near one", "0.9 0.99 0.999 0.9999 0.99999"),
        (0.0, 0.5, "linear", "0 0.1 0.2 0.3 0.4 0.5"),
    ],
)
def test_labels_of_an_axis_tell_its_values_apart(low: float, high: float, form: str, labels: str) -> None:
    scale = Scale(low, high, 0, 100, form)
    ticks = labelled(scale.ticks())
    assert " ".join(text for _, text in ticks) == labels
    assert [scale(float(text)) for _, text in ticks] == pytest.approx([scale(value) for value, _ in ticks])
    shown = Chart("c", (0, 1), (low, high), ("epoch", "return")).svg() if form == "linear" else ""
    assert all(f'text-anchor="end">{text}</text>' in shown for _, text in ticks if shown)


def test_a_long_number_is_not_cut_to_another_one() -> None:
    assert (brief("1000000.001"), brief("nature_cnn_of_1998")) == ("1000000.001", "nature_cnn")


def test_a_value_of_none_has_a_place_of_its_own_in_each_drawing(sqlite_url: str) -> None:
    @task(space=Space(norm=maybe(real(0.1, 1.0)), width=categorical(None, 32)), objective="score")
    def clipped(hp: Any, state: Any, seed: int) -> tuple[None, dict[str, float]]:
        return None, {"score": float((hp.norm is None) == (hp.width is None)) - (hp.norm is None)}

    tune(clipped, trials=40, epochs=1, sampler="random", storage=sqlite_url, study="s", progress=False)
    with Store(sqlite_url) as store:
        report = report_view(store, "s")
    drawings = [*what_mattered.marginals(report), *figures.slices(report), *what_mattered.pairs(report)[1:]]
    assert len(drawings) == 5
    assert all(">none</text>" in drawing.svg() for drawing in drawings)
    assert drawings[-1].svg().count(">none</text>") == 2  # the pair, whose values are never both numbers
    figure_of(drawings)


def test_labels_of_an_axis_stay_apart_and_within_the_drawing() -> None:
    ticks = [(0.0, "none"), (0.1, "0.003422"), (1.0, "0.06618")]
    drawn = Chart("t", (0, 1), (-2000.0, 0.0), ("x", "y"), width=300, height=210, left=46, x_ticks=ticks).svg()
    places = {text: float(x) for x, text in re.findall(r'<text x="([0-9.]+)" [^>]*>([^<]+)</text>', drawn)}
    assert "0.003422" not in places  # would cover none
    assert places["0.06618"] + LETTER * len("0.06618") / 2 <= 300
    assert places["-2000"] - LETTER * len("-2000") > 12  # the place of the axis's own label


@pytest.mark.parametrize("look_every", [0.0, 60.0])  # it stops within its first rung, or after it
def test_a_study_that_was_stopped_says_by_what(
    tmp_path: Path, look_every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", look_every)
    with Store(f"sqlite:///{tmp_path / 's.db'}") as store:
        same: dict[str, Any] = {"storage": store, "scheduler": "none", "epochs": 3, "trials": 24, "progress": False}
        tune("surrogate", "CartPole-v1", study="s", budget="6epochs", **same)
        view = report_view(store, "s").verdict
    assert any(re.fullmatch(r"The study had the stop by budget: \d+ of 6 epochs are trained\.", line) for line in view)


@pytest.mark.parametrize("rungs", [1, 2])
def test_a_confirmation_is_proposed_once_a_trial_has_trained_to_the_end(sqlite_url: str, rungs: int) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2, epochs=(1, 3, 3), scheduler="halving"))
        store.add_rows(
            "s",
            trials=[Trial(n, f"u{n}", {}, {"bracket": 0}) for n in range(2)],
            segments=[Segment(0, rung, epochs, "done", 1.0, "d") for rung, epochs in enumerate((1, 3)[:rungs])],
        )
        verdict = " ".join(report_view(store, "s").verdict)
    assert "Trial 0 is the best of 2" in verdict
    assert ("`rekindle confirm s` estimates it on fresh seeds" in verdict) == (rungs == 2)


def test_a_study_that_failed_whole_says_why(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'f.db'}") as store:
        tune(
            "surrogate",
            study="f",
            trials=2,
            epochs=2,
            scheduler="none",
            storage=store,
            progress=False,
            fixed={"seconds": 0.0},
        )
        for table in ("rk_segment", "rk_trial"):  # as if both had diverged
            more = ", error = '<b>Diverged</b>: loss became NaN'" if table == "rk_trial" else ", score = NULL"
            store.database.write(lambda c, t=table, m=more: c.exec_driver_sql(f"UPDATE {t} SET state = 'failed'{m}"))
        html = page([report_view(store, "f")])
    assert "The study has nothing to show: all 2 of its trials failed." in html
    assert "&lt;b&gt;Diverged&lt;/b&gt;: loss became NaN" in html


def test_a_cancelled_trial_is_no_failure(sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 2, "epochs": 2, "scheduler": "none", "fixed": {"seconds": 0.0}}
    with Store(sqlite_url) as store:
        tune("surrogate", study="f", storage=store, progress=False, **options)
        ends = ("failed", "loss became NaN"), ("cancelled", "cancel by me")
        for number, (state, error) in enumerate(ends):
            change = f"UPDATE rk_trial SET state = '{state}', error = '{error}' WHERE number = {number}"
            store.database.write(lambda connection, text=change: connection.exec_driver_sql(text))
        html = page([report_view(store, "f")])
    commands, failures = html.split("<h3>Ended by commands</h3>")[1].split("<h3>Failures</h3>")
    assert ("cancel by me" in commands, "NaN" in commands) == (True, False)
    assert ("cancel by me" in failures, "NaN" in failures) == (False, True)


def test_a_report_that_finds_no_room_leaves_the_old_one(studies: Store, tmp_path: Path) -> None:
    path, view = tmp_path / "x.html", [report_view(studies, "halved")]
    path.write_text("the old report")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"x.html cannot be: File too large; give another -o"):
            write_report(view, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old report"]
    write_report(view, path)
    assert [file.read_text() for file in tmp_path.iterdir()] == [page(view)]


def test_a_report_is_refused_in_one_line(studies: Store, tmp_path: Path, cli: Cli) -> None:
    status, out, err = cli("report", "halved", "--storage", studies.url, "-o", str(tmp_path / "no" / "x.html"))
    assert (status, out) == (2, "")
    assert f"a report is written to a file, but {tmp_path}/no/x.html cannot be: No such file or directory; give" in err
    status, out, err = cli("report", "halved", "--storage", studies.url, "-o", str(tmp_path / "x.pdf"))
    assert (status, out) == (2, "")
    assert f"a report is a page of HTML, but -o is {tmp_path}/x.pdf; rekindle plot makes pictures" in err
    assert cli("report", "none", "--storage", studies.url)[0] == 2


def test_studies_stand_side_by_side(studies: Store) -> None:
    html = page([report_view(studies, name) for name in ("halved", "seeded")])
    assert parts(html)[:2] == ["Side by side", "Statistics"]
    assert 'href="#study-1"' in html
    assert "Results over the seeds of the search, which chose these configurations" in html
    estimate = study_view(studies, "halved:confirmation").best.return_
    html = page([report_view(studies, name) for name in ("halved", "halved:confirmation")])
    assert f'<td class="n"></td><td class="n">{in_digits_alone(estimate)}</td>' in html  # not the best of the search


def test_a_study_writes_its_report(studies: Store, tmp_path: Path) -> None:
    Study("halved", studies).report(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == page([report_view(studies, "halved")])


@pytest.mark.parametrize(
    "picture",
    [
        *("halved curves", "halved promotions", "halved profiles", "halved importance", "halved ranks"),
        *("halved marginals", "halved pairs"),
        *("halved parallel", "halved slice", "halved workers", "bred genealogy", f"{EVIL} pareto"),
    ],
)
def test_each_picture_is_drawn(studies: Store, tmp_path: Path, picture: str) -> None:
    name, _, noun = picture.rpartition(" ")
    figure = getattr(Study(name, studies), f"plot_{noun}")()
    assert all(axes.get_children() for axes in figure.axes)
    save(figure, tmp_path / "1.svg")
    text = (tmp_path / "1.svg").read_text(encoding="utf-8")
    assert text.count("<path") > 10


def test_several_drawings_stand_in_rows_without_empty_frames(studies: Store) -> None:
    drawing = figures.curves(report_view(studies, "halved"))
    assert drawing is not None
    assert [len(figure_of([drawing] * count).axes) for count in (1, 2, 4)] == [1, 2, 4]


def test_the_best_trials_result_and_interval_can_be_seen_though_they_are_of_one_epoch(studies: Store) -> None:
    view = report_view(studies, "halved")
    band = BandView(label="best", seeds=3, points=[(9, 50.0, 44.0, 10_000.0)])
    drawing = figures.curves(view.replace(band=band))
    assert drawing is not None
    marks = [(mark.shape, mark.points) for mark in drawing.marks if mark.style == "best"]
    assert ("dots", [(9, 50.0)]) in marks
    assert ("line", [(9, 44.0), (9, drawing.y.high)]) in marks  # no longer than the axis


def test_the_winners_mean_can_be_seen_though_it_is_better_than_all_trials(studies: Store) -> None:
    view = report_view(studies, "halved")
    points = [(1, 50.0, 44.0, 60.0), (9, 5_000.0, 4_990.0, 5_010.0)]
    drawing = figures.curves(view.replace(band=BandView(label="best", seeds=3, points=points)))
    assert drawing is not None
    assert drawing.y.high >= 5_000
    [band] = [mark.points for mark in drawing.marks if mark.shape == "band"]
    assert {(9, 4_990.0), (9, 5_010.0)} <= {*band}


def test_a_picture_has_the_numbers_of_the_report(studies: Store) -> None:
    view, [axes] = report_view(studies, "halved"), Study("halved", studies).plot_curves().axes
    drawn = [list(map(tuple, line.get_xydata())) for line in axes.get_lines()]
    for points in view.curves.trials.values():
        assert [(float(epoch), value) for epoch, value in points] in drawn
    [axes] = (figure := Study("halved", studies).plot_importance()).axes
    assert figure._repr_png_().startswith(b"\x89PNG")
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert texts == [share.name for share in view.importances]


def test_a_picture_is_the_same_bytes_when_built_twice(studies: Store, tmp_path: Path, cli: Cli) -> None:
    url = studies.database.url.render_as_string(hide_password=False)
    for ending, head in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        paths = [tmp_path / f"{index}.{ending}" for index in (1, 2)]
        for path in paths:
            assert cli("plot", "bred", "--kind", "genealogy", "--storage", url, "-o", str(path))[0] == 0
        assert paths[0].read_bytes().startswith(head)
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_picture_is_named_in_json(studies: Store, tmp_path: Path, cli: Cli) -> None:
    url, path = studies.database.url.render_as_string(hide_password=False), tmp_path / "x.svg"
    status, out, _ = cli("plot", "bred", "--kind", "genealogy", "--storage", url, "-o", str(path), "--json")
    assert (status, path.exists()) == (0, True)
    assert {"file": str(path), "study": "bred", "kind": "genealogy"}.items() <= json.loads(out).items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none", "there is no study 'none'"),
        (
            "bred --kind pie",
            "a picture is one of curves, promotions, genealogy, profiles, importance, marginals, pairs, ",
        ),
        (
            "bred --kind pareto",
            "a picture of pareto shows trials with several objectives (--objective), but study bred",
        ),
        ("bred -o x.gif", "a picture's file ends in .png, .svg, .pdf, but got x.gif; give another -o"),
        ("bred -o no/x.png", "a picture is written to a file, but no/x.png cannot be: No such file or directory; give"),
    ],
)
def test_a_picture_is_refused_in_one_line(
    studies: Store, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = cli("plot", *words.split(), "--storage", studies.database.url.render_as_string())
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not list(tmp_path.iterdir())


def test_pictures_without_matplotlib_say_what_to_install(studies: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rekindle.studies.report.matplotlib_figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pictures need the library matplotlib: pip install 'rekindle-rl\[plot\]'"):
        Study("bred", studies).plot_curves()


def test_failures_are_counted_by_kind_and_end(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        fill(store)
        for retry in (True, True, False):
            note = {"kind": "memory", "retry": retry, "report": "[memory] no room"}
            execute(store, event.insert().values(uid=uid(2), created=1.7e9, kind=FAILED, data=note))
        assert report_view(store, NAME).failures == {"memory, for good": 1, "memory, retried": 2}


def test_a_study_that_shares_a_task_has_only_its_own_failures(sqlite_url: str) -> None:
    """As two confirmations of a study have, if both confirm a configuration on the same seeds."""
    times = {NAME: 1, "other": 2}
    with Store(sqlite_url) as store:
        fill(store)
        store.change_study("other", lambda _: CONFIG)
        store.add_rows("other", trials=[Trial(0, uid(2), {"lr": 0.003}, {"bracket": 0})])
        for token, (name, failures) in enumerate(times.items(), 2):
            lease = {"owner": "host:boot:7:1", "token": token, "epochs": 3, "study": name}
            execute(store, event.insert().values(uid=uid(2), created=1e9 + token, kind="resume", data=lease))
            note = {"kind": "memory", "retry": True, "report": "[memory] no room"}
            for _ in range(failures):
                execute(store, event.insert().values(uid=uid(2), created=1e9 + token, kind=FAILED, data=note))
        for name, failures in times.items():
            view = report_view(store, name)
            assert view.failures == {"memory, retried": failures}
            assert [mark.kind for mark in view.timeline.marks] == ["memory (retried)"] * failures
            assert len(store.failures(name, 0, 9)[1]) == failures  # as `watch` shows them
        assert len(store.failures("other", 0, 1)[1]) == 1


def test_the_timeline_tells_takeovers_and_failures() -> None:
    trials = [Trial(0, uid="a", params={}, state="complete", finished=130.0)]
    one, two = "host:boot:7:1", "host:boot:8:1"
    events = [
        Event("a", 100.0, "start", {"owner": one, "token": 1, "epochs": 0, "study": "s"}),
        Event("a", 110.0, "takeover", {"owner": two, "token": 2, "epochs": 1, "study": "s", "previous": one}),
        Event("a", 120.0, "failed", {"kind": "memory", "retry": True}),
    ]
    result = timeline(trials, events, {("a", 2): 128.0}, {"a": 9})
    assert result is not None
    assert result.seconds == 30.0
    assert result.workers == [
        ProcessView(name="7 on host", work=[WorkView(from_=0.0, to=10.0, trials=[0])]),
        ProcessView(name="8 on host", work=[WorkView(from_=10.0, to=28.0, trials=[0])]),
    ]
    assert result.marks == [
        MarkView(worker="8 on host", at=10.0, kind="takeover", trial=0),
        MarkView(worker="8 on host", at=20.0, kind="memory (retried)", trial=0),
    ]


def test_the_timeline_numbers_trials_with_several_seeds_as_the_command_trials_does() -> None:
    trials = [Trial(n, uid=f"t{n}", params={}, state="complete", finished=130.0, seeds=2) for n in range(4)]
    lease = {"owner": "host:boot:7:1", "token": 1, "epochs": 0, "study": "s"}
    events = [Event(trial.uid, 100.0, "start", lease) for trial in trials]
    result = timeline(trials, [*events, Event("t3", 120.0, "failed", {"kind": "memory"})], {}, {})
    assert result is not None
    assert result.workers == [ProcessView(name="7 on host", work=[WorkView(from_=0.0, to=30.0, trials=[0, 1])])]
    assert [mark.trial for mark in result.marks] == [1]


def test_work_after_the_last_checkpoint_of_a_dead_process_is_lost() -> None:
    trials = [Trial(0, uid="a", params={}, state="complete", finished=130.0)]
    one, two = "host:boot:7:1", "host:boot:8:1"
    died = {"previous": one, "saved": 104.0, "lost": 3.0}
    events = [
        Event("a", 100.0, "start", {"owner": one, "token": 1, "epochs": 0, "study": "s"}),
        Event("a", 110.0, "takeover", {"owner": two, "token": 2, "epochs": 4, "study": "s", **died}),
    ]
    result = timeline(trials, events, {("a", 2): 116.0}, {"a": 10})
    assert result is not None
    assert result.workers[0].work == [WorkView(from_=0.0, to=7.0, trials=[0])]
    [lost] = result.lost  # 10 epochs in 4 + 6 seconds of work that counts
    assert lost.epochs == pytest.approx(3.0)
    assert lost.replace(epochs=3.0) == LostView(worker="7 on host", from_=4.0, to=7.0, trial=0, epochs=3.0)


@pytest.mark.parametrize(
    ("seconds", "unit", "factor"), [(200.0, "seconds", 1.0), (6000.0, "minutes", 60.0), (9000.0, "hours", 3600.0)]
)
def test_workers_are_drawn_with_what_they_lost_and_took_over(
    studies: Store, seconds: float, unit: str, factor: float
) -> None:
    names = ["7 on host", "8 on host"]
    span = WorkView(from_=0.0, to=seconds, trials=range(14))
    work = [ProcessView(name=name, work=[span]) for name in names]
    lost = [LostView(worker=names[0], from_=60.0, to=120.0, trial=3, epochs=2.5)]
    marks = [MarkView(worker=names[1], at=90.0, kind=text, trial=3) for text in ("takeover", "memory (retried)")]
    report = report_view(studies, "halved")
    timeline_shown = TimelineView(seconds=seconds, workers=work, lost=lost, marks=marks)
    chart = figures.workers(report.replace(timeline=timeline_shown))
    assert chart is not None
    assert (chart.labels[0], chart.x.high) == (unit, pytest.approx(seconds / factor))
    drawn = {mark.name: mark for mark in chart.marks}
    assert "trials 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11..." in drawn
    missing = drawn["trial 3: about 2.5 epochs were lost"]
    assert (missing.style, missing.points[0][0], missing.points[1][0]) == ("lost", 60 / factor, 120 / factor)
    assert drawn["trial 3: takeover"].style == "takeover"
    assert drawn["trial 3: memory (retried)"].style == "failure"
    assert drawn["trial 3: takeover"].points == [(90 / factor, 1.5)]
    assert figures.workers(report.replace(timeline=None)) is None


def test_a_notebook_shows_a_study_and_a_task_without_their_markup(studies: Store) -> None:
    study = Study(EVIL, studies)
    html = study._repr_html_()
    assert "&lt;script&gt;alert" in html
    assert "<script" not in html
    assert study.best is not None
    assert study.best.uid[:8] in html
    task = studies.task(study.best.uid)
    assert f"<th style='text-align:left'>lr</th><td style='text-align:left'>{task.hyperparameters['lr']:.6g}<" in (
        task._repr_html_()
    )


def test_the_band_of_a_success_rate_has_no_impossible_ends(sqlite_url: str) -> None:
    @task(space=Space(), objective="success_rate")
    def reach(hp: Any, state: Any, seed: int) -> tuple[None, dict[str, float]]:
        return None, {"success_rate": float(seed % 3 > 0)}

    tune(reach, trials=1, seeds=3, epochs=2, storage=sqlite_url, study="s", progress=False)
    with Store(sqlite_url) as store:
        band = report_view(store, "s").band
    assert band is not None
    assert [(low, high) for _, _, low, high in band.points] == [(0, 1), (0, 1)]
