"""Optuna's samplers by name: equal suggestions in whatever order a study is trained, without side effects."""

from __future__ import annotations

import json
import logging
import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from rekindle.spaces import Space, categorical, flatten, integer, log_real, maybe, near_one, ordinal, real
from rekindle.studies.engine.checked_config import load_task, make_config
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig, StoreError
from rekindle.studies.methods import SAMPLERS
from rekindle.studies.samplers.grid import count_points, grid
from rekindle.studies.samplers.qmc import QMC
from rekindle.studies.samplers.registry import check_sampler, make_sampler, sampler_name
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.schedulers.registry import plan
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.plan import Plan
from rekindle.studies.study.searched import defaults_except
from rekindle.tasks import load

MIXED = Space(
    name=categorical("adam", "sgd", default="adam", structural=True),
    momentum=real(0.0, 0.99, default=0.5, when={"name": "sgd"}),
    lr=log_real(1e-5, 1e-1, default=1e-3),
    gamma=near_one(0.9, 0.9999, default=0.99),
    width=ordinal(16, 32, 64, default=32, structural=True),
    clip=maybe(real(0.1, 1.0), default=None),
)
SMALL = Space(lr=log_real(1e-5, 1e-1), clip=maybe(real(0.1, 1.0)))  # the Gaussian process takes a second for each
FINITE = Space(
    name=categorical("adam", "sgd", default="adam", structural=True),
    momentum=ordinal(0.5, 0.9, when={"name": "sgd"}, structural=True),
    layers=integer(1, 3),
    gamma=real(0.9, 1.0, step=0.05),
)
GRID = Space(lr=log_real(1e-5, 1e-1), layers=integer(1, 100), clip=maybe(ordinal(0.1, 0.2, 0.5)))
SPACES = {"gp": SMALL, "bruteforce": FINITE, "grid": GRID}


def config(sampler: str, **changes: Any) -> Config:
    space = SPACES.get(sampler, MIXED)
    form = {
        "task": "ppo",
        "task_version": load("ppo").version,
        "env": {},
        "seed": 0,
        "space": space.priors(),
        "fixed": {},
    }
    form |= {"epochs": [1, 9, 3], "trials": [4 if sampler == "gp" else 24], "generation": 2 if sampler == "gp" else 6}
    return Config(**(form | {"cohort": 3, "sampler": sampler} | changes))


def score_of(number: int, rung: int) -> float | None:
    return None if number == 4 else float((number * 7919 + rung * 104729) % 1009)


def study(config: Config, rng: random.Random) -> dict[int, dict[str, Any]]:
    """The hyperparameters of all trials of a study whose segments are finished in random order, some at a time."""
    trials: dict[int, Trial] = {}
    segments: dict[tuple[int, int], Segment] = {}
    while not (step := plan(config, trials.values(), segments.values())).complete:
        for number, state in step.finished:
            trials[number] = replace(trials[number], state=state)
        if step.ask is not None:
            for number, values in zip(step.ask, suggest(config, trials.values(), step), strict=True):
                trials[number] = Trial(number, f"u{number}", flatten(values), {"bracket": step.bracket})
        segments |= {(row.number, row.rung): row for row in step.segments}
        ready = sorted(key for key, row in segments.items() if row.state == "ready")
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            value = score_of(number, rung)
            state = "failed" if value is None else "done"
            segments[number, rung] = replace(segments[number, rung], state=state, score=value)
            if value is None:
                trials[number] = replace(trials[number], state="failed")
    return {number: trial.params for number, trial in trials.items()}


BREADTH = ("gp", "nsgaiii", "qmc")


@pytest.mark.parametrize(
    "sampler", [pytest.param(name, marks=pytest.mark.slow if name in BREADTH else ()) for name in sorted(SAMPLERS)]
)
def test_a_study_is_the_same_in_whatever_order_it_is_trained(
    sampler: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with caplog.at_level(logging.WARNING):
            result = [study(config(sampler), random.Random(seed)) for seed in range(1 if sampler == "gp" else 2)]
            again = study(config(sampler), random.Random(7))
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)
    assert all(trials == again for trials in result)
    assert (capfd.readouterr().err, caplog.text) == ("", "")  # no warning escapes
    space = SPACES.get(sampler, MIXED)
    assert all(flatten(space.validate(values)) == values for values in again.values())
    assert study(config(sampler, seed=1), random.Random(7)) != again


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_samplers_that_learn_nothing_read_nothing(sampler: str) -> None:
    class Unread(list[Trial]):
        def __iter__(self) -> Any:
            raise AssertionError("the history was read")

    step = plan(config(sampler), [], [])
    assert len(suggest(config(sampler), Unread(), step)) == 6


