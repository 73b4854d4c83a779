"""Studies across environments: the scale by arithmetic, whole studies under attack, and their output."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from gated import Gate
from rekindle.studies.analysis.comparing import compare
from rekindle.studies.analysis.sources import BadSource
from rekindle.studies.cli import main
from rekindle.studies.engine.confirmations import confirmation_config
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.schedulers.registry import plan, scheduler
from rekindle.studies.schedulers.seeds import collapse
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.environments import across, as_objective, labels, scale_of, scaled
from rekindle.studies.study.number_text import in_digits
from rekindle.tasks import load
from studying import TINY, run, run_and_be_killed, run_by_three

X = np.linspace(0, 1, 24)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three tables of the same grid; the best compromise is about 0.5, and ranges are as different as can be."""
    paths = []
    for n, (best, size) in enumerate(((0.4, 1.0), (0.5, 1e4), (0.6, 1e-3))):
        curves = -size * np.square(X - best)[:, None, None] * np.array([2.0, 1.0])
        curves = np.concatenate([curves, curves * 1.1], 1)  # another seed
        paths.append(str(tmp_path_factory.mktemp("tables") / f"{n}.npz"))
        np.savez(paths[-1], **{"param.x": X, "steps": np.array([10.0, 20]), "curves": curves})
    return paths


def config(tables: list[str], **options: Any) -> Config:
    options = {"trials": 24, "epochs": (1, 2), "across": "mean", "generation": 12, **options}
    return study_config(load("tabular"), tables, **options)


def row(number: int, score: float | None, seeds: int = 3, **more: Any) -> Segment:
    return Segment(number, 0, 1, "done" if score is not None else "ready", score, seeds=seeds, **more)


def test_results_are_scaled_between_the_lower_decile_and_the_best_of_their_environment(tables: list[str]) -> None:
    rows = [row(3 * n, float(n)) for n in range(11)] + [row(3 * n + 1, 100.0 - n) for n in range(11)]
    study = config(tables, across="mean")
    scale = scale_of(study, rows)
    assert scale == [(1.0, 10.0), (91.0, 100.0), (0.0, 0.0)]
    assert [scaled(scale, row) for row in rows[:3]] == [0.0, 0.0, 1 / 9]
    assert scaled(scale, row(4, 100.0)) == 1.0
    alike = scale_of(study, [row(2, 5.0), row(5, 5.0)])
    assert scaled(alike, row(2, 5.0)) == 0.0  # tells nothing
    assert across(study, [row(3, 10.0), row(4, 100.0)], scale) == pytest.approx(2 / 3)  # the third is untrained
    assert labels([{"id": "A"}, {"id": "B", "kwargs": {"g": 1}}, {"id": "B", "kwargs": {"g": 2}}]) == [
        "A",
        'B {"kwargs": {"g": 1}}',
        'B {"kwargs": {"g": 2}}',
    ]


def test_an_aggregate_is_told_as_the_objective(tables: list[str]) -> None:
    study = config(tables)
    assert as_objective(study, 0.75) == {"return": 0.75}
    losses = replace(study, options={**study.options, "objectives": {"loss": "minimize"}})
    assert as_objective(losses, 0.75) == {"loss": 0.25}  # 0 is the best


