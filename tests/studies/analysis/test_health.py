"""Health checks find planted defects with a cure, and raise no alarm for sound studies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.spaces import Space
from rekindle.studies.analysis.cures import Finding
from rekindle.studies.analysis.health import (
    CURES,
    best_at_edge,
    diagnose,
    failures_of_one_kind,
    first_rung_misleads,
    seeds_vary,
    spent_on_pruned,
    without_effect,
    workers_idle,
)
from rekindle.studies.analysis.importance import Measurements, importances, measurements
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.failures import FAILED, decide, event_data
from rekindle.studies.methods import SCHEDULERS
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.statistics.estimates import Interval
from rekindle.studies.statistics.variance import OFF
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.rows import Event, Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config, parse_epochs
from rekindle.studies.study.objectives import objective_options
from rekindle.tasks.errors import Diverged, EnvironmentFailed, Hung, ProgramError, ProgramFailed
from studying import surrogate

ROWS, POINTS = 4000, 4
HALVED: dict[str, Any] = {"scheduler": "halving", "epochs": (1, 4, 2), "generation": 16, "trials": 32}


def study(
    folder: Path,
    score: Callable[..., Any],
    rng: int = 0,
    early: Callable[..., Any] | None = None,
    columns: int = 2,
    noise: float = 0.05,
    **options: Any,
) -> dict[str, Any]:
    """The diagnosis of a study on a table, whose hyperparameters a, b, ... are uniform in [0, 1]."""
    random = np.random.default_rng(rng)
    x = random.uniform(0, 1, (columns, ROWS))
    late = score(*x)[:, None, None] + noise * random.normal(size=(ROWS, 4, POINTS))
    if early is not None:
        late[:, :, 0] = early(*x)[:, None] + noise * random.normal(size=(ROWS, 4))
    path = folder / f"table{rng}.npz"
    names = {f"param.{name}": column for name, column in zip("abcd", x, strict=False)}
    np.savez(path, steps=np.arange(1, POINTS + 1), curves=late, **names)
    options = {"epochs": 4, "trials": 32, "scheduler": "none", "sampler": "random", "seed": rng, **options}
    with Store(f"sqlite:///{folder / f'store{rng}.db'}") as store:
        rekindle.tune("tabular", str(path), storage=store, study="s", progress=False, cohort=16, **options)
        return diagnose(store, "s").to_json()


def checks(diagnosis: dict[str, Any]) -> list[str]:
    return [finding["check"] for finding in diagnosis["findings"]]


def test_excluded_trials_count_in_no_analysis(sqlite_url: str) -> None:
    """Three of twelve ran on a broken simulator: their seeds differ by 1,000, and rungs contradict each other."""
    config = surrogate(12, scheduler="halving", sampler="random", options=seed_options(2, "mean"))
    rng, broken = np.random.default_rng(0), (2, 5, 11)
    trials, segments = list[Trial](), list[Segment]()
    for n in range(24):
        number, seed = divmod(n, 2)
        attrs = {"seed": seed, "bracket": number // 4}
        values = {name: float(value) for name, value in zip(config.open, rng.uniform(0.1, 0.9, 9), strict=False)}
        ended = "failed" if number in broken else "complete"
        trials.append(Trial(n, f"u{n}", values, attrs, state=ended, error="[memory] no room", seeds=2))
        for rung, epochs in enumerate(config.rungs):
            score = number + seed / 100 if number not in broken else 1000.0 * seed - 50 * number * rung
            segments.append(Segment(n, rung, epochs, "done", score, f"d{n}", seeds=2))

    def analyses(store: Store) -> tuple[Any, ...]:
        diagnosis, view = diagnose(store, "s").to_json(), report_view(store, "s").to_json()
        between = [correlation["correlation"] for correlation in view["correlations"]]
        agreement = [row["correlation"] for row in study_json(store, "s")["agreement"]]
        return diagnosis, {round(r, 9) for r in (*between, *agreement)}, view["verdict"][0]

    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        store.add_rows("s", trials=trials, segments=segments)
        diagnosis, correlations, verdict = analyses(store)
        assert {"seeds", "failures"} <= {*checks(diagnosis)}
        assert (diagnosis["configurations"], correlations == {1.0}) == (12, False)
        assert "is the best of 12: " in verdict
        for number in broken:
            Steering(store, "s").exclude(number)
        without, correlations, verdict = analyses(store)
        assert not {"seeds", "failures"} & {*checks(without)}
        assert (without["configurations"], without["results"], correlations) == (9, 9 * len(config.rungs), {1.0})
        assert without["importances"] != diagnosis["importances"]
        assert "Trial 10 is the best of 9: " in verdict
        assert page([report_view(store, "s")]).count("failed, excluded</span>") == 3


def hill(a: Any, b: Any, *_: Any) -> Any:
    return -((a - 0.5) ** 2) - (b - 0.4) ** 2


@pytest.mark.slow
def test_a_sound_study_raises_no_alarm_and_says_what_mattered(tmp_path: Path, cli: Callable[..., Any]) -> None:
    result = study(tmp_path, lambda a, b: 2 * np.sin(3 * a) + np.sin(3 * b), noise=0.01)
    assert result["findings"] == []
    first, second = result["importances"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["low"] <= 0.8 <= first["high"]  # of two like functions, one is twice as large: 4 / (4 + 1)
    assert second["low"] <= 0.2 <= second["high"]
    assert first["low"] <= first["estimate"] <= first["high"]
    storage = ("--storage", f"sqlite:///{tmp_path / 'store0.db'}")
    status, out, _ = cli("diagnose", "s", *storage)
    assert (status, "no defects were found in this study" in out) == (0, True)
    assert json.loads(cli("diagnose", "s", "--json", *storage)[1])["importances"] == result["importances"]
    status, _, errors = cli("diagnose", "t", *storage)
    assert (status, "there is no study 't'" in errors) == (2, True)


def test_defects_are_found_with_a_cure(tmp_path: Path) -> None:
    result = study(tmp_path, lambda a, b, c: 3 * a - 4 * (b - 0.5) ** 2 + 0 * c, columns=3, noise=0.01)
    edge, useless = result["findings"]
    assert (edge["check"], "best values of a are at the upper end of its range" in edge["text"]) == ("edge", True)
    assert "--prior a=" in edge["cure"]
    assert (useless["check"], useless["text"].startswith("c explains less than 5%")) == ("no effect", True)
    assert "--set c=" in useless["cure"]


@pytest.mark.slow
def test_a_pair_that_acts_together_is_named(tmp_path: Path, cli: Callable[..., Any]) -> None:
    result = study(tmp_path, lambda a, b, c: a + 4 * (a - 0.5) * (b - 0.5) + 0 * c, columns=3, noise=0.01)
    assert result["pairs"][0]["names"] == ["a", "b"]
    assert [importance["name"] for importance in result["marginals"]] == [
        importance["name"] for importance in result["importances"]
    ]
    output = cli("diagnose", "s", "--storage", f"sqlite:///{tmp_path / 'store0.db'}")[1]
    assert "together, beyond each: a and b " in output


def test_a_hyperparameter_that_acts_only_together_with_another_has_an_effect() -> None:
    """On average over the other, neither `a` nor `b` matters; together they explain everything."""
    count = 1000
    a, b, c = values = np.random.default_rng(0).permuted(np.tile(np.arange(count), (3, 1)), axis=1)
    scores = (a / count - 0.5) * (b / count - 0.5) + 0 * c
    result = Measurements("abc", [range(count)] * 3, [*values], scores, np.arange(count), np.zeros(count, np.intp))
    told = importances(result, 1)
    shares = {share.name: share for share in told.importances}
    rows: Any = SimpleNamespace(results=result, shares=shares, pairs=told.pairs)
    assert max(share.high for share in shares.values()) < 0.05
    assert [finding.text.split()[0] for finding in without_effect(rows)] == ["c"]


def test_a_hyperparameter_may_choose_among_lists_and_none() -> None:
    """As the widths of layers and the norm at which gradients are clipped do."""
    config = replace(surrogate(12), space={"hidden": "choices([64, 64], [32], None)", "lr": "uniform(0, 1)"})
    hidden: Any = [[64, 64], [32], None] * 8
    trials = [Trial(n, f"u{n}", {"hidden": widths, "lr": n * 7 % 24 / 24}) for n, widths in enumerate(hidden)]
    segments = [Segment(n, 0, 1, "done", 2.0 * (widths is None)) for n, widths in enumerate(hidden)]
    results = measurements(config, trials, segments)
    assert (results.names, results.levels[0]) == (["hidden", "lr"], [[32], [64, 64]])
    np.testing.assert_array_equal(results.columns[0], [1, 0, OFF] * 8)
    told = importances(results, 1)
    shares = {share.name: share for share in told.importances}
    assert shares["hidden"].low > 0.9
    assert shares["lr"].high < 0.05
    marginal = next(marginal for marginal in told.marginals if marginal.name == "hidden")
    assert [point.value for point in marginal.points] == [None, [32], [64, 64]]
    assert [round(point.estimate, 1) for point in marginal.points] == [1.3, -0.7, -0.7]  # of a mean of 2 / 3
    rows: Any = SimpleNamespace(results=results, shares=shares, pairs=told.pairs)
    assert [finding.text.split()[0] for finding in without_effect(rows)] == ["lr"]


def test_a_hyperparameter_that_a_configuration_lacks_is_not_none() -> None:
    """Which of the two has none is told by the hyperparameter on which it depends."""
    config = replace(surrogate(12), space={"name": "choices('sgd', 'adam')", "momentum": "uniform(0, 1)"})
    params = [{"name": "sgd", "momentum": n / 16} if n % 2 else {"name": "adam"} for n in range(16)]
    trials = [Trial(n, f"u{n}", values) for n, values in enumerate(params)]
    segments = [Segment(n, 0, 1, "done", float(n % 2)) for n in range(16)]
    results = measurements(config, trials, segments)
    np.testing.assert_array_equal(results.columns[1], [rank for n in range(8) for rank in (np.nan, n)])
    name, momentum = importances(results, 1).importances
    assert (name.name, name.estimate > 0.8, momentum.estimate < 0.1) == ("name", True, True)


def test_equal_results_say_nothing_about_hyperparameters(tmp_path: Path, cli: Callable[..., Any]) -> None:
    result = study(tmp_path, lambda a, b: 500 + 0 * a * b, noise=0.0)
    assert ([finding["check"] for finding in result["findings"]], result["importances"]) == (["equal"], [])
    assert result["configurations"] == 32
    output = cli("diagnose", "s", "--storage", f"sqlite:///{tmp_path / 'store0.db'}")[1]
    assert "importances need results and hyperparameters that vary, but all are equal on each rung" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "how"),
    [
        ("edge", {"score": lambda a, b: 3 * a + np.sin(3 * b), "noise": 0.01}),
        ("edge", {"score": lambda a, b: np.sin(3 * a) - 4 * b, "noise": 0.1}),
        ("no effect", {"score": lambda a, b: np.sin(3 * a) + 0 * b, "noise": 0.01}),
        ("no effect", {"score": lambda a, b, c: hill(a, b) + 0 * c, "columns": 3, "noise": 0.0, "trials": 96}),
        ("seeds", {"score": hill, "noise": 1.0, "seeds": 3}),
        ("seeds", {"score": hill, "noise": 0.3, "seeds": 4}),
        ("first rung", {"score": hill, "early": lambda a, b: -hill(a, b), **HALVED}),
        (
            "first rung",
            {"score": hill, "early": lambda a, b: 0.1 * np.sin(1e4 * a * b) - hill(a, b), **HALVED, "trials": 64},
        ),
        ("failures", {"score": lambda a, b: np.where(a > 0.6, np.nan, np.sin(3 * a))}),
        ("failures", {"score": lambda a, b: np.where(b < 0.4, np.nan, np.sin(3 * b))}),
    ],
)
def test_a_planted_defect_is_found(tmp_path: Path, check: str, how: dict[str, Any]) -> None:
    assert check in checks(study(tmp_path, rng=3, **how))


@pytest.mark.slow
@pytest.mark.parametrize("rng", range(10))
def test_sound_studies_raise_no_alarm(tmp_path: Path, rng: int) -> None:
    options: dict[str, Any] = [
        {},
        {"sampler": "tpe"},
        HALVED,
        {"seeds": 3, "noise": 0.1},
        {**HALVED, "scheduler": "adaptive"},
    ][rng % 5]
    options = {"noise": 0.03, **options}
    assert study(tmp_path, lambda a, b: np.sin(3 * a) + np.sin(3 * b), rng=rng, **options)["findings"] == []


@pytest.mark.parametrize(
    ("prior", "end"),
    [
        ("uniform(1, 5, discrete=True)", "upper end of its range, 5"),
        ("uniform(-5, -1, discrete=True)", "lower end of its range, -5"),
        ("loguniform(1, 10, discrete=True)", "upper end of its range, 10"),
        ("ordinal(16, 32, 64)", "upper end of its range, 64"),
        ("ordinal(64, 32, 16)", "upper end of its range, 64"),
        ("maybe(uniform(0.5, 2))", "upper end of its range, 2"),
        ("near_one(0.9, 0.99)", "upper end of its range, 0.99"),
        ("uniform(0, 0.99720993)", "upper end of its range, 0.99721"),  # which is outside
        ("ordinal(False, True)", ""),
        ("choices([1, 2, 3])", ""),  # without an order, no value is at an end
    ],
)
def test_the_best_at_an_end_of_any_ordered_dimension_is_told(prior: str, end: str) -> None:
    """Results rise with the size of `x`, and the best trial has the largest."""
    space = Space.from_priors({"x": prior})
    values = [space.sample(seed=seed)["x"] for seed in range(256)]
    trials = [Trial(n, uid=str(n), params={"x": value}) for n, value in enumerate(values)]
    order = sorted(range(256), key=lambda n: 9.0 if values[n] is None else -abs(values[n]))
    config: Any = SimpleNamespace(searched=space)
    rows: Any = SimpleNamespace(config=config, trials=trials, order=order, shares={"x": Interval(0.9, 0.8, 1.0)})
    findings = list(best_at_edge(rows))
    assert [finding.text for finding in findings] == ([f"the best values of x are at the {end}"] if end else [])
    if end:
        assert findings[0].cure == (
            "search beyond it (--prior x=..., with a wider range), or if nothing beyond is allowed, fix it there "
            f"(--set x={end.rpartition(' ')[2].replace('0.99721', '0.99720993')})"
        )


def test_the_best_are_those_that_satisfy_the_constraints(tmp_path: Path) -> None:
    """Returns rise up to the end of the range, but only those in its middle are allowed."""
    x = np.arange(32.0)
    np.savez(tmp_path / "table.npz", **{"param.x": x, "steps": np.array([1]), "curves": x[:, None, None]})
    options: dict[str, Any] = {"epochs": 1, "scheduler": "none", "sampler": "bruteforce", "trials": 32}
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        for name, bounds in (("free", []), ("bounded", ["return<=16"])):
            rekindle.tune(
                "tabular",
                str(tmp_path / "table.npz"),
                storage=store,
                study=name,
                constraint=bounds,
                progress=False,
                **options,
            )
        assert checks(diagnose(store, "free").to_json()) == ["edge"]
        assert checks(diagnose(store, "bounded").to_json()) == []


def told(*arguments: Any, **rows: Any) -> list[str]:
    """Texts of what a check finds in rows; see `findings_of`."""
    return [finding.text for finding in findings_of(*arguments, **rows)]


def findings_of(
    check: Any, config: Config, trials: Sequence[Trial] = (), runs: Sequence[Segment] = (), events: Sequence[Event] = ()
) -> list[Finding]:
    """Findings of a check in rows."""
    rows: Any = SimpleNamespace(config=config, replicates=trials, runs=runs, segments=runs, events=events)
    return [*check(rows)]


def failure(number: int, error: BaseException) -> Event:
    """The event of a trial that failed for good."""
    return Event(str(number), 0.0, FAILED, event_data(error, decide(error, 100), 0))


def test_failures_of_one_kind_are_told_with_their_share() -> None:
    def findings(*errors: BaseException | None, seeds: int = 1) -> list[str]:
        states = ["complete" if error is None else "failed" for error in errors]
        trials = [Trial(n, uid=str(n), params={}, state=state) for n, state in enumerate(states)]
        events = [failure(n, error) for n, error in enumerate(errors) if error is not None]
        config = surrogate(options={"seeds": seeds})
        return told(failures_of_one_kind, config, [*trials, Trial(99, uid="99", params={})], events=events)

    nan, inf = Diverged("NaN"), Diverged("inf")
    assert findings(nan, inf, None) == ["2 of 3 trials failed in one way: diverged"]
    assert findings(nan, inf, None, seeds=3) == ["2 of 3 trainings failed in one way: diverged"]
    assert findings(MemoryError("3"), MemoryError(), None) == ["2 of 3 trials failed in one way: memory"]
    assert findings(Hung("in step"), Hung("in reset"), None) == ["2 of 3 trials failed in one way: hung"]
    assert findings(MemoryError(), nan, Hung("in step"), None) == []  # each in its own way
    assert findings(nan, None) == []  # one is no kind
    assert findings(nan, nan, *[None] * 9) == []  # less than a fifth
    spared = [Trial(n, uid=str(n), params={}, state="pruned") for n in range(2, 20)]
    failed = [Trial(n, uid=str(n), params={}, state="failed") for n in range(2)]
    config, events = surrogate(options={"seeds": 20}), [failure(0, nan), failure(1, inf)]
    assert told(failures_of_one_kind, config, [*failed, *spared], [Segment(2, 0, 1, "done", 0.0)], events) == [
        "2 of 3 trainings failed in one way: diverged"
    ]


@pytest.mark.parametrize(
    ("exception", "error", "cure"),
    [
        (Diverged("NaN"), "Diverged: loss became nan; try a lower learning rate", CURES["diverged"]),
        (Diverged("NaN"), "Diverged: loss became nan; E-v0 gave a reward of NaN; fix it", "fix it"),
        (ProgramFailed("t.py"), "ProgramFailed: t.py ended with status 1: KeyError", CURES["program"]),
        (ProgramError("t.py"), "ProgramError: t.py must report each epoch", CURES["program"]),
        (EnvironmentFailed("E"), "Traceback\n  in step\nRuntimeError: lost; again", CURES["environment"]),
    ],
)
def test_failures_are_told_with_an_error_and_the_cure_that_fits_it(exception: Exception, error: str, cure: str) -> None:
    trials = [Trial(n, uid=str(n), params={}, state="failed", error=error) for n in range(2)]
    events = [failure(n, exception) for n in range(2)]
    rows: Any = SimpleNamespace(config=surrogate(), replicates=trials, runs=[], events=events)
    [finding] = failures_of_one_kind(rows)
    assert finding.text.endswith(f"({error.splitlines()[-1]})")
    assert finding.cure == cure


def test_seeds_that_vary_more_than_configurations_are_told() -> None:
    def findings(
        *results: tuple[float, float], seeds: int = 2, scheduler: str = "halving", objectives: Sequence[str] = ()
    ) -> list[str]:
        rows = [
            Segment(2 * n + k, rung=0, epochs=3, state="done", score=score, seeds=2)
            for n, pair in enumerate(results)
            for k, score in enumerate(pair)
        ]
        config = replace(surrogate(options=seed_options(seeds, "mean")), scheduler=scheduler)
        config = replace(config, options={**config.options, **objective_options(objectives)})
        return [text for finding in findings_of(seeds_vary, config, runs=rows) for text in (finding.text, finding.cure)]

    alike = (0.0, 2.0), (0.0, 2.0), (0.0, 2.0), (1.0, 3.0)  # variances of 2 within, of 1/4 - 2/2 between
    text, cure = findings(*alike)
    assert text == "seeds vary more (standard deviation 1.41) than configurations do (0)"
    assert cure == "compare by more seeds (--seeds 8), or confirm the best (rekindle confirm)"
    assert findings(*alike, scheduler="pbt") == [text, "compare by more seeds (--seeds 8)"]  # cannot be confirmed
    assert findings(*alike, objectives=["return", "model_size"]) == [text, "compare by more seeds (--seeds 8)"]
    assert findings((0.0, 0.1), (5.0, 5.1), (10.0, 10.1), (15.0, 15.1)) == []
    assert findings((0.0, 2.0), (0.0, 2.0), (0.0, 2.0)) == []  # too few to tell
    assert findings((0.0, 2.0), (0.0, 2.0), (0.0, 2.0), (1.0, 3.0), seeds=1) == []
    assert findings((0.0, 2.0), (0.0, 2.0), (0.0, 2.0), (1.0, 3.0), scheduler="confirm") == []  # of the best alone


def test_a_first_rung_that_says_nothing_of_the_last_is_told() -> None:
    def findings(early: Sequence[float], late: Sequence[float], error: float | None = None) -> list[str]:
        scores = [(0, 1, early), (1, 3, late)]
        rows = [
            Segment(n, rung=rung, epochs=epochs, state="done", score=score, eval_error=error)
            for rung, epochs, scores_of_rung in scores
            for n, score in enumerate(scores_of_rung)
        ]
        return told(first_rung_misleads, surrogate(), runs=rows)

    [text] = findings(range(12), [-float(n) for n in range(12)])
    assert text == "results at epoch 1 say little about those at epoch 3 (rank correlation -1.00)"
    assert findings([-21.0] * 12, range(6)) == ["all results at epoch 1 are equal, but later ones differ"]
    assert findings([-21.0] * 12, [-21.0, -17.0]) == ["all results at epoch 1 are equal, but later ones differ"]
    assert findings([-21.0] * 6, range(6)) == []  # all were promoted
    assert findings([18.0] * 12, [17.9] * 6, 0.1) == []  # of other episodes
    assert findings([18.0] * 12, [17.9] * 6, 0.01) == ["all results at epoch 1 are equal, but later ones differ"]
    assert findings([500.0] * 12, [500.0] * 6) == []
    assert findings(range(12), range(12)) == []
    assert findings(range(12), [-float(n) for n in range(5)]) == []  # five reached it, which is too few


def rungs(early: np.ndarray, late: np.ndarray, promoted: int) -> list[Segment]:
    """A bracket: all trials on the first rung, and its best on the last one."""
    best = np.argsort(-early)[:promoted].tolist()
    return [
        *(Segment(n, rung=0, epochs=1, state="done", score=score) for n, score in enumerate(early.tolist())),
        *(Segment(n, rung=1, epochs=3, state="done", score=float(late[n])) for n in best),
    ]


def test_a_first_rung_that_tells_the_last_one_is_seldom_blamed() -> None:
    """Among the promoted third the correlation is small and noisy; it is 0.7 among all trials, and 0 or -1 here."""
    rng, config = np.random.default_rng(0), surrogate()
    alarms = []
    for correlation in (0.7, 0.0, -1.0):
        result = 0
        for _ in range(200):
            late, noise = rng.normal(size=(2, 64))
            early = correlation * late + math.sqrt(1 - correlation**2) * noise
            result += bool(told(first_rung_misleads, config, runs=rungs(early, late, 21)))
        alarms.append(result / 200)
    assert alarms[0] <= 0.05 < 0.25 < alarms[1] < alarms[2] == 1.0


def test_the_cure_of_a_misleading_first_rung_is_a_later_one() -> None:
    def cure(*epochs: int, **options: Any) -> str:
        segments = rungs(np.arange(12.0), -np.arange(12.0), 12)
        config = SimpleNamespace(rungs=epochs, scheduling=SCHEDULERS["halving"], options=options)
        rows: Any = SimpleNamespace(config=config, segments=segments)
        return next(first_rung_misleads(rows)).cure

    later = "in a new study, compare later (--epochs 3:9), or prune no trial (--scheduler none)"
    assert cure(1, 3, 9) == cure(1, 9) == later
    assert cure(1, 2) == "in a new study, prune no trial (--scheduler none)"
    assert cure(1, 3, 9, sized={"seconds": 90.0}) == "in a new study, compare after more steps (--budget 4.5m)"


def test_configurations_that_vary_more_than_seeds_are_seldom_blamed() -> None:
    """Eight configurations whose variance is twice that of three seeds, or a tenth of it."""
    rng, config = np.random.default_rng(0), surrogate(options=seed_options(3, "mean"))
    alarms = []
    for variance in (2.0, 0.1):
        result = 0
        for _ in range(200):
            scores = (math.sqrt(variance) * rng.normal(size=(8, 1)) + rng.normal(size=(8, 3))).ravel().tolist()
            runs = [Segment(n, rung=0, epochs=3, state="done", score=score, seeds=3) for n, score in enumerate(scores)]
            result += bool(told(seeds_vary, config, runs=runs))
        alarms.append(result / 200)
    assert alarms[0] <= 0.05 < 0.5 < alarms[1]


def test_epochs_that_go_into_what_is_pruned_are_told() -> None:
    def findings(*pruned: int, scheduler: str = "halving", state: str = "complete") -> list[str]:
        ends = [9, *pruned]
        states = [state, *["pruned"] * len(pruned)]
        trials = [Trial(n, uid=str(n), params={}, state=state) for n, state in enumerate(states)]
        rows = [
            Segment(n, rung=rung, epochs=epochs, state="done", score=0.0)
            for n, end in enumerate(ends)
            for rung, epochs in enumerate((1, 3, 9))
            if epochs <= end
        ]
        return told(spent_on_pruned, surrogate(scheduler=scheduler), trials, rows)

    assert findings(*[3] * 10) == ["77% of all epochs went into trials that were pruned"]  # 30 of 39
    assert findings(*[3] * 9) == []  # 27 of 36 are three quarters, and no more
    assert findings(*[3] * 10, scheduler="adaptive") == []
    assert findings(*[3] * 10, scheduler="pbt") == []  # branches continue from what was pruned
    assert findings(*[3] * 10, state="running") == []  # the best may still come


@pytest.mark.parametrize(
    ("epochs", "cure"),
    [
        ((1, 27, 3), "use fewer rungs (a larger base, such as --epochs 1:27:9), or smaller brackets (--generation)"),
        ((1, 4, 2), "use fewer rungs (a larger base, such as --epochs 1:4:4), or smaller brackets (--generation)"),
        ((1, 3, 3), "use smaller brackets (--generation)"),  # with a single rung, none would be pruned
    ],
)
def test_fewer_rungs_that_a_command_takes_are_proposed(epochs: tuple[int, int, int], cure: str) -> None:
    config = surrogate(scheduler="halving", epochs=epochs)
    trials = [Trial(n, uid=str(n), params={}, state="pruned" if n else "complete") for n in range(99)]
    rows = [Segment(n, 0, 1, "done", 0.0) for n in range(99)]
    [finding] = findings_of(spent_on_pruned, config, trials, rows)
    assert finding.cure == cure
    if "--epochs" in cure:
        text = cure.partition("--epochs ")[2].partition(")")[0]
        low, high, base = parse_epochs(text)
        assert len(surrogate(scheduler="halving", epochs=(low, high, base)).rungs) < len(config.rungs)


def test_configurations_that_a_race_drops_on_a_single_rung_are_no_waste() -> None:
    trials = [Trial(n, uid=str(n), params={}, state="pruned" if n else "complete") for n in range(99)]
    rows = [Segment(n, 0, 1, "done", 0.0) for n in range(99)]
    assert findings_of(spent_on_pruned, surrogate(scheduler="none", epochs=(1, 1, 3)), trials, rows) == []


def test_workers_that_wait_for_most_of_the_time_are_found() -> None:
    def findings(*spans: tuple[float, float], **options: Any) -> list[str]:
        events = [Event(f"t{n}", a, "start", {"owner": f"w{n}", "token": 1}) for n, (a, _) in enumerate(spans)]
        saved = {(f"t{n}", 1): b for n, (_, b) in enumerate(spans)}
        rows: Any = SimpleNamespace(events=events, saved=saved, config=replace(surrogate(), **options))
        return [text for finding in workers_idle(rows) for text in (finding.text, finding.cure)]

    idle = (0.0, 10.0), (0.0, 1.0), (0.0, 1.0)
    text, cure = findings(*idle)
    assert text == "workers waited 60% of the time, while others trained"
    assert cure == "use --scheduler asha, a larger --generation, or fewer --workers"
    assert findings(*idle, scheduler="asha")[1] == "use a larger --generation, or fewer --workers"
    assert findings(*idle, options={"racing": True})[1] == "use a larger --generation, or fewer --workers"
    for scheduler in ("pbt", "confirm"):  # their trials are given
        assert findings(*idle, scheduler=scheduler)[1] == "use fewer --workers"
    assert findings((0.0, 10.0), (0.0, 5.0), (0.0, 1.0)) == []  # 47%
    assert findings((0.0, 4.0), (4.0, 5.0), (9.0, 10.0)) == []  # never two at once