def test_quasi_monte_carlo_spreads_over_every_dimension() -> None:
    space = Space(x=real(0.0, 1.0), y=log_real(1e-4, 1.0), kind=categorical("a", "b", "c", "d"))
    one = config("qmc", space=space.priors(), trials=[64], generation=8, cohort=1)
    result = study(one, random.Random(0)).values()
    assert sorted(int(16 * values["x"]) for values in result) == sorted([*range(16)] * 4)
    assert sorted(values["kind"] for values in result) == sorted("abcd" * 16)
    assert {int(values["y"] < 1e-2) for values in result} == {0, 1}


def test_brute_force_tries_everything_once() -> None:
    total = 3 * 3 * (1 + 2)
    result = study(config("bruteforce", trials=[total], epochs=[1, 1, 3]), random.Random(0))
    assert len({tuple(sorted(values.items())) for values in result.values()}) == total


@pytest.mark.parametrize("scheduler", ["none", "halving", "asha", "hyperband", "adaptive"])
def test_brute_force_repeats_no_point_whoever_chose_it(scheduler: str) -> None:
    """Also with ASHA, which asks for trials while others have no result yet."""
    space = Space(width=ordinal(16, 32, 64, 128, default=32), layers=integer(1, 3, default=2))
    known = [{"width": 64, "layers": 1}, {"width": 128, "layers": 3}]
    for seed, first in product(range(3), ([], known)):
        options = {"trials": [12], "generation": 4, "scheduler": scheduler, "options": {"known": first}, "seed": seed}
        result = study(config("bruteforce", space=space.priors(), **options), random.Random(seed))
        assert len({tuple(sorted(values.items())) for values in result.values()}) == 12
        assert [result[number] for number in range(len(first))] == first


def test_brute_force_repeats_no_point_where_a_study_is_extended_before_its_first_result(
    tmp_path: Path, sqlite_url: str
) -> None:
    """ASHA asks for more trials at once, since fewer than a generation are ready."""
    columns = {"param.x": np.arange(8), "steps": np.arange(1, 4), "curves": np.ones((8, 1, 3))}
    np.savez(tmp_path / "table.npz", **columns)
    options: dict[str, Any] = {"epochs": (1, 3), "scheduler": "asha", "sampler": "bruteforce", "trials": 3}
    with Store(sqlite_url) as store:
        start_study(store, "s", study_config(load("tabular"), f"{tmp_path}/table.npz", **options))
        runner = StudyRunner(store, "s")
        runner.advance()
        Steering(store, "s").extend(8)
        runner.advance()
        assert sorted(trial.params["x"] for trial in store.trials("s")) == [*range(8)]


def test_brute_force_goes_on_in_a_changed_space() -> None:
    space = Space(width=ordinal(16, 32, 64, 128, default=32), layers=integer(1, 2, default=2))
    narrow, wide = {"width": "ordinal([64, 128], default_value=64)"}, {"layers": "uniform(1, 3, discrete=True)"}
    one = config("bruteforce", space=space.priors(), trials=[2, 7], generation=2)
    options = {"spaces": [[2, narrow], [2, wide]]}
    first = [{"width": 64, "layers": 1}, {"width": 16, "layers": 2}]
    rows = [Trial(number, str(number), values, state="complete") for number, values in enumerate(first)]
    seen = {number: [(1, 0.0)] for number in range(2)}
    result = suggest(replace(one, options=options), rows, Plan(ask=range(2, 7), bracket=1, seen=seen))
    points = {(values["width"], values["layers"]) for values in result}
    assert points == set(product((64, 128), (1, 2, 3))) - {(64, 1)}


@pytest.mark.parametrize("prior", ["uniform(1, 1000000000, discrete=True)", "uniform(0, 1, step=1e-8)"])
def test_brute_force_refuses_a_range_that_it_cannot_list(prior: str) -> None:
    with pytest.raises(
        BadConfig, match=r"at most 100,000 values of a range, but x has (1,0|1)00,000,00\d; give a step"
    ):
        check_sampler(config("bruteforce", space={"x": prior}))