def carried(study: Config, rng: random.Random, tables: list[str]) -> list[Any]:
    """All plans that ask for trials, where some ready segments end at a time, in random order."""
    curves = [np.load(path)["curves"] for path in tables]
    trials: dict[int, Trial] = {}
    rows: dict[tuple[int, int], Segment] = {}
    plans, asked = scheduler(study), []
    while not (step := plans.plan()).complete:
        new = []
        for number in step.ask or ():
            params = {"x": float(X[number * 7 % 24])}
            new += [Trial(number * 3 + env, "", params, {"bracket": step.bracket}, seeds=3) for env in range(3)]
        first = [trial for trial in new if trial.replicate < 2 or not study.options.get("racing")]
        step.segments += [Segment(trial.number, step.rung, study.rungs[step.rung], seeds=3) for trial in first]
        if step.ask:
            asked.append((step.ask, step.seen))
        new += [replace(trials[number], state=state) for number, state in step.finished]
        trials |= {trial.number: trial for trial in new}
        rows |= {(segment.number, segment.rung): segment for segment in step.segments}
        ready = [key for key, row in rows.items() if row.state == "ready"]
        done = []
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            score = curves[number % 3][number // 3 * 7 % 24, 0, study.rungs[rung] - 1]
            done.append(replace(rows[number, rung], state="done", score=float(score)))
        rows |= {(segment.number, segment.rung): segment for segment in done}
        plans.observe(new, [*step.segments, *done])
        whole = plan(study, trials.values(), rows.values())
        assert (whole.segments, whole.finished, whole.seen) == (
            plans.plan().segments,
            plans.plan().finished,
            plans.plan().seen,
        )
    return [asked, trials, rows]


@pytest.mark.parametrize("how", ["adaptive", "halving", "none"])
def test_plans_follow_from_the_rows_in_whatever_order_they_come(tables: list[str], how: str) -> None:
    study = config(tables, scheduler=how, sampler="tpe", trials=36, generation=18)
    asked, trials, rows = carried(study, random.Random(0), tables)
    for seed in (1, 2):
        assert carried(study, random.Random(seed), tables) == [asked, trials, rows]
    assert bool(study.options.get("racing")) == (how != "adaptive")
    _, seen = asked[-1]
    output = [
        rows[3 * n + env, study.rungs.index(epochs)]
        for n in seen
        for epochs, _ in seen[n]
        for env in range(3)
        if (3 * n + env, study.rungs.index(epochs)) in rows
    ]
    expected = {(result.number, result.epochs): result.score for result in collapse(study, [], output)[1]}
    assert {(n, epochs): score for n in seen for epochs, score in seen[n]} == expected
    spared = [n for n in range(36) if (3 * n, 0) in rows and (3 * n + 2, 0) not in rows]
    assert bool(spared) == (how != "adaptive")  # lost in the first environments, and not trained in the last


def test_the_scale_forgets_an_excluded_trial_in_every_view(tables: list[str], tmp_path: Path) -> None:
    options = {"trials": 4, "known": [{"x": float(x)} for x in X[8:24:4]], "epochs": 2, "scheduler": "none"}
    store = Store(f"sqlite:///{tmp_path}/s.db")
    study = rekindle.tune("tabular", tables, across="mean", storage=store, study="s", progress=False, **options)

    def views() -> list[list[float]]:
        watched = StudyProgress(store, "s").look().best
        assert watched is not None
        best = study_json(store, "s")["best"]
        [kept] = [data["options"]["scale"] for data in [confirmation_config(store, "s", 1, 3).to_json()]]
        return [[watched.value, best["return"]], *kept]

    (one, same), *scale = views()
    assert one == same
    study.exclude(3)  # the worst, which makes the lower ends
    (one, same), *narrower = views()
    assert one == same
    assert [high for _, high in narrower] == [high for _, high in scale]
    assert all(new > old for (new, _), (old, _) in zip(narrower, scale, strict=True))
    store.close()


@pytest.fixture(scope="module")
def searched(tables: list[str], tmp_path_factory: pytest.TempPathFactory) -> rekindle.Study:
    """A finished study, and its confirmation."""
    url = f"sqlite:///{tmp_path_factory.mktemp('across')}/store.db"
    known = [{"x": float(x)} for x in X[1::5]]
    options = {"trials": 5, "known": known, "across": "iqm", "epochs": (1, 2), "scheduler": "halving", "study": "s"}
    study = rekindle.tune("tabular", tables, storage=url, progress=False, **options)
    study.confirm(top=1, seeds=3, progress=False)
    return study


def test_the_best_compromise_wins_whatever_the_ranges_of_returns(tables: list[str], searched: rekindle.Study) -> None:
    view = study_json(searched.store, "s")
    best = view["best"]
    assert best["hyperparameters"]["x"] == X[11]
    assert [env["id"] for env in view["environments"]] == tables
    values = {seed["env"]: seed["return"] for seed in best["seeds"] if seed["epochs"] == 2}
    assert best["environments"] == values
    assert 0 <= best["return"] <= 1


def test_fresh_seeds_say_what_the_winner_is_worth_in_each_environment(
    tables: list[str], searched: rekindle.Study
) -> None:
    confirmed = searched.confirm(top=1, seeds=3, progress=False)
    assert confirmed["cost"]["trainings"] == 3 * (2 + 2 + 2 + 2 * 3)  # nothing was left to train
    winner = confirmed["candidates"][confirmed["winner"]]
    assert winner["claim"] == searched.best.value  # type: ignore[union-attr]
    for path in tables:
        worse, better = sorted(np.load(path)["curves"][11, :, -1])
        assert worse <= winner["environments"][path]["value"] <= better
        assert winner["environments"][path]["low"] <= winner["environments"][path]["value"]
    view = study_json(searched.store, "s:confirmation")["best"]["environments"]  # without the seeds of the race
    assert view == pytest.approx({path: winner["environments"][path]["value"] for path in tables})
    sides = compare(searched.store, ["s", "again=s"]).to_json()
    assert [environment["env"].split()[0] for environment in sides["environments"]] == tables
    assert [side["runs"] for side in sides["sides"]] == [3, 3]


def test_a_winner_that_has_been_excluded_is_not_compared(tables: list[str], tmp_path: Path) -> None:
    how: dict[str, Any] = {"trials": 6, "epochs": 2, "progress": False}
    study = rekindle.tune("tabular", tables, across="mean", storage=f"sqlite:///{tmp_path}/s.db", study="s", **how)
    confirmed = study.confirm(top=2, seeds=3, progress=False)
    assert compare(study.store, ["s", "again=s"]).sides[0].runs == 3
    study.exclude(confirmed["candidates"][confirmed["winner"]]["trial"])
    with pytest.raises(BadSource, match=r"s has no confirmed winner, or has excluded it; `rekindle confirm s` finds"):
        compare(study.store, ["s", "again=s"])


def test_a_confirmation_is_told_on_the_scale_of_its_search(tables: list[str], tmp_path: Path) -> None:
    """If the objective is minimized, 0 is the best in every view."""
    how: dict[str, Any] = {"trials": 6, "epochs": 2, "objective": "return:minimize", "progress": False}
    study = rekindle.tune("tabular", tables, across="mean", storage=f"sqlite:///{tmp_path}/s.db", study="s", **how)
    confirmed = study.confirm(top=2, seeds=3, progress=False)
    winner = confirmed["candidates"][confirmed["winner"]]
    assert confirmed["direction"] == "minimize"
    assert winner["claim"] == study.best.value  # type: ignore[union-attr]
    told = rekindle.Study("s:confirmation", study.store).best
    assert told is not None
    assert winner["estimate"]["value"] == pytest.approx(told.value)
    others = [candidate for candidate in confirmed["candidates"] if candidate is not winner and candidate["estimate"]]
    assert winner["race"]["mean"] <= min(other["race"]["mean"] for other in others)
    assert "on a scale where 0 is the best that the search found" in report_view(study.store, "s").verdict[0]
    assert "on one scale: 0 is the best result in each" in page([report_view(study.store, "s")])


def test_curves_of_all_environments_are_drawn_on_one_scale(tables: list[str], searched: rekindle.Study) -> None:
    view = report_view(searched.store, "s")
    assert view.confirmation is not None
    assert view.band is not None
    [value] = in_digits([view.confirmation.candidates[0].environments[tables[0]].value])
    html = page([view])
    assert "The iqm over environments of return on one scale, after 2 epochs, on seeds" in html
    assert f'<td>{tables[0]}</td><td class="n">{value}' in html
    drawn, band = view.curves.trials, view.band
    assert (band.seeds, [epoch for epoch, *_ in band.points]) == (3, [2])  # not nine independent trainings
    ends = {number: points[-1][1] for number, points in drawn.items() if points[-1][0] == 2}
    assert ends
    assert all(0 <= value <= 1 for value in ends.values())
    assert max(ends, key=lambda number: ends[number]) == searched.best.number  # type: ignore[union-attr]


@pytest.mark.parametrize("objective", ["return", "return:minimize"])
def test_curves_across_environments_end_at_the_results_of_tables(
    tables: list[str], tmp_path: Path, objective: str
) -> None:
    how: dict[str, Any] = {"known": [{"x": float(x)} for x in X[::2]], "epochs": 2, "scheduler": "none"}
    how |= {"objective": objective, "storage": f"sqlite:///{tmp_path}/s.db", "study": "s", "progress": False}
    # Two environments do not race: all configurations are trained in both.
    study = rekindle.tune("tabular", tables[:2], across="mean", trials=len(X[::2]), **how)
    view = report_view(study.store, "s")
    ends = {number: points[-1][1] for number, points in view.curves.trials.items()}
    assert ends == pytest.approx(view.results)


def tiny(env: str, **options: Any) -> Config:
    fixed = {**TINY, "gamma": 0.99}
    environments = [env, {"id": env, "max_episode_steps": 20}, {"id": env, "max_episode_steps": 40}]
    options = {"trials": 2, "epochs": 1, "seed": 3, **options}
    return study_config(load("ppo"), environments, across="iqm", fixed=fixed, **options)


def test_any_number_of_workers_trains_the_same_in_all_environments(sqlite_url: str, tmp_path: Path) -> None:
    config = tiny("CartPole-v1")
    assert run_by_three(sqlite_url, config) == run(f"sqlite:///{tmp_path}/alone.db", config)
    with Store(sqlite_url) as store:
        trials = store.trials("s")
        limits = [store.task(trial.uid).env.max_episode_steps for trial in trials if store.metrics(trial.uid)]
        assert {*limits} == {None, 20, 40}


@pytest.mark.slow
def test_a_study_across_environments_survives_sigkill(
    sqlite_url: str, tmp_path: Path, gate: Gate, wait_until: Any
) -> None:
    config = tiny("gated:Gated-v0", trials=3, epochs=(1, 2))
    undisturbed = run(f"sqlite:///{tmp_path}/alone.db", config)
    assert run_and_be_killed(sqlite_url, config, gate, wait_until) == undisturbed


def test_commands_print_results_across_environments(
    tables: list[str], searched: rekindle.Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, file = ["--workers", "1", "--storage", searched.store.url], tmp_path / "run.toml"
    words = ["tabular", *tables, "--across", "median", "--trials", "1", "--epochs", "2", "--study", "other"]
    assert main(["create", *words, f"--save-config={file}", "--storage", searched.store.url]) == 0
    assert main(["create", str(file), "--storage", searched.store.url]) == 0  # the same study
    words = ["tabular", *tables, "--across", "iqm", "--trials", "5", "--epochs", "1:2", "--study", "s"]
    tried = [text for n, x in enumerate(X[1::5]) for text in ("--try", f"@{_file(tmp_path / f'{n}.json', x)}")]
    assert main(["tune", *words, *tried, *storage]) == 0  # it is complete
    said = capsys.readouterr().out
    assert "iqm on one scale" in said
    assert all(path in said for path in tables)
    assert main(["trials", "s", "--storage", searched.store.url]) == 0
    assert "iqm of results on one scale" in " ".join(capsys.readouterr().out.split())
    assert main(["confirm", "s", "--seeds", "3", "--top", "1", *storage]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "return in each environment, with 95% intervals" in said
    assert "on a scale where 1 is the best that the search found in each environment" in said


def _file(path: Path, x: float) -> Path:
    path.write_text(json.dumps({"x": float(x)}))
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"across": None}, "needs to know how their results are aggregated; add --across iqm"),
        ({"across": "best"}, "--across must be one of mean, median, iqm, top_quartile, but got 'best'"),
        ({"env": ["CartPole-v1"]}, "several environments, but got CartPole-v1 alone"),
        ({"env": ["CartPole-v1", "CartPole-v1"]}, "takes part once, but CartPole-v1 is named twice"),
        ({"env": ["CartPole-v1", "Pendulum-v1"]}, "model.std_init is not searched in CartPole-v1 and loguniform"),
        ({"scheduler": "asha"}, "configurations that wait for each other, as with --scheduler adaptive"),
        ({"goal": "return:9"}, "--goal is about returns of one environment"),
        ({"plateau": 9}, "--plateau is about returns of one environment"),
        ({"aggregate": "median"}, "--aggregate is median; leave that out"),
        ({"racing": True}, "2 environments with --seeds 1 are no more"),
        ({"objective": ["return", "model_size"]}, "one objective of several environments"),
    ],
)
def test_invalid_searches_across_environments_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"env": ["CartPole-v1", "Acrobot-v1"], "across": "iqm", "epochs": 1, **options}
    with pytest.raises(BadConfig, match=message):
        study_config(load("ppo"), given.pop("env"), **given)
