"""Racing: the test against textbook figures and simulations, races in any order, and whole studies."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_config, make_population
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.study_views import study_json, study_view
from rekindle.studies.errors import BadConfig
from rekindle.studies.schedulers.racing import at_once, run_race
from rekindle.studies.schedulers.registry import plan
from rekindle.studies.schedulers.seeds import collapse, seed_options
from rekindle.studies.statistics.friedman import LEVEL, eliminated
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.objectives import objective_options
from rekindle.studies.upkeep.fsck import check
from rekindle.tasks import load
from scipy import stats
from studying import run, run_by_three, tiny, undisturbed


def test_a_significantly_worse_configuration_is_dropped() -> None:
    rng = random.Random(0)
    for _ in range(100):
        k, n = rng.randint(3, 8), rng.randint(2, 8)
        scores = {i: [round(rng.gauss(-i / 2, 1), 1) for _ in range(n)] for i in range(k)}
        friedman = stats.friedmanchisquare(*scores.values())
        assert bool(eliminated(scores, 1)) <= bool(friedman.pvalue < LEVEL)
        ranks = [stats.rankdata([-scores[i][s] for i in scores]) for s in range(n)]
        sums = [sum(block[i] for block in ranks) for i in range(k)]
        squares, freedom = sum(float(r) ** 2 for block in ranks for r in block), (n - 1) * (k - 1)
        least = stats.t.ppf(1 - LEVEL / 2, freedom) * (2 * (n * squares - sum(r**2 for r in sums)) / freedom) ** 0.5
        for places in (1, 2):
            last = sorted(sums)[places - 1]
            out = {i for i in range(k) if sums[i] - last > least} if friedman.pvalue < LEVEL else set()
            assert eliminated(scores, places) == out
            assert len(out) <= k - places


def test_few_seeds_and_equal_scores_decide_nothing() -> None:
    assert eliminated({i: [1.0, 1.0, 1.0] for i in range(5)}, 1) == set()
    assert eliminated({0: [2.0, 2.0], 1: [1.0, 1.0]}, 1) == set()
    assert eliminated({0: [2.0] * 6, 1: [1.0] * 6}, 1) == {1}
    assert eliminated({0: [2.0] * 6, 1: [1.0] * 5 + [3.0]}, 1) == set()
    assert eliminated({i: [float(-i)] * 4 for i in range(3)}, 3) == set()
    assert eliminated({i: [float(-i)] * 4 for i in range(3)}, 2) == {2}
    assert eliminated({i: [float(-i)] * 4 for i in range(3)}, 1) == {1, 2}


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_the_best_is_hardly_ever_lost_and_the_rest_pay_for_it(spread: float) -> None:
    rng = random.Random(1)
    lost, spared, studies = 0, 0, 200
    for _ in range(studies):
        means = [rng.gauss(0, spread) for _ in range(8)]
        scores = {i: [rng.gauss(mean, 1) for _ in range(6)] for i, mean in enumerate(means)}
        alive = dict(scores)
        for trained in range(2, 6):
            for i in eliminated({i: mine[:trained] for i, mine in alive.items()}, 1):
                del alive[i]
                spared += 6 - trained
        lost += max(scores, key=lambda i: statistics.fmean(scores[i])) not in alive
    assert lost <= 0.02 * studies
    share = spared / (studies * 8 * 6)
    assert (share < 0.03, share > 0.15, share > 0.35) == (not spread, spread >= 1, spread >= 4)


def done(number: int, score: float) -> Segment:
    return Segment(number, 0, 1, "done", score)


def test_a_race_adds_seeds_one_by_one_and_keeps_its_decisions() -> None:
    rows = {n: {s: done(0, -10.0 * n + s) for s in range(2)} for n in range(10)}
    race = run_race(rows, 4, 1)
    assert race.eliminated == set(range(1, 10))  # ten that agree twice
    assert (race.wanted, race.over) == ([(0, 2)], False)
    rows[0][2] = replace(done(0, 0.0), state="ready")
    assert run_race(rows, 4, 1) == replace(race, wanted=[])
    rows[0][2] = replace(done(0, 0.0), state="failed", score=None)
    assert run_race(rows, 4, 1) == replace(race, wanted=[], over=True)
    few = {n: {s: done(0, float(s)) for s in range(2)} for n in range(3)}
    few[1][1] = replace(done(0, 0.0), state="failed", score=None)
    assert run_race(few, 3, 1).wanted == [(0, 2), (2, 2)]
    del few[2][1]
    assert run_race(few, 3, 1).wanted == [(2, 1)]


def config(scheduler: str = "halving", seeds: int = 5, trials: int = 20) -> Config:
    """A configuration of which only the schedule is used."""
    epochs = [9, 9, 3] if scheduler == "none" else [1, 9, 3]
    options = seed_options(seeds, "mean", racing=True)
    return Config("ppo", 1, {}, 0, {}, {}, epochs, [trials], 10, 10, "random", scheduler, options)


def simulate(
    config: Config, rng: random.Random, score: Callable[[int, int], float | None]
) -> tuple[dict[int, Trial], dict[tuple[int, int], Segment]]:
    """Carries rows forward to the end, finishing some ready segments at a time in random order."""
    trials: dict[int, Trial] = {}
    segments: dict[tuple[int, int], Segment] = {}
    while not (step := plan(config, trials.values(), segments.values())).complete:
        for number, state in step.finished:
            assert trials[number].state == "running"
            trials[number] = replace(trials[number], state=state)
        for number in step.ask or ():
            for n in range(5 * number, 5 * number + 5):
                trials[n] = Trial(n, f"u{n}", {}, seeds=5)
                if n % 5 < at_once(config):
                    segments[n, step.rung] = Segment(n, step.rung, config.rungs[step.rung], seeds=5)
        segments |= {(row.number, row.rung): row for row in step.segments}
        ready = [key for key, row in segments.items() if row.state == "ready"]
        assert ready or step, "the schedule is stuck"
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            value = score(number, rung)
            state = "failed" if value is None else "done"
            segments[number, rung] = replace(segments[number, rung], state=state, score=value)
            if value is None and trials[number].state == "running":
                trials[number] = replace(trials[number], state="failed")
    return trials, segments


def noisy(number: int, rung: int) -> float | None:
    if (number, rung) in ((3, 0), (12, 1), (37, 0), (44, 0)):
        return None
    return 10.0 * (number // 5 * 7 % 20) + (number * 7919 + rung * 104729) % 97 + 5 * (number % 5)


@pytest.mark.parametrize("scheduler", ["none", "halving", "hyperband"])
def test_a_race_is_the_same_in_whatever_order_it_is_run(scheduler: str) -> None:
    expected = simulate(config(scheduler), random.Random(0), noisy)
    for seed in range(1, 5):
        assert simulate(config(scheduler), random.Random(seed), noisy) == expected
    trials, segments = expected
    assert all(row.state != "ready" for row in segments.values())
    assert "running" not in {trial.state for trial in trials.values()}
    assert len({number for number, _ in segments}) < 20 * 5  # some were never trained
    # whoever is carried on from a rung lost no race on it
    for (number, rung), row in segments.items():
        if rung and row.state == "done" and (number, rung - 1) in segments:
            mine = [n for n in range(5 * (number // 5), 5 * (number // 5) + 5) if (n, rung - 1) in segments]
            assert len(mine) == 5


def test_without_anything_to_tell_apart_all_seeds_are_trained() -> None:
    trials, segments = simulate(config("none"), random.Random(0), lambda number, rung: 1.0)
    assert len(segments) == len(trials) == 100
    assert {trial.state for trial in trials.values()} == {"complete"}


def test_samplers_and_readers_see_the_seeds_that_were_trained() -> None:
    raced = config("none", trials=30)
    trials, segments = simulate(raced, random.Random(0), lambda n, rung: float(100 * (n // 5 % 10) + n % 5))
    step = plan(replace(raced, sampler="tpe", trials=[40]), trials.values(), segments.values())
    assert step.ask == range(30, 40)
    _, rows = collapse(raced, trials.values(), segments.values())
    assert step.seen == {row.number: [(9, row.score)] for row in rows}
    assert [row.score for row in rows[8:10]] == [800.5, 902.0]  # two seeds, and five
    states = {number: trials[5 * number].state for number in range(10)}
    assert states == {**dict.fromkeys(range(9), "pruned"), 9: "complete"}


def raced(**options: Any) -> Config:
    racing = seed_options(4, "mean", racing=True)
    known = {"generation": 6, "cohort": 4, "sampler": "random", "fixed": {"noise": 1.0}, **options}
    return make_config(
        load("surrogate"), "CartPole-v1", **{"trials": 6, "epochs": (1, 4, 2), "options": racing, **known}
    )


@pytest.mark.parametrize(
    "options",
    [{"epochs": (1,), "scheduler": "none"}, pytest.param({"epochs": (1, 2, 2)}, marks=pytest.mark.slow)],
    ids=["one rung", "two rungs"],
)
def test_any_number_of_workers_races_the_same(sqlite_url: str, options: dict[str, Any]) -> None:
    config = raced(**options)
    assert run_by_three(sqlite_url, config) == undisturbed(config)
    with Store(sqlite_url) as store:
        assert check(store) == []
        shown, view = study_json(store, "s"), study_view(store, "s")
    trained = [sum(seed["epochs"] > 0 for seed in trial["seeds"]) for trial in shown["trials"]]
    assert set(trained) <= {2, 3, 4}
    assert sum(trained) < 6 * 4
    longest = [trial for trial in shown["trials"] if trial["epochs"] == shown["best"]["epochs"]]
    assert [seed["epochs"] for seed in shown["best"]["seeds"]] == [shown["best"]["epochs"]] * 4
    assert view.best == rank(view.trials)[0]
    assert shown["best"]["return"] == max(t["return"] for t in longest if all(e["epochs"] for e in t["seeds"]))
    assert shown["spared"] == sum(4 - n for n in trained) + sum(
        seed["epochs"] not in (0, trial["epochs"]) for trial in shown["trials"] for seed in trial["seeds"]
    )


@pytest.mark.slow
def test_the_command_line_races_and_says_what_it_spared(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = raced(epochs=(1,), scheduler="none")
    run(sqlite_url, config)
    command = [
        "tune",
        "surrogate",
        "CartPole-v1",
        "--study",
        "s",
        "--trials",
        "6",
        "--epochs",
        "1",
        "--generation",
        "6",
    ]
    command += ["--cohort", "4", "--scheduler", "none", "--sampler", "random", "--seeds", "4", "--racing"]
    command += ["--storage", sqlite_url, "--set", "noise=1.0"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert main(["trials", "s", "--storage", sqlite_url, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["spared"] > 0
    assert f"racing spared {output['spared']} of 24 trainings" in said


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_race_needs_seeds_to_save(seeds: int) -> None:
    with pytest.raises(BadConfig, match=f"saves seeds after the first 2, but --seeds is {seeds}"):
        seed_options(seeds, "mean", racing=True)


def test_a_study_that_cannot_race_is_refused() -> None:
    racing = seed_options(3, "mean", racing=True)
    with pytest.raises(
        BadConfig, match="wait for each other, as with --scheduler halving, hyperband, none, but it is asha"
    ):
        make_config(load("ppo"), "CartPole-v1", trials=4, epochs=[1, 9], scheduler="asha", options=racing)
    with pytest.raises(BadConfig, match="by one objective, but got several"):
        tiny(options=racing | objective_options(["return", "model_size"]))
    with pytest.raises(BadConfig, match="a population trains all its members to the end"):
        make_population(load("ppo"), "CartPole-v1", epochs=4, **racing)


def test_configurations_that_are_extended_race_among_their_own() -> None:
    first = config("none", trials=10)
    more = replace(first, trials=[10, 20])
    one = simulate(more, random.Random(0), noisy)
    trials, segments = simulate(first, random.Random(1), noisy)
    assert {key: row for key, row in one[1].items() if key[0] < 50} == segments
    assert list(itertools.islice(one[0].items(), 50)) == list(trials.items())
