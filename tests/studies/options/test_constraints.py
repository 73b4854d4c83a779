"""Constraints: their texts, the rank of infeasible results, what samplers read, and how sure a confirmation is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from optuna.samplers import GPSampler
from own_functions import drive
from rekindle.studies.engine.confirmation_views import constraint_views
from rekindle.studies.engine.confirmations import confirmation_config, start_confirmation
from rekindle.studies.engine.optuna_mirror import frozen
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.study_views import study_view, summary_view
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.options.constraints import Constraint, parse_constraints
from rekindle.studies.samplers.suggest import history
from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.objectives import best_first, violation
from scipy import stats
from studying import run_by_three, tiny, undisturbed

COST = {"constraint": ["cost<=25"]}


def driven(**options: Any) -> Config:
    """A study of `drive`, whose cost is 40 times the speed that it earns."""
    options = {"trials": 6, "epochs": (1, 3, 3), "scheduler": "halving", "constraint": "cost<=25", **options}
    return study_config(drive, None, **options)


def results(config: Config, costs: list[float], scores: list[float]) -> list[Segment]:
    epochs, pairs = config.rungs[0], enumerate(zip(costs, scores, strict=True))
    return [
        Segment(n, 0, epochs, "done", score, "d", objectives={"return": score, "cost": cost})
        for n, (cost, score) in pairs
    ]


def test_a_constraint_is_read_from_its_text() -> None:
    assert parse_constraints(" info.cost <= 2.5e1") == ["info.cost<=25"]
    assert Constraint.of("return>=-0.5") == Constraint("return", ">=", -0.5)
    # By hand: 30 exceeds 25 by a fifth of it; with a bound of 0 the excess is in the metric's own unit.
    assert [Constraint.of("c<=25").excess(value) for value in (30, 20)] == [0.2, -0.2]
    assert [Constraint.of("c>=-4").excess(-6), Constraint.of("c<=0").excess(3)] == [0.5, 3]


@pytest.mark.parametrize("text", ["cost<25", "cost=25", "<=25", "cost<=", "cost<=nan", "cost<=inf", "1<=cost<=2", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"a constraint is NAME<=NUMBER or NAME>=NUMBER .* but got '"):
        parse_constraints([text])


def test_a_constraint_that_no_trial_can_be_measured_by_is_refused() -> None:
    with pytest.raises(BadConfig, match="cost<=25 is given again; leave one out"):
        driven(constraint=["cost<=25", "cost<=25.0"])
    with pytest.raises(BadConfig, match=r"a constraint must be one of reward, .*, but got 'costs'; did you mean cost?"):
        driven(constraint="costs<=25")
    with pytest.raises(BadConfig, match=r"constraint info.cost must be an entry of info .*; add --info cost"):
        study_config(rekindle.PPO, "CartPole-v1", epochs=1, constraint="info.cost<=25")
    with pytest.raises(BadConfig, match="--racing decides who cannot win by one objective, but got a constraint"):
        driven(seeds=4, racing=True)


def test_infeasible_results_rank_last_by_violation() -> None:
    config = replace(tiny(), options={"constraint": ["cost<=25", "return>=2"]})
    rows = results(config, costs=[30, 25, 20, 50, 26], scores=[9, 3, 4, 99, 1])
    # By hand: 30/25 - 1 = 0.2; feasible; feasible; 50/25 - 1 = 1; 26/25 - 1 + 1 - 1/2 = 0.54.
    assert [violation(map(Constraint.of, config.options["constraint"]), row.objectives) for row in rows] == (
        pytest.approx([0.2, 0, 0, 1, 0.54])
    )
    assert [row.number for row in best_first(config, rows)] == [2, 1, 0, 4, 3]


@pytest.mark.parametrize("name", ["halving", "adaptive", "asha"])
def test_schedulers_promote_feasible_trials(name: str) -> None:
    config = replace(tiny(), epochs=[1, 3, 3], trials=[3], scheduler=name, generation=3, options=COST)
    plan = scheduler(config)
    plan.observe(
        [Trial(n, str(n), {}, {"bracket": 0}) for n in range(3)], results(config, [30, 20, 40], [9.0, 1.0, 99.0])
    )
    assert [row.number for row in plan.plan().segments] == [1]


def test_members_of_a_population_copy_feasible_ones() -> None:
    config = replace(tiny(), epochs=[1, 2, 1], trials=[5], generation=5, scheduler="pbt")
    config = replace(config, options={**COST, "exploit": "truncation", "explore": "perturb", "perturb": []})
    plan = scheduler(config)
    trials = [Trial(n, str(n), {}, {"bracket": 0}) for n in range(5)]
    plan.observe(trials, results(config, [30, 20, 26, 24, 27], [9.0, 1.0, 99.0, 2.0, 5.0]))
    [branch] = plan.plan().branches
    assert (branch.member, branch.start.number) == (0, 3)  # trial 0 violates most; trial 3 is the best feasible one


def test_samplers_read_how_far_trials_exceed_their_bounds() -> None:
    config = replace(tiny(), options=COST)
    trials = [Trial(n, str(n), {}, {"bracket": 0}) for n in range(3)]
    seen = {0: [(config.rungs[-1], 9.0)], 1: [(config.rungs[-1], 1.0)]}
    rows = [replace(row, epochs=config.rungs[-1]) for row in results(config, [30, 20], [9.0, 1.0])]
    told = history(config, trials, seen, rows)
    assert [trial.system_attrs.get("constraints") for trial in told] == [[0.2], [-0.2], None]
    output = [frozen(config, (trial, [row], {}), 0.0) for trial, row in zip(trials, rows, strict=False)]
    assert [trial.system_attrs for trial in output] == [{"constraints": [0.2]}, {"constraints": [-0.2]}]


@pytest.mark.slow
def test_a_gaussian_process_stays_where_the_bound_allows(tmp_path: Path) -> None:
    how: dict[str, Any] = {"trials": 12, "epochs": 1, "scheduler": "none", "sampler": "gp", "generation": 4}
    how |= {"storage": f"sqlite:///{tmp_path}/s.db", "progress": False}
    bound = rekindle.tune(drive, study="bound", constraint="cost<=25", **how)
    free = rekindle.tune(drive, study="free", **how)
    assert bound.best is not None
    assert free.best is not None
    speeds = [trial.hyperparameters["speed"] for trial in bound.trials[4:]]
    assert np.mean([speed <= 25 / 40 + 0.01 for speed in speeds]) >= 0.6
    assert bound.best.violation == 0
    assert 0.5 < bound.best.hyperparameters["speed"] <= 25 / 40 + 0.01
    assert free.best.violation is None
    assert free.best.hyperparameters["speed"] > 0.99
    assert rekindle.tune(drive, study="spelled", constraint="cost<=25", **(how | {"sampler": GPSampler})).best


@pytest.mark.parametrize(
    "options",
    [
        {"seeds": 2},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"objective": ["reward", "cost:minimize"]}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_any_number_of_workers_finds_the_same_feasible_trials(sqlite_url: str, options: dict[str, Any]) -> None:
    config = driven(generation=3, cohort=1, **options)
    assert run_by_three(sqlite_url, config) == undisturbed(config)
    with Store(sqlite_url) as store:
        view, summary = study_view(store, "s"), summary_view(store, "s")
    assert view.constraints == ["cost<=25"]
    feasible = [trial.result("cost") <= 25 for trial in rank(view.trials, view.objectives) if trial.epochs == 3]
    assert feasible == sorted(feasible, reverse=True)
    assert summary.best == view.best
    assert view.best is not None
    assert view.best.violation == 0
    assert all((trial.violation == 0) == (trial.result("cost") <= 25) for trial in view.trials)


def test_commands_show_what_is_infeasible(sqlite_url: str, cli: Callable[..., tuple[int, str, str]]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", driven(trials=2, epochs=1, scheduler="none", constraint=["cost<=25", "reward>=2"]))
    study = rekindle.Study("s", sqlite_url).run(progress=False)
    assert study.best is not None
    assert study.best.violation
    _, printed, _ = cli("trials", "s", "--storage", sqlite_url)
    assert printed.count("complete, infeasible") == 2
    assert "cost<=25" in printed
    _, printed, _ = cli("trials", "s", "--json", "--storage", sqlite_url)
    output = json.loads(printed)
    assert output["constraints"] == ["cost<=25", "reward>=2"]
    assert [trial["violation"] for trial in output["trials"]] == [trial.violation for trial in study.trials]
    assert cli("fsck", "--storage", sqlite_url)[0] == 0


def confirming(url: str, seeds: int) -> Config:
    """Begin a confirmation of a study whose costs are at most 25."""
    with Store(url) as store:
        start_study(store, "s", driven(trials=2, epochs=1, scheduler="none"))
        rekindle.Study("s", store).run(progress=False)
        config = confirmation_config(store, "s", top=1, seeds=seeds)
        assert config.options["constraint"] == ["cost<=25"]
        start_confirmation(store, "s", config)
    return config


def holds(config: Config, result: Sequence[float]) -> bool | None:
    """Return whether a candidate satisfies the constraint, by its costs on the seeds of its estimate."""
    first = config.options["seeds"] - len(result)
    rows = {
        (0, s): Segment(s, 0, 1, "done", 1.0, objectives={"reward": 1.0, "cost": float(cost)})
        for s, cost in enumerate(result, first)
    }
    return constraint_views(config, rows, 0)["cost<=25"].holds


def test_the_interval_of_a_success_rate_has_no_impossible_ends(sqlite_url: str) -> None:
    """Of three seeds with successes in all, all and no episodes, Student's interval would be -2.6 to 4.0."""
    config = confirming(sqlite_url, 3)
    config = replace(config, options={**config.options, "constraint": ["info.is_success>=0.5"]})
    first = config.options["seeds"] - 3
    for results in ([1.0, 1.0, 0.0], [1.0, 1.0, 1.0]):
        rows = {
            (0, s): Segment(s, 0, 1, "done", 1.0, objectives={"info.is_success": result})
            for s, result in enumerate(results, first)
        }
        view = constraint_views(config, rows, 0)["info.is_success>=0.5"]
        assert (view.value, view.high) == (pytest.approx(sum(results) / 3), 1)
        assert 0 <= view.low <= view.value