def test_brute_force_has_no_more_trials_than_points(tmp_path: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    np.savez(
        tmp_path / "table.npz", **{"param.x": np.arange(5), "steps": np.arange(1, 3), "curves": np.ones((5, 1, 2))}
    )
    url = f"sqlite:///{tmp_path}/s.db"
    command = ["tune", "tabular", f"{tmp_path}/table.npz", "--sampler", "bruteforce", "--storage", url, "--study", "s"]
    status, _, errors = cli(*command, "--trials", "6")
    assert status == 2
    assert "tries each point once, but the space has 5 and there are to be 6 trials; take --trials 5 at most" in errors
    status, output, _ = cli(*command, "--workers", "1", "--json")
    trials = json.loads(output)["trials"]
    assert (status, sorted(trial["hyperparameters"]["x"] for trial in trials)) == (0, [0, 1, 2, 3, 4])
    assert "more --trials" not in cli(*command, "--workers", "1")[2]  # nothing is left to extend it by
    status, _, errors = cli("extend", "s", "--trials", "6", "--storage", url)
    assert (status, "take --trials 5 at most" in errors) == (2, True)


@pytest.mark.parametrize(("most", "points"), [(100, 54), (54, 54), (7, 7)])
def test_points_of_a_finite_space_are_counted_as_far_as_is_asked(most: int, points: int) -> None:
    space = Space(**FINITE, clip=maybe(ordinal(0.1)))  # 3 * 3 * (1 + 2) * (1 + 1)
    assert count_points(space, most) == points
    wide = Space(x=integer(1, 10**9), y=integer(1, 10**9))
    assert count_points(wide, most) == most


def test_a_grid_has_the_ends_of_ranges_and_only_what_applies() -> None:
    space = Space(
        name=categorical("adam", "sgd", default="adam", structural=True),
        momentum=real(0.0, 0.9, when={"name": "sgd"}),
        lr=log_real(1e-5, 1e-1),
        gamma=near_one(0.9, 0.999),
        layers=integer(1, 9),
        steps=integer(2, 3),
        clip=maybe(near_one(0.9, 0.99)),
    )
    total = (1 + 3) * 3 * 3 * 3 * 2 * (1 + 3)
    one = config("grid", space=space.priors(), trials=[total], generation=total, epochs=[1, 1, 3])
    one = replace(one, options={"grid_points": 3})
    check_sampler(one)
    result = list(study(one, random.Random(0)).values())
    assert len({tuple(sorted(values.items())) for values in result}) == total == len(grid(one))

    def values(name: str) -> list[Any]:
        return sorted({values[name] for values in result if values.get(name) is not None})

    assert values("lr") == pytest.approx([1e-5, 1e-3, 1e-1])
    assert values("gamma") == pytest.approx([0.9, 0.99, 0.999])
    assert (values("layers"), values("steps")) == ([1, 5, 9], [2, 3])
    assert values("clip") == pytest.approx([0.9, 1 - math.sqrt(0.1 * 0.01), 0.99])
    assert values("momentum") == pytest.approx([0.0, 0.45, 0.9])


def test_a_study_is_as_large_as_its_grid() -> None:
    ppo = load("ppo")
    fixed = defaults_except(ppo("CartPole-v1").get_space(), ["optimizer.lr", "model.activation"])
    make = partial(make_config, ppo, "CartPole-v1", epochs=[1], fixed=fixed, sampler="GridSampler")
    assert make(trials=None).trials == [5 * 4]
    assert make(trials=None, options={"grid_points": 2}).trials == [2 * 4]
    assert make(trials=7).trials == [7]
    with pytest.raises(BadConfig, match="it has 20 points for 21 trials; leave --trials out"):
        make(trials=21)
    with pytest.raises(BadConfig, match="--grid-points must be at least 2 and at most 10,000, but got 1"):
        make(trials=None, options={"grid_points": 1})
    with pytest.raises(
        BadConfig, match=r"at most 10,000 points, but .*5 of optimizer\.lr, .* others make more; search"
    ):
        make(trials=None, fixed={})
    with pytest.raises(BadConfig, match="the sampler is random; add --sampler grid"):
        make(trials=4, sampler="random", options={"grid_points": 2})


def test_cma_es_closes_in_on_what_is_best() -> None:
    space = Space(x=real(-1.0, 1.0), lr=log_real(1e-6, 1.0))
    one = config("cmaes", space=space.priors(), trials=[96], generation=8, epochs=[1, 1, 3])
    trials: dict[int, Trial] = {}
    segments: list[Segment] = []
    while (step := plan(one, trials.values(), segments)).ask is not None:
        for number, values in zip(step.ask, suggest(one, trials.values(), step), strict=True):
            trials[number] = Trial(number, f"u{number}", values)
            score = -((values["x"] - 0.7) ** 2) - abs(values["lr"] - 1e-3)
            segments.append(Segment(number, 0, 1, "done", score))
    first, last = ([abs(trials[n].params["x"] - 0.7) for n in numbers] for numbers in (range(8, 24), range(80, 96)))
    assert sum(last) < 0.2 * sum(first)


def test_a_generation_is_a_bracket_of_the_scheduler() -> None:
    one = config("nsgaii", scheduler="hyperband", trials=[40])
    result = study(one, random.Random(0))
    assert study(one, random.Random(1)) == result
    assert study(replace(one, seed=1), random.Random(0)) != result


def test_genetic_samplers_cross_the_elite_of_all_brackets_before() -> None:
    space = Space(**{name: ordinal(*range(1000)) for name in "abcdefgh"})
    one = config("nsgaii", space=space.priors(), trials=[24], generation=6, cohort=1, epochs=[1, 1, 3])
    result = study(one, random.Random(0))
    ranked = sorted((n for n in range(6) if n != 4), key=lambda n: -(score_of(n, 0) or 0.0))
    known = {name: {result[n][name] for n in ranked} for name in "abcdefgh"}
    inherited = [result[n][name] in known[name] for n in range(6, 12) for name in "ah"]
    assert sum(inherited) >= 8  # and one in eight mutates


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tpe", "tpe"),
        ("TPESampler", "tpe"),
        ("CMA-ES", "cmaes"),
        ("CmaEsSampler", "cmaes"),
        ("Brute_Force", "bruteforce"),
        ("NSGAIISampler", "nsgaii"),
        ("GPSampler", "gp"),
    ],
)
def test_a_sampler_has_the_name_that_optuna_gives_it(text: str, name: str) -> None:
    assert sampler_name(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpp", "sampler must be one of tpe, random, .*, but got 'tpp'; did you mean tpe?"),
        ("PartialFixedSampler", "--set NAME=VALUE"),
    ],
)
def test_other_names_are_refused_with_the_nearest(text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        sampler_name(text)


def test_every_sampler_of_optuna_has_an_answer() -> None:
    classes = [name for name in optuna.samplers.__all__ if name.endswith("Sampler") and not name.startswith("Base")]
    for name in classes:
        if name == "PartialFixedSampler":
            continue
        assert isinstance(make_sampler(config(sampler_name(name)), 8), optuna.samplers.BaseSampler), name


def test_limits_of_a_sampler_are_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BadConfig, match=r"finite space, but .*optimizer\.lr, .* gamma, .*clip_value, .* may take any value"
    ):
        make_config(load("ppo"), "CartPole-v1", trials=4, epochs=[1], sampler="bruteforce")
    with pytest.raises(BadConfig, match="at least 2, but --generation is 1"):
        make_config(load("ppo"), "CartPole-v1", trials=4, epochs=[1], sampler="NSGA-II", generation=1)
    check_sampler(config("cmaes"))
    load_task(config("cmaes"))
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(
        BadConfig, match=r"needs the package cmaes, which is not installed: pip install 'rekindle-rl\[cma"
    ):
        make_config(load("ppo"), "CartPole-v1", trials=4, epochs=[1], sampler="cmaes")
    with pytest.raises(StoreError, match=r"the study cannot be resumed here: sampler cmaes needs"):
        load_task(config("cmaes"))
    with pytest.raises(StoreError, match=r"sampler must be one of tpe, .* but got 'annealing'"):
        load_task(config("annealing"))


@pytest.mark.parametrize("sampler", ["gp", "qmc"])
def test_a_sampler_without_its_package_is_refused_before_a_study_is_made(
    sampler: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    database = tmp_path / "s.db"
    command = ["tune", "ppo", "CartPole-v1", "--sampler", sampler, "--storage", f"sqlite:///{database}"]
    status, _, errors = cli(*command)
    assert status == 2
    assert f"sampler {sampler} needs the package scipy" in errors
    assert f"pip install 'rekindle-rl[{sampler}]'" in errors
    assert not database.exists()


def test_points_with_choices_need_a_new_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna, "__version__", "4.9.1")
    QMC.check(config("qmc", space=Space(lr=real(0, 1)).priors()))
    with pytest.raises(BadConfig, match="qmc needs Optuna 5 or newer for choices, but this is 4"):
        QMC.check(config("qmc", space=Space(depth=categorical(1, 2)).priors()))
