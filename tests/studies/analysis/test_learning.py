"""Studies that learn from earlier ones: copied results, choices, and detection of misleading sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.studies.analysis import learning
from rekindle.studies.analysis.learning import source_of, with_learned
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig, UnknownStudy
from rekindle.studies.samplers.learned import UNTIL, _Expert, _places, follows
from rekindle.studies.samplers.registry import LEARNED
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.plan import Plan
from studying import bits, surrogate, tiny, work

ROWS = 300
RANDOM: dict[str, Any] = {
    "scheduler": "none",
    "sampler": "random",
    "epochs": 1,
    "cohort": 16,
    "generation": 16,
    "progress": False,
}


def table(path: Path, best: float = 0.8) -> str:
    """A table whose result falls with the distance of a from its best; b says nothing."""
    a, b = np.random.default_rng(0).uniform(0, 1, (2, ROWS))
    curves = -np.abs(a - best)[:, None, None]
    np.savez(path, **{"param.a": a, "param.b": b, "curves": curves, "steps": np.array([1.0])})
    return str(path)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The URL of two finished studies, old and twin, and their table."""
    folder = tmp_path_factory.mktemp("earlier")
    url, path = f"sqlite:///{folder / 'old.db'}", table(folder / "old.npz")
    for name, seed in (("old", 0), ("twin", 1)):
        rekindle.tune("tabular", path, storage=url, study=name, trials=16, seed=seed, **RANDOM)
    return url, path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "tune: learn_from is a text or a list of texts, but got 3"),
        (None, "tune: learn_from is a text or a list of texts, but got None"),
        (b"old", "tune: learn_from is a text or a list of texts, but got b'old'"),
        (["old", 3], "tune: learn_from is a text or a list of texts, but got ['old', 3]"),
        ("none", "a source of --learn-from is a study, or URL#STUDY, but there is no study 'none'"),
    ],
)
def test_a_source_that_is_no_name_is_refused(sqlite_url: str, given: Any, message: str) -> None:
    with pytest.raises((BadConfig, UnknownStudy), match=f"^{re.escape(message)}"):
        rekindle.tune("surrogate", storage=sqlite_url, trials=2, learn_from=given, **RANDOM)


def test_the_best_of_an_earlier_study_come_first_and_a_rerun_needs_no_source(
    earlier: tuple[str, str], tmp_path: Path
) -> None:
    old, path = earlier
    options: dict[str, Any] = {**RANDOM, "generation": 4, "study": "new", "learn_from": [f"{old}#old", f"{old}#twin"]}
    url = f"sqlite:///{tmp_path / 'new.db'}"
    study = rekindle.tune("tabular", path, storage=url, trials=8, **options)
    led = [study.trials[n].hyperparameters["a"] for n in (0, 2, 3, 4)]
    assert all(abs(a - 0.8) < 0.15 for a in led)
    assert len(set(led)) == 4
    assert study.trials[1].hyperparameters["a"] == pytest.approx(0.5, abs=0.05)  # the defaults
    Path(old.removeprefix("sqlite:///")).rename(tmp_path / "gone.db")
    try:
        again = rekindle.tune("tabular", path, storage=url, trials=12, **options)
        assert len(again.trials) == 12
        without = rekindle.tune("tabular", path, storage=url, trials=12, **{**options, "learn_from": []})
        assert [trial.digest for trial in without.trials] == [trial.digest for trial in again.trials]
    finally:
        (tmp_path / "gone.db").rename(old.removeprefix("sqlite:///"))


@pytest.mark.slow
def test_three_workers_make_the_same_study_as_one(earlier: tuple[str, str], tmp_path: Path) -> None:
    old, path = earlier
    results = []
    for workers in (1, 3):
        url = f"sqlite:///{tmp_path / f'{workers}.db'}"
        with Store(url) as store:
            config = config_of(path, trials=12, generation=4)
            store.change_study("s", lambda _, c=config, s=store: with_learned(s, "", c, [f"{old}#old"]).to_json())
            work(url, workers)
            results.append(bits(store))
    assert results[0] == results[1]