def costs(distribution: str, rng: np.random.Generator, mean: float, size: int) -> np.ndarray[Any, Any]:
    """Costs with a known mean, the later kinds with a longer tail."""
    draws = {
        "normal": rng.normal(1, 0.3, size),
        "gamma": rng.gamma(3, 1 / 3, size),
        "skewed": rng.exponential(1, size),
        "lognormal": rng.lognormal(-0.5, 1, size),
    }
    return mean * draws[distribution]


@pytest.mark.parametrize(
    "distribution", ["skewed", *(pytest.param(n, marks=pytest.mark.slow) for n in ("normal", "gamma", "lognormal"))]
)
def test_a_confirmation_calls_few_infeasible_candidates_feasible(distribution: str, sqlite_url: str) -> None:
    config, rng, repeats = confirming(sqlite_url, 20), np.random.default_rng(0), 200
    wrong, right = (
        sum(holds(config, costs(distribution, rng, mean, 20)) is True for _ in range(repeats)) for mean in (25.01, 5.0)
    )
    assert wrong <= 0.05 * repeats
    assert right >= 0.85 * repeats


@pytest.mark.parametrize("seeds", [14, 20])
def test_accidents_in_a_fifth_of_the_trainings_seldom_seem_feasible(seeds: int, sqlite_url: str) -> None:
    """The mean cost is just beyond the bound; what is said depends on the number of accidents alone."""
    config = confirming(sqlite_url, seeds)
    for share in (0.2, 0.25, 0.3, 0.4, 0.5):
        accident = 25.01 / share
        wrong = sum(
            stats.binom.pmf(count, seeds, share)
            for count in range(seeds)
            if holds(config, [accident] * count + [0.0] * (seeds - count))
        )
        assert wrong <= 0.05
    assert holds(config, [0.0] * seeds)


def test_few_seeds_never_say_that_a_constraint_holds(sqlite_url: str) -> None:
    config = confirming(sqlite_url, 13)
    assert holds(config, [5.0] * 13) is None
    assert holds(config, [30.0 + seed for seed in range(13)]) is False
