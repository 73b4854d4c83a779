"""Several seeds: aggregates by arithmetic, schedules of configurations, and whole studies of replicates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.errors import BadConfig
from rekindle.studies.schedulers.registry import plan
from rekindle.studies.schedulers.registry import scheduler as scheduler_of
from rekindle.studies.schedulers.seeds import collapse, seed_options
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.objectives import AGGREGATES, iqm, top_quartile
from rekindle.tasks import load
from simulating import simulate
from studying import TINY, run, run_by_three, tiny, undisturbed

MANY = seed_options(3, "median")


def test_aggregates() -> None:
    scores = [8.0, 1.0, 100.0, 4.0, 2.0, 3.0, 7.0, -50.0]
    assert AGGREGATES["mean"](scores) == 75 / 8
    assert AGGREGATES["median"](scores) == 3.5
    assert iqm(scores) == (2 + 3 + 4 + 7) / 4
    assert top_quartile(scores) == (100 + 8) / 2
    assert [aggregate([5.0]) for aggregate in AGGREGATES.values()] == [5.0] * 4
    assert iqm([1.0, 2.0, 9.0]) == 4.0
    assert top_quartile([1.0, 2.0, 9.0]) == 9.0


@pytest.mark.parametrize(("seeds", "aggregate", "message"), [(0, "mean", "seeds must be"), (2, "iqr", "mean iqm|iqm")])
def test_options_that_make_no_sense_are_refused(seeds: int, aggregate: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        seed_options(seeds, aggregate)
    assert seed_options(1, "mean") == {}


def config(scheduler: str = "halving", seeds: int = 3) -> Config:
    """A configuration of which only the schedule is used: six members, or six trials in one bracket."""
    epochs = [1, 3, 1] if scheduler == "pbt" else [1, 9, 3]
    options = {"exploit": "truncation", "explore": "perturb", "perturb": [], **seed_options(seeds, "mean")}
    return Config("ppo", 1, {}, 0, {}, {}, epochs, [6], 6, 6, "random", scheduler, options)


@pytest.mark.parametrize("scheduler", ["halving", "hyperband", "pbt"])
def test_configurations_are_scheduled_as_single_trials_are(scheduler: str) -> None:
    def score(number: int, rung: int) -> float:
        return float((number * 7919 + rung * 104729) % 1009)

    def of_seed(number: int, rung: int) -> float:
        return score(number // 3, rung) + 10 * (number % 3 - 1)  # replicates differ; their mean is what one would have

    (trials, segments), branches = simulate(config(scheduler, 1), random.Random(0), score)
    for seed in range(4):
        (replicates, rows), born = simulate(config(scheduler), random.Random(seed), of_seed)
        alone = [(row.number, row.rung, row.score) for row in segments.values()]
        _, together = collapse(config(scheduler), replicates.values(), rows.values())
        assert sorted((row.number, row.rung, row.score) for row in together) == sorted(alone)
        assert {number // 3: trial.state for number, trial in replicates.items()} == {
            n: t.state for n, t in trials.items()
        }
        expected = {(branch.number, branch.start.number) for branch in branches}
        assert {(branch.number // 3, branch.start.number // 3) for branch in born} == expected
        assert all(branch.number % 3 == branch.start.number % 3 for branch in born)
    alone = scheduler_of(config(scheduler, 1)).entrants()
    assert scheduler_of(config(scheduler)).entrants() == [3 * count for count in alone]


@pytest.mark.parametrize("scheduler", ["halving", "hyperband", "pbt"])
def test_a_configuration_without_one_of_its_seeds_is_not_promoted(scheduler: str) -> None:
    def score(number: int, rung: int) -> float | None:
        return None if number == 4 else float(number)

    (trials, segments), _ = simulate(config(scheduler), random.Random(0), score)
    assert [trials[n].state for n in (3, 4, 5)] == ["pruned", "failed", "pruned"]
    assert {row.rung for row in segments.values() if row.number in (3, 4, 5)} == {0}


def test_a_plan_is_complete_only_when_all_trials_have_ended() -> None:
    trials = [Trial(n, f"u{n}", {}, state="failed" if n == 0 else "running", seeds=3) for n in range(3)]
    segments = [Segment(n, 0, 1, "failed" if n == 0 else "done", None if n == 0 else 1.0, seeds=3) for n in range(3)]
    step = plan(Config("ppo", 1, {}, 0, {}, {}, [1, 1, 3], [1], options=MANY), trials, segments)
    assert not step.complete
    assert step.finished == [(1, "pruned"), (2, "pruned")]


def test_replicates_train_as_one_cohort_and_a_configuration_has_their_aggregate(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = load("ppo").learner
    run_epoch = learner.run_epoch
    seeds: list[list[int]] = []

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seeds.append(sorted(self.seeds))
        return run_epoch(self, *args, **kwargs)

    monkeypatch.setattr(learner, "run_epoch", noted)
    run(sqlite_url, tiny(trials=2, epochs=(1, 2, 2), options=MANY, seed=5))
    assert seeds == [[5, 5, 6, 6, 7, 7], [5, 6, 7]]
    with Store(sqlite_url) as store:
        view = study_json(store, "s")
        numbers = [trial.number for trial in store.trials("s")]
    assert numbers == list(range(6))
    assert (view["seeds"], view["aggregate"]) == (3, "median")
    assert (view["counts"]["complete"], len(view["trials"])) == (1, 2)
    for trial in view["trials"]:
        assert trial["return"] == sorted(seed["return"] for seed in trial["seeds"])[1]
        assert [seed["seed"] for seed in trial["seeds"]] == [5, 6, 7]
    assert len({seed["uid"] for trial in view["trials"] for seed in trial["seeds"]}) == 6


def replicated_population() -> Config:
    return make_population(
        load("ppo"), "CartPole-v1", epochs=4, interval=2, population=3, fixed=unflatten(TINY), **seed_options(2, "mean")
    )


@pytest.mark.slow  # some workers share a study by ASHA with several seeds in test_schedulers
@pytest.mark.parametrize("make", [lambda: tiny(trials=2, epochs=(1, 2, 2), options=MANY), replicated_population])
def test_any_number_of_workers_trains_the_same(sqlite_url: str, make: Any) -> None:
    assert run_by_three(sqlite_url, make()) == undisturbed(make())


@pytest.mark.slow
def test_the_command_line_takes_seeds_and_optuna_sees_configurations(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import optuna

    command = [
        "tune",
        "ppo",
        "CartPole-v1",
        "--study",
        "s",
        "--trials",
        "2",
        "--epochs",
        "1:2:2",
        "--generation",
        "4",
        "--cohort",
        "2",
        "--seeds",
        "3",
        "--aggregate",
        "median",
        "--storage",
        sqlite_url,
        "--json",
    ]
    run(sqlite_url, tiny(2, (1, 2, 2), options=MANY))
    assert main([*command, *(part for name, value in TINY.items() for part in ("--set", f"{name}={value}"))]) == 0
    output = json.loads(capsys.readouterr().out)
    mirrored = optuna.load_study(study_name="s", storage=sqlite_url).trials
    assert [trial.value for trial in mirrored] == [trial["return"] for trial in output["trials"]]
    assert len(mirrored) == 2