def config_of(path: str, **options: Any) -> Config:
    return study_config(rekindle.tasks.load("tabular"), path, **{"epochs": 1, "scheduler": "none", **options})


def search(path: str, trials: int, order: Callable[[dict[str, float]], float]) -> tuple[list[float], list[bool]]:
    """The distances of a study's trials from the best, and which of them a source in this order chose."""
    random = np.random.default_rng(5).uniform(0, 1, (48, 2)).tolist()
    ranked = sorted(({"a": a, "b": b} for a, b in random), key=order)
    config = config_of(path, trials=trials, generation=1, sampler="random")
    alone = config_of(path, trials=trials, generation=1, sampler="random")
    config.options["learned"] = [source_of("s", ranked)]  # type: ignore[index]
    rows: list[Trial] = []
    led = []
    seen: dict[int, list[tuple[int, float]]] = {}
    for number in range(trials):
        plan = Plan(ask=range(number, number + 1), seen=dict(seen))
        values = suggest(config, rows, plan)[0]
        assert values == suggest(config, rows, plan)[0]
        led.append(values != suggest(alone, rows, plan)[0])
        rows.append(Trial(number, "", values))
        seen[number] = [(1, -abs(values["a"] - 0.8))]
    return [-scores[0][1] for scores in seen.values()], led


def test_a_source_that_misleads_is_believed_the_other_way_round(earlier: tuple[str, str]) -> None:
    good, led = search(earlier[1], 16, lambda values: abs(values["a"] - 0.8))
    assert min(good[:3]) < 0.03
    assert sum(led) > 4
    bad, misled = search(earlier[1], 16, lambda values: -abs(values["a"] - 0.8))
    assert sum(misled[:5]) >= 3  # it is believed at first
    assert min(bad[:5]) > 0.2
    assert min(bad[8:]) < 0.03
    _, followed = search(earlier[1], 32, lambda values: values["b"])  # which has no effect here
    assert sum(followed[:5]) >= 3
    assert sum(followed[16:]) <= 4


def test_a_source_with_some_of_the_hyperparameters_is_tried_once(earlier: tuple[str, str]) -> None:
    config = config_of(earlier[1])
    told = [{"a": place} for place in (0.2, 0.4, 0.6)] * 4
    config.options["learned"] = [source_of("s", told)]  # type: ignore[index]
    trials: list[Trial] = []
    for number in range(4):
        seen = {n: [(1, 0.0)] for n in range(number)}
        trials.append(Trial(number, "", suggest(config, trials, Plan(ask=range(number, number + 1), seen=seen))[0], {}))
    tried = [(trial.params["a"], trial.params["b"]) for trial in trials]
    assert len(set(tried)) == 4


def test_values_that_the_space_does_not_have_are_never_tried() -> None:
    config = surrogate(4, scheduler="none", sampler="random")
    ordinal, ranges = "width", {"lr": 1e-3, "gamma": 0.99}
    told = [{ordinal: width, **ranges} for width in (48, 64, 96, 32, 48, 16, 96, 128)]  # 48 and 96 are the best
    config.options["learned"] = [source_of("s", told)]  # type: ignore[index]
    trials: list[Trial] = []
    for number in range(4):
        seen = {n: [(1, 0.0)] for n in range(number)}
        trials.append(Trial(number, "", suggest(config, trials, Plan(ask=range(number, number + 1), seen=seen))[0], {}))
    assert {trial.params[ordinal] for trial in trials} <= {16, 32, 64, 128}
    assert any({name: trial.params[name] for name in ranges} == ranges for trial in trials)  # others of the source are


def test_every_fourth_trial_is_the_samplers_own_and_few_follow_before_a_result() -> None:
    config = tiny(options={"learned": [source_of("s", [{"gamma": 0.9}] * 8)]})
    assert [follows(config, n, 9) for n in range(6)] == [True, False, True, True, True, False]
    assert not follows(config, UNTIL, 9)
    assert [n for n in range(12) if follows(config, n, 0)] == [0, 2, 3, 4]
    assert not follows(tiny(), 0, 9)


