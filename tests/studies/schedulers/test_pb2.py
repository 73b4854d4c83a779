"""Population based bandits: coordinates, the Gaussian process, and studies that are equal in any order."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rekindle.spaces import Space, categorical, flatten, integer, log_real, near_one, normal, ordinal, real
from rekindle.spaces.quantiles import has_scale, quantile
from rekindle.studies.engine.checked_config import load_task
from rekindle.studies.errors import BadConfig, StoreError
from rekindle.studies.schedulers.pb2 import PB2, check_pb2
from rekindle.studies.schedulers.registry import plan
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.statistics.gaussian_process import GaussianProcess
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.plan import Branch
from rekindle.tasks import load
from simulating import population
from studying import run_by_three, undisturbed

SPACE = Space(lr=log_real(1e-5, 1e-1), gamma=near_one(0.9, 0.9999), width=real(0.0, 1.0), kind=categorical("a", "b"))


def config(members: int = 10, rungs: int = 6, seed: int = 0, **options: Any) -> Config:
    """A configuration of which no task is ever made."""
    options = {"exploit": "truncation", "explore": "pb2", "perturb": ["lr", "gamma", "width", "kind"], **options}
    of = ("ppo", load("ppo").version, {}, seed, SPACE.priors(), {})
    return Config(*of, [1, rungs, 1], [members], members, members, "random", "pbt", options)


@pytest.mark.parametrize(
    "dimension",
    [
        log_real(1e-5, 1e-1),
        near_one(0.9, 0.9999),
        real(-1.0, 3.0),
        real(0.0, 1.0, step=0.1),
        integer(3, 17),
        integer(1, 1000, log=True),
        integer(0, 100, step=10),
        ordinal(16, 32, 64, 128),
        normal(1.0, 2.0),
        normal(0.0, 1.0, log=True),
    ],
)
def test_a_quantile_is_where_its_value_is(dimension: Any) -> None:
    assert has_scale(dimension)
    for u in (0.0, 0.1, 0.5, 0.77, 0.999):
        value = dimension.at(u)
        place = quantile(dimension, value)
        assert 0 <= place < 1
        again = dimension.at(place)
        assert again == pytest.approx(value, rel=1e-9) if isinstance(value, float) else again == value


def test_a_category_has_no_place() -> None:
    assert not has_scale(categorical("a", "b"))
    with pytest.raises(TypeError, match="only a dimension with a scale"):
        quantile(categorical("a", "b"), "a")


def test_the_processfinds_what_makes_scores_rise_and_forgets() -> None:
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.random((160, 2)), np.repeat(np.arange(16.0), 10)])
    values = -((points[:, 0] - np.where(points[:, 2] < 8, 0.2, 0.8)) ** 2)  # what is best moves
    process = GaussianProcess(points, values)
    line = np.column_stack([np.linspace(0, 1, 101), np.full(101, 0.5), np.full(101, 16.0)])
    assert abs(line[process.mean(line).argmax(), 0] - 0.8) < 0.1
    line[:, 2] = 4.0
    assert abs(line[process.mean(line).argmax(), 0] - 0.2) < 0.1


def test_pending_points_take_away_what_could_be_learned_there() -> None:
    points = np.array([[0.1, 0.0], [0.9, 0.0], [0.5, 1.0]])
    process = GaussianProcess(points, np.array([0.0, 1.0, 0.5]))
    at = np.array([[0.3, 2.0], [0.95, 2.0]])
    alone, beside = process.deviation(np.zeros((0, 2)))(at), process.deviation(at[:1])(at)
    assert beside[0] < 0.8 * alone[0]
    assert np.array_equal(process.mean(at), process.mean(at))


def score_of(params: dict[str, Any], before: float, noise: float) -> float:
    return before + 1 - abs(np.log10(params["lr"]) + 3) - 5 * abs(params["width"] - 0.3) + noise


def simulate(config: Config, rng: random.Random) -> tuple[dict[int, Trial], dict[tuple[int, int], Segment]]:
    """A population whose scores follow from hyperparameters, finished in random order, branched some at a time."""
    trials: dict[int, Trial] = {}
    segments: dict[tuple[int, int], Segment] = {}
    seeds = int(config.options.get("seeds", 1))
    while not (step := plan(config, trials.values(), segments.values())).complete:
        for number, state in step.finished:
            trials[number] = replace(trials[number], state=state)
        for number in step.ask or ():
            for n in range(number * seeds, (number + 1) * seeds):
                trials[n] = Trial(n, f"u{n}", flatten(SPACE.sample(number)), {"bracket": 0}, seeds=seeds)
        branches = step.branches[: rng.randint(1, len(step.branches))] if step.branches else []  # and killed
        bandit = PB2(config, trials.values(), segments.values(), step.branches) if branches else None
        for branch in branches:
            assert bandit is not None
            values = bandit.explore(branch, trials[branch.start.number].params)
            attrs = {"member": branch.member, "generation": branch.generation, "parent": branch.start.number}
            trials[branch.number] = Trial(branch.number, f"u{branch.number}", values, attrs, seeds=seeds)
        segments |= {(row.number, row.rung): row for row in step.segments}
        ready = [key for key, row in segments.items() if row.state == "ready"]
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            trial = trials[number]
            origin = (number, rung - 1) if (number, rung - 1) in segments else (trial.attrs.get("parent"), rung - 1)
            before = segments[origin].score if rung else 0.0  # type: ignore[index]
            noise = (number * 7919 + rung * 104729) % 97 / 970
            score = float(score_of(trial.params, before or 0.0, noise))
            segments[number, rung] = replace(segments[number, rung], state="done", score=score)
    return trials, segments


@pytest.mark.parametrize("seeds", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_exploration_does_not_depend_on_the_order_of_rows(seeds: int) -> None:
    one = config(rungs=3, **seed_options(seeds, "mean"))
    trials, segments = simulate(one, random.Random(0))
    assert len(trials) > 10 * seeds
    for seed in range(1, 2):
        assert simulate(one, random.Random(seed)) == (trials, segments)
    for trial in trials.values():
        assert flatten(SPACE.validate(trial.params)) == trial.params
        if "parent" in trial.attrs:
            assert trial.params["kind"] == trials[trial.attrs["parent"]].params["kind"]
    if seeds == 2:
        assert all(trials[2 * n].params == trials[2 * n + 1].params for n in range(len(trials) // 2))
    born = [tuple(trial.params.values()) for trial in trials.values() if "parent" in trial.attrs][::seeds]
    assert len(set(born)) > len(born) / 2  # most keep their distance


@pytest.mark.slow
def test_it_finds_better_hyperparameters_than_random_changes() -> None:
    trials, _ = simulate(config(rungs=9), random.Random(0))
    born = [trial.params for trial in trials.values() if trial.attrs.get("generation", 0) > 4]
    first = [trials[n].params for n in range(10)]

    def loss(params: dict[str, Any]) -> float:
        return float(-score_of(params, -1.0, 0.0))

    assert len(born) >= 8
    assert np.median([loss(trial) for trial in born]) < 0.4 * np.median([loss(trial) for trial in first])


def test_values_that_do_not_go_together_are_chosen_again_or_left_alone() -> None:
    trials = [Trial(n, f"u{n}", flatten(SPACE.sample(n)), {"bracket": 0}) for n in range(4)]
    segments = [Segment(n, 0, 1, "done", float(n)) for n in range(4)]
    branch = Branch(4, 4, segments[3], 0, 1)
    tried: list[float] = []

    def refuse(values: Any) -> None:
        tried.append(values["lr"])
        if len(tried) < 3:
            raise ValueError("no")

    result = PB2(config(4), trials, segments, [branch]).explore(branch, trials[3].params, refuse)
    assert len(set(tried)) == 3
    assert result["lr"] == tried[-1]

    def never(values: Any) -> None:
        raise ValueError("no")

    assert PB2(config(4), trials, segments, [branch]).explore(branch, trials[3].params, never) == trials[3].params


def bandit_population(**options: Any) -> Config:
    return population(members=4, epochs=4, explore="pb2", **options)


def test_any_number_of_workers_trains_the_same_population(sqlite_url: str) -> None:
    assert run_by_three(sqlite_url, bandit_population()) == undisturbed(bandit_population())
    with Store(sqlite_url) as store:
        assert any("parent" in trial.attrs for trial in store.trials("s"))


def test_a_bandit_needs_its_package_and_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bandit_population().options["explore"] == "pb2"
    with pytest.raises(BadConfig, match="a hyperparameter with a scale, but all that is explored are categories"):
        check_pb2(config(perturb=["kind"]))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        BadConfig, match=r"needs scikit-learn, which is not installed: pip install 'rekindle-rl\[pb2\]'"
    ):
        bandit_population()
    with pytest.raises(StoreError, match="the study cannot be resumed here: --explore pb2 needs scikit"):
        load_task(config())
