"""Comparisons give the numbers of rliable, for studies, Stable-Baselines3's files and tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.studies.analysis.comparing import compare
from rekindle.studies.analysis.sources import SELECTED, BadSource, read_runs
from rekindle.studies.engine.confirmations import confirmation_config, confirmation_name, start_confirmation
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import UnknownStudy
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.objectives import objective_options
from rekindle.tasks.algorithms.surrogate import Surrogate
from rliable import metrics
from studying import TINY, surrogate

OPTIONS: dict[str, Any] = {"epochs": 3, "scheduler": "none", "sampler": "random", "progress": False}
NOISY = {"noise": 3.0}
RANDOM = np.random.default_rng(0)
HERE, THERE = RANDOM.normal(0.6, 0.2, (5, 2)), RANDOM.normal(0.4, 0.2, (7, 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('compared') / 'store.db'}")
    for name, more in (
        ("one", {"seeds": 4, "trials": 2}),
        ("two", {"seeds": 3, "trials": 1}),
        ("single", {"trials": 2}),
        ("metric", {"seeds": 3, "trials": 1, "objective": ["env_steps:minimize"]}),
        ("other", {"seeds": 3, "trials": 1, "env": "CartPole-v1"}),
    ):
        env = more.pop("env", None)
        rekindle.tune(Surrogate, env, storage=store, study=name, fixed=NOISY, **OPTIONS, **more)
    members = {**OPTIONS, "scheduler": "pbt", "population": 2}
    rekindle.tune(Surrogate, storage=store, study="members", fixed=NOISY, **members)
    rekindle.tune(Surrogate, storage=store, study="bred", fixed=NOISY, seeds=3, **members)
    start_study(store, confirmation_name("single"), confirmation_config(store, "single", 1, 3))
    start_study(store, "fresh", surrogate())
    start_study(store, "both", surrogate(options=objective_options(["return", "env_steps:minimize"])))
    return store


def table(path: Path, results: np.ndarray, envs: tuple[str, ...] = ("A", "B")) -> str:
    rows = [f"{env},{run[column]!r}" for run in results.tolist() for column, env in enumerate(envs)]
    path.write_text("\n".join(["env,score", *rows]) + "\n")
    return str(path)


def test_the_numbers_are_rliables(tmp_path: Path) -> None:
    sources = [table(tmp_path / "here.csv", HERE), table(tmp_path / "there.csv", THERE)]
    result = compare(None, sources, {"A": (0.1, 0.9), "B": (0.0, 2.0)})
    here, there = ((scores - [0.1, 0.0]) / [0.8, 2.0] for scores in (HERE, THERE))
    for side, scores in zip(result.sides, (here, there), strict=True):
        assert side.iqm.estimate == pytest.approx(metrics.aggregate_iqm(scores), abs=1e-9)
        assert side.median.estimate == pytest.approx(metrics.aggregate_median(scores), abs=1e-9)
        assert side.optimality_gap.estimate == pytest.approx(metrics.aggregate_optimality_gap(scores), abs=1e-9)
        assert side.iqm.low < side.iqm.estimate < side.iqm.high
    [pair] = result.pairs
    assert pair.estimate == pytest.approx(metrics.probability_of_improvement(here, there), abs=1e-9)
    assert [side.runs for side in result.sides] == [5, 7]
    assert result.profiles.sides["here"].fraction[-1] in (0.0, pytest.approx(0.1))


def test_a_study_gives_the_seeds_of_its_best_configuration_until_it_is_confirmed(store: Store) -> None:
    study = rekindle.Study("one", store)
    assert study.best is not None
    one, _ = compare(store, ["one", "two"]).sides
    [source] = one.sources
    assert (source.kind, len(source.results)) == ("selected", 4)
    assert one.mean.estimate == pytest.approx(study.best.value)
    confirmation = study.confirm(top=1, seeds=3, progress=False)
    one, _ = compare(store, ["one", "two"]).sides
    [source] = one.sources
    winner = confirmation["candidates"][confirmation["winner"]]["estimate"]
    assert (source.kind, source.results) == ("confirmed", winner["results"])
    assert one.mean.estimate == pytest.approx(winner["value"])
    start_confirmation(store, "one", confirmation_config(store, "one", 1, 4))
    assert compare(store, ["one", "two"]).sides[0] == one  # an unfinished further one takes nothing away


def test_a_study_whose_name_contains_an_equals_sign_is_compared(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    for name in ("lr=0.1", "other", "new=other"):
        rekindle.tune(Surrogate, storage=store, study=name, fixed=NOISY, seeds=3, trials=1, **OPTIONS)
    for source, label, study in (
        ("lr=0.1", "lr=0.1", "lr=0.1"),
        ("mine=lr=0.1", "mine", "lr=0.1"),
        ("new=other", "new=other", "new=other"),
        ("old=other", "old", "other"),
    ):
        side = compare(store, [source, "control=other"]).sides[0]
        assert (side.label, [source.source for source in side.sources]) == (label, [study])
    with pytest.raises(UnknownStudy, match=r"'?0\.2"):
        compare(store, ["lr=0.2", "other"])


def test_a_minimized_objective_is_shown_as_measured_and_the_lower_is_better(tmp_path: Path, store: Store) -> None:
    (tmp_path / "worse.csv").write_text("return\n7\n8\n9\n")
    result = compare(store, ["metric", str(tmp_path / "worse.csv")])
    metric, worse = result.sides
    assert (result.objective, result.direction) == ("env_steps", "minimize")
    assert (metric.mean.estimate, worse.mean.estimate) == (3, 8)
    assert 7 <= worse.mean.low <= 8 <= worse.mean.high <= 9
    assert result.pairs[0].estimate == 1


def test_files_of_stable_baselines3_are_runs(tmp_path: Path, store: Store) -> None:
    for seed in range(3):
        path = tmp_path / f"run{seed}.npz"
        np.savez(path, timesteps=[10, 20], results=np.array([[0.0, 0.0], [seed, seed + 2.0]]))
    (tmp_path / "progress.csv").write_text("time,eval/mean_reward\n1,2.0\n2,7.5\n3,\n")
    files = [f"sb3={tmp_path / f'run{seed}.npz'}" for seed in range(3)]
    sb3, _ = compare(store, [*files, f"sb3={tmp_path / 'progress.csv'}", "two"]).sides
    assert [source.results for source in sb3.sources] == [[1.0], [2.0], [3.0], [7.5]]
    assert {source.env for source in sb3.sources} == {"surrogate"}


def test_files_of_a_monitor_are_runs(tmp_path: Path) -> None:
    for seed in range(3):
        (folder := tmp_path / f"run{seed}").mkdir()
        episodes = [f"{0 if n < 20 else seed + n % 2},{10},{n}" for n in range(120)]  # the first 20 do not count
        header = '#{"t_start": 1.5, "env_id": "CartPole-v1"}'
        (folder / "0.monitor.csv").write_text("\n".join([header, "r,l,t", *episodes]) + "\n")
    texts = [f"sb3={tmp_path / f'run{seed}' / '0.monitor.csv'}" for seed in range(3)]
    runs = read_runs(None, texts)
    assert [(run.env, run.results, run.env_steps) for run in runs] == [
        ("CartPole-v1", (seed + 0.5,), 1200) for seed in range(3)
    ]
    (tmp_path / "run0" / "0.monitor.csv").write_text('#{"t_start": 1}\nr,l,t\nx,1,1\n')
    with pytest.raises(BadSource, match="must be the file of a Monitor of Stable-Baselines3, with numbers"):
        read_runs(None, texts)


def test_a_table_of_a_spreadsheet_begins_with_a_byte_order_mark(tmp_path: Path, store: Store) -> None:
    (tmp_path / "excel.csv").write_text("score\n7\n8\n9\n", encoding="utf-8-sig")
    assert compare(store, ["two", str(tmp_path / "excel.csv")]).sides[1].mean.estimate == 8


def test_a_recorded_table_has_its_path_as_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies, and unless another table has this path."""
    monkeypatch.chdir(tmp_path)
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    for name, path, shift in (("one", "curves.npz", 0), ("two", "copy.npz", 0), ("new", "curves.npz", 1)):
        curves = shift + np.arange(12.0).reshape(2, 3, 2)
        np.savez(tmp_path / path, **{"param.lr": [0.1, 0.2]}, steps=[1, 2], curves=curves)
        options = {**OPTIONS, "epochs": 2, "trials": 1, "seeds": 3}
        rekindle.tune("tabular", path, storage=store, study=name, **options)
    (tmp_path / "runs.csv").write_text("env,score\n" + "curves.npz,7\n" * 3)
    for other in ("two", "runs.csv"):
        [environment] = compare(store, ["one", other], {"curves.npz": (0, 10)}).environments
        assert environment.env == "curves.npz"
    with pytest.raises(BadSource, match=r"one has curves.npz; new has curves.npz [0-9a-f]{8}; to join"):
        compare(store, ["one", "new"])