def test_the_best_half_and_an_even_part_of_the_others_are_copied() -> None:
    result = source_of("s", [{"a": n} for n in range(1000)])
    places = [values["a"] for values in result["values"]]
    assert places[:32] == list(range(32))
    assert len(places) == len(set(places)) == learning.MOST
    assert places[-1] > 950
    assert result["scores"] == sorted(result["scores"], reverse=True)
    assert len(source_of("s", [{"a": 1}] * 9)["values"]) == 9


def test_an_invalid_source_is_reported_in_one_line(
    earlier: tuple[str, str], cli: Callable[..., Any], tmp_path: Path
) -> None:
    old, path = earlier
    rekindle.tune("tabular", path, storage=old, study="short", trials=4, **RANDOM)
    here = f"sqlite:///{tmp_path / 'here.db'}"
    for sources, more, message in (
        (["short"], [], "at least 8 configurations with a result, but short has 4"),
        (["none"], [], "there is no study 'none'"),
        (["old", "old"], [], "named once, but old and old are one; leave one out"),
        (["old", f"{old}#old"], [], f"named once, but old and {old}#old are one; leave one out"),
        (["old"], ["--set", "a=0.5", "--set", "b=0.5"], "that a study searches, but wrong searches none; leave it out"),
        ([f"{here}#old"], [], "there is no database"),
        (["old"], ["--sampler", "grid"], "a grid has its own trials"),
        (["old"], ["--objective", "return_median"], "its own objective, return_median, but old has return"),
    ):
        options = [word for text in sources for word in ("--learn-from", text)]
        command = ["create", "tabular", path, "--epochs", "1", "--study", "wrong", "--storage", old]
        status, _, errors = cli(*command, *options, *more)
        assert (status, message in errors, errors.count("\n")) == (2, True, 1), errors
    with Store(old) as store:
        with pytest.raises(BadConfig, match="of its own task, ppo, but old trains tabular"):
            with_learned(store, "wrong", tiny(), ["old"])
        np.savez(tmp_path / "other.npz", **{"param.z": np.arange(9.0), "curves": np.ones((9, 1, 1)), "steps": [1.0]})
        with pytest.raises(BadConfig, match="different values of what the study searches, such as z, but old has none"):
            with_learned(store, "wrong", config_of(str(tmp_path / "other.npz")), ["old"])
        assert "wrong" not in [study.name for study in store.studies()]
        learned = with_learned(store, "n", config_of(path), ["old"])
        store.change_study("n", lambda _: learned.to_json())
        with pytest.raises(BadConfig, match="the sources it was created with, old, but --learn-from names twin"):
            with_learned(store, "n", config_of(path), ["twin"])


def test_repeats_of_a_source_are_no_further_configurations(earlier: tuple[str, str], tmp_path: Path) -> None:
    _, path = earlier
    options: dict[str, Any] = {**RANDOM, "scheduler": "adaptive", "epochs": 1, "generation": 4, "cohort": 1}
    with Store(f"sqlite:///{tmp_path / 'repeated.db'}") as store:
        for trials in (9, 10):
            study = rekindle.tune(
                "tabular", path, storage=store, study=f"s{trials}", trials=trials, repeats=2, **options
            )
            assert sum(trial.repeats is not None for trial in study_view(store, study.name).trials) == 2
        with pytest.raises(BadConfig, match="at least 8 configurations with a result, but s9 has 7"):
            with_learned(store, "n", config_of(path), ["s9"])
        [source] = with_learned(store, "n", config_of(path), ["s10"]).options[LEARNED]
        assert len(source["values"]) == len({values["a"] for values in source["values"]}) == 8


def test_a_source_tells_of_interactions() -> None:
    """The best value of one hyperparameter is that of the other; either alone says nothing."""
    random = np.random.default_rng(3)
    points, others = random.uniform(0, 1, (64, 2)), random.uniform(0, 1, (200, 2))
    points = points[np.argsort(-np.abs(points[:, 0] - points[:, 1]))]  # from worst to best
    predicted = _Expert(points, _places(len(points))).predict(others)
    assert np.corrcoef(predicted, -np.abs(others[:, 0] - others[:, 1]))[0, 1] > 0.6