def test_a_study_may_be_called_like_a_file(
    tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for name in ("tabular-a.npz", "tabular-b.npz"):
        rekindle.tune(Surrogate, storage=url, study=name, seeds=3, trials=1, fixed=NOISY, **OPTIONS)
    code, out, _ = cli("compare", "tabular-a.npz", "tabular-b.npz", "--storage", url)
    assert (code, "best trial's seeds" in out) == (0, True)
    _, _, errors = cli("compare", "tabular-a.npz", "tabular-c.npz", "--storage", url)
    assert "tabular-c.npz must be an evaluations.npz" in errors


def test_the_command_prints_what_its_json_says(store: Store, cli: Callable[..., Any]) -> None:
    storage = ("--storage", str(store.database.url))
    status, out, _ = cli("compare", "two", "again=two", "--json", *storage)
    [pair] = json.loads(out)["pairs"]
    assert (status, pair["estimate"]) == (0, 0.5)
    _, out, _ = cli("compare", "two", "again=two", *storage)
    assert "0.50 (" in out
    assert "Selection flatters two: the best configuration is measured on the seeds that chose it." in out
    assert cli("compare", "two", "single", *storage)[0] == 2
    status, _, errors = cli("compare", "two", "again=two", "--scale", "surrogate=9", *storage)
    assert (status, "must be written ENV=LOW:HIGH" in errors) == (2, True)
    status, _, errors = cli("compare", "two", "again=two", "--scale", "surrogate=0:nan", *storage)
    assert (status, "must be written ENV=LOW:HIGH, two finite numbers" in errors) == (2, True)


def test_the_command_warns_of_what_flatters_or_is_left_out(
    store: Store, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    here, there = table(tmp_path / "here.csv", HERE), tmp_path / "there.csv"
    there.write_text("env,score\n" + "".join(f"A,{n}\n" for n in range(5)) + "".join(f"B,{n}\n" for n in range(3)))
    status, out, errors = cli("compare", here, str(there))
    text = " ".join(out.split())
    assert status == 0, errors
    assert "0 and 1 are the worst and the best run of any side; --scale ENV=LOW:HIGH sets others." in text
    assert "Environments have different numbers of runs; for there, only the first ones count." in text
    assert "flatters" not in text
    scales = ["--scale", "A=0:4", "--scale", "B=0:2"]
    result = json.loads(cli("compare", here, str(there), *scales, "--json")[1])
    assert result["sides"][1]["mean"]["estimate"] == pytest.approx(0.375)  # of 0, 1, 2 quarters and 0, 1, 2 halves
    twice = cli("compare", here, str(there), *scales, "--scale", "A=0:1")
    assert (twice[0], "'A=0:1' is given twice" in twice[2]) == (2, True)
    storage = ("--storage", str(store.database.url))
    rekindle.tune(Surrogate, storage=store, study="longer", fixed=NOISY, seeds=3, trials=1, **{**OPTIONS, "epochs": 4})
    assert "The studies trained for different numbers of epochs: 3, 4." in " ".join(
        cli("compare", "two", "longer", *storage)[1].split()
    )


def test_the_command_warns_of_runs_of_different_lengths_and_of_environments_left_out(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    sources = []
    for seed, steps in enumerate((1000, 1000, 500)):
        path = tmp_path / f"run{seed}.npz"
        np.savez(path, timesteps=[10, steps], results=np.ones((2, 3)))
        sources.append(f"sb3@A={path}")
    (tmp_path / "progress.csv").write_text("time/total_timesteps,eval/mean_reward\n400,2.0\n2000,7.5\n3000,\n")
    sources += [f"sb3@A={tmp_path / 'progress.csv'}", table(tmp_path / "there.csv", HERE)]
    text = " ".join(cli("compare", *sources)[1].split())
    assert "The runs of files end after 500 to 2,000 environment steps, and each counts by its last result" in text
    assert "Only environments of all sides count; B of there is left out." in text
    result = json.loads(cli("compare", *sources, "--json")[1])
    assert [source["env_steps"] for source in result["sides"][0]["sources"]] == [1000, 1000, 500, 2000]
    assert result["left_out"] == [{"label": "there", "env": "B"}]


def test_intervals_of_few_runs_are_said_to_be_too_narrow(tmp_path: Path, store: Store, cli: Callable[..., Any]) -> None:
    few, enough = tmp_path / "few.csv", tmp_path / "enough.csv"
    few.write_text("return\n1\n2\n3\n4\n5\n")
    enough.write_text("return\n" + "".join(f"{n}\n" for n in range(10)))
    assert [side.coverage for side in compare(None, [str(few), str(enough)]).sides] == [
        {"iqm": [0.88, 0.91], "mean": [0.71, 0.83]},
        None,
    ]
    text = " ".join(cli("compare", str(few), str(enough))[1].split())
    assert (
        "The 95% intervals of few are too narrow. They contain the truth in fewer than 95 of 100 cases: with 5 runs, "
        "88 to 91 (IQM) and 71 to 83 (mean); with 10 runs, 92 to 93 (IQM) and 79 to 92 (mean). Train more seeds."
    ) in text
    (tmp_path / "again.csv").write_text(enough.read_text())
    assert "too narrow" not in cli("compare", str(enough), str(tmp_path / "again.csv"))[1]
    text = " ".join(cli("compare", "two", str(enough), "--storage", str(store.database.url))[1].split())
    assert "with 3 runs, 72 to 74 (IQM)" in text
    assert "Train more seeds, as `rekindle confirm two --seeds 20 --storage" in text
    several = compare(None, [table(tmp_path / "here.csv", HERE), table(tmp_path / "there.csv", THERE)]).sides
    assert several[0].coverage == {"iqm": [0.91, 0.92], "mean": [0.78, 0.91]}  # five runs in each


def test_the_luck_of_episodes_that_all_runs_share_is_named_until_a_confirmation(
    store: Store, cli: Callable[..., Any]
) -> None:
    options = {**OPTIONS, "seeds": 3, "trials": 1, "eval_episodes": 5}
    study = rekindle.tune("ppo", "CartPole-v1", storage=store, study="played", fixed=TINY, **options)
    errors = np.array([row.eval_error for row in store.segments("played")], float)
    [source] = compare(store, ["played", "again=played"]).sides[0].sources
    assert source.shared_error == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    told = ("compare", "played", "again=played", "--storage", str(store.database.url))
    text = " ".join(cli(*told)[1].split())
    assert "Other episodes may move all results of one, by up to these standard errors: played (" in text
    study.confirm(top=1, seeds=3, progress=False)
    assert compare(store, ["played", "again=played"]).sides[0].sources[0].shared_error is None
    assert "standard errors" not in cli(*told)[1]


def test_a_warning_names_only_commands_that_a_study_takes(store: Store, cli: Callable[..., Any]) -> None:
    """A population cannot be confirmed."""

    def told(*sources: str) -> str:
        return " ".join(cli("compare", *sources, "--storage", str(store.database.url))[1].split())

    text = told("bred", "again=bred")
    assert "Selection flatters bred: the best configuration is measured on the seeds that chose it. The 95%" in text
    assert text.endswith("Train more seeds.")
    text = told("bred", "two")
    assert "Selection flatters bred, two" in text
    assert re.search("`rekindle confirm two --storage [^`]*` trains it", text)
    assert "as `rekindle confirm two --seeds 20 --storage" in text


def test_trials_that_repeat_the_best_are_its_runs(sqlite_url: str) -> None:
    """Trials 2 and 3 repeat trial 0, with a mean of 7, and 4 repeats trial 1, with a mean of 5."""
    of, scores = (None, None, 0, 0, 1), (5.0, 9.0, 7.0, 9.0, 1.0)
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(5, epochs=(9, 9, 3)))
        repeats = ({} if number is None else {"repeats": number} for number in of)
        store.add_rows(
            "s",
            trials=[Trial(n, f"u{n}", {}, {"bracket": 0, **more}, "complete") for n, more in enumerate(repeats)],
            segments=[Segment(n, 0, 9, "done", score, "d") for n, score in enumerate(scores)],
        )
        [run] = read_runs(store, ["s"])
    assert (run.origin, run.results, run.epochs) == (SELECTED, (5.0, 7.0, 9.0), 9)


def test_runs_of_an_environment_are_counted_over_files(tmp_path: Path, cli: Callable[..., Any]) -> None:
    sources = [table(tmp_path / "there.csv", HERE)]
    for seed, env in enumerate("AAAABBB"):
        np.savez(tmp_path / f"run{seed}.npz", results=np.ones((2, 3)))
        sources.append(f"sb3@{env}={tmp_path / f'run{seed}.npz'}")
    assert "for sb3, only the first ones count" in " ".join(cli("compare", *sources)[1].split())


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["one"], "at least two sides, but got only one; add a study"),
        (["two", "single"], r"at least 3 seeds, but .* single was trained with 1; `rekindle confirm single`"),
        (["two", "metric"], r"the same objective, but two has return \(maximized\) and metric has env_steps"),
        (["two", "other"], "sides need a common environment, but two has surrogate; other has CartPole-v1"),
        (["a=two", "a=one", "b=two"], "a side has one study in an environment, but 'a' has two and one in surrogate"),
        (["two", "=one"], "a source is a study or a file, optionally as LABEL=STUDY"),
        (["two", "{}/nan.csv"], "nan.csv, line 3: return is a finite number, but it is 'nan'; correct it"),
        (["two", "{}/short.csv"], "at least 3 runs, but short has 1 in surrogate; train more seeds"),
        (["two", "{}/empty.csv"], "must have a column return or score, but has steps, reward; rename one"),
        (["two", "{}/none.csv"], "must be a CSV file with a header, but: .*No such file"),
        (["two", "{0}/short.csv", "{0}/short.csv"], "a run counts once, but .*short.csv is named 2 times; leave one"),
        (["a=two", "a=two", "b=one"], "a run counts once, but a=two is named 2 times; leave one"),
        (["two", "s={0}/short.csv", "s={0}/../{1}/short.csv"], "counts once, but s=.*short.csv is named 2 times"),
        (["two", "{}/curves.csv"], "must have a run in each row, but has an epoch in each, like .*export-curves"),
        (["{0}/short.csv", "b={0}/short.csv"], "at least 3 runs, but short has 1; train more seeds"),
        (["two", "members"], "members was trained with 1; make it with --seeds 3 or more"),
        (["two", "single:confirmation"], "single:confirmation is the confirmation of single; compare single"),
        (["two", "{}/void.csv"], "must have a column return or score, but has none; rename one"),
        (["two", "{}/comma.csv"], "comma.csv, line 2: a row has a cell for each column, return, but it has more"),
        (["two", "{}/twice.csv"], "twice.csv has one result in each row, but 2 columns return; rename others"),
        (["metric", "{}/run.npz"], r"metric has env_steps \(minimized\), but .*run.npz of Stable-Baselines3 has"),
        (["two", "{}/none.npz"], "must be an evaluations.npz of Stable-Baselines3"),
        (["two", "{}/flat.npz"], r"results are \(evaluations, episodes\), at least one, but they are \(3,\)"),
        (["two", "{}/inf.npz"], "the last evaluation has a result that is not finite; leave this run out"),
        (["two", "{}/head.csv"], "must have at least one result in the column return, but has none; leave it out"),
        (["two", "fresh"], "a comparison needs results, but study fresh has none yet; train it, or leave it out"),
        (["two", "both"], "by one objective, but both has return, env_steps; compare studies with one"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    tmp_path: Path, store: Store, sources: list[str], message: str
) -> None:
    (tmp_path / "nan.csv").write_text("return\n1\nnan\n2\n")
    (tmp_path / "short.csv").write_text("return\n1\n")
    (tmp_path / "empty.csv").write_text("steps,reward\n1,2\n")
    (tmp_path / "curves.csv").write_text("study,trial,uid,epoch,return\nx,0,ab,1,7\nx,0,ab,2,8\nx,0,ab,3,9\n")
    (tmp_path / "head.csv").write_text("return\n")
    (tmp_path / "void.csv").write_text("")
    (tmp_path / "comma.csv").write_text("return\n1,000\n2\n3\n")
    (tmp_path / "twice.csv").write_text("return,return\n1,2\n3,4\n5,6\n")
    np.savez(tmp_path / "run.npz", results=np.zeros((1, 3)))
    np.savez(tmp_path / "flat.npz", results=np.zeros(3))
    np.savez(tmp_path / "inf.npz", results=np.array([[1.0, 2.0], [3.0, np.inf]]))
    with pytest.raises(BadSource, match=message):
        compare(store, [source.format(tmp_path, tmp_path.name) for source in sources])


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"C": (0, 1)}, "an environment of all sides, A, B, but got 'C'"),
        ({"A": (1, 0)}, "the worse end first, but the objective is maximized and A has 1:0"),
        ({"A": (0, 1)}, "for each environment or for none, but B has none; add it"),
    ],
)
def test_an_invalid_scale_is_refused(tmp_path: Path, scales: dict[str, Any], message: str) -> None:
    sources = [table(tmp_path / "here.csv", HERE), table(tmp_path / "there.csv", THERE)]
    with pytest.raises(BadSource, match=message):
        compare(None, sources, scales)
