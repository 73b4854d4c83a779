"""Suggestions as a function of the configuration and of the rows that the schedule exposes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from rekindle.spaces import Space, categorical, fixed, flatten, integer, log_real, maybe, near_one, ordinal, real
from rekindle.spaces.drivers.to_optuna import suggest as suggest_values
from rekindle.studies.errors import BadConfig
from rekindle.studies.methods import SAMPLERS
from rekindle.studies.samplers.registry import make_sampler
from rekindle.studies.samplers.suggest import OptunaParams, history, suggest
from rekindle.studies.samplers.tpe import TPE
from rekindle.studies.storage.rows import Trial
from rekindle.studies.study.config import Config
from rekindle.studies.study.plan import Plan
from rekindle.tasks import load

SPACE = Space(
    name=categorical("adam", "sgd", default="adam", structural=True),
    momentum=real(0.0, 0.99, default=0.5, when={"name": "sgd"}),
    lr=log_real(1e-5, 1e-1, default=1e-3),
    gamma=near_one(0.9, 0.9999, default=0.99),
    width=ordinal(16, 32, 64, default=32, structural=True),
    layers=integer(1, 3, default=2, structural=True),
    clip=maybe(real(0.1, 1.0), default=None),
)


def config(**changes: Any) -> Config:
    form = {
        "task": "ppo",
        "task_version": load("ppo").version,
        "env": {},
        "seed": 0,
        "space": SPACE.priors(),
        "fixed": {},
    }
    form |= {"epochs": [1, 9, 3], "trials": [32], "generation": 8, "cohort": 4}
    return Config(**(form | changes))


def rows(study: Config, total: int) -> list[Trial]:
    """Trials with suggestions of their own brackets, none of them having seen anything."""
    results: list[Trial] = []
    for bracket, numbers in enumerate(study.brackets[: -(-total // study.generation)]):
        for number, values in zip(numbers, suggest(study, [], Plan(ask=numbers)), strict=True):
            results.append(Trial(number, f"u{number}", flatten(values), {"bracket": bracket}))
    return results


def seen(total: int) -> dict[int, list[tuple[int, float]]]:
    return {number: [(1, float(-abs(number - 11)))] for number in range(total)}


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"bruteforce"}))
def test_the_same_rows_give_the_same_suggestions(sampler: str) -> None:
    small = Space(lr=log_real(1e-5, 1e-1), clip=maybe(real(0.1, 1.0)))  # the Gaussian process takes a second each
    study = config(sampler=sampler, space=small.priors(), generation=2)
    trials = rows(study, 4)
    step = Plan(ask=range(4, 5), bracket=2, seen=seen(4))
    assert suggest(study, trials, step) == suggest(study, trials, step)


def test_another_seed_gives_other_suggestions() -> None:
    assert suggest(config(), [], Plan(ask=range(8, 16))) != suggest(config(seed=1), [], Plan(ask=range(8, 16)))


def test_rows_that_the_schedule_does_not_show_change_nothing() -> None:
    study = config()
    trials = rows(study, 24)
    step = Plan(ask=range(16, 24), bracket=2, seen=seen(16))
    done = [replace(trial, state="pruned") for trial in trials]
    assert suggest(study, trials[:16], step) == suggest(study, done, step)


def test_results_change_the_suggestions_of_samplers_that_learn() -> None:
    same_for = {"random", "qmc", "grid"}
    for sampler in sorted(set(SAMPLERS) - {"gp", "bruteforce"}):
        study = config(sampler=sampler)
        trials = rows(study, 16)
        worse = {number: [(1, -score)] for number, [(_, score)] in seen(16).items()}
        ask = range(16, 24)
        plans = (Plan(ask=ask, bracket=2, seen=shown) for shown in (seen(16), worse))
        first, second = (suggest(study, trials, step) for step in plans)
        assert (first == second) == (sampler in same_for), sampler


def test_the_first_trial_takes_the_defaults() -> None:
    first, second, *_ = suggest(config(), [], Plan(ask=range(0, 8)))
    assert first == SPACE.defaults()
    assert second != first


def test_the_first_trial_is_drawn_where_there_are_no_defaults() -> None:
    study = config(space=Space(lr=log_real(1e-5, 1e-1)).priors())
    assert 1e-5 <= suggest(study, [], Plan(ask=range(0, 1)))[0]["lr"] <= 1e-1


def test_a_trial_keeps_its_distance_from_one_that_was_enqueued() -> None:
    study = config(cohort=1)
    trials, step = rows(study, 16), Plan(ask=range(16, 18), bracket=2, seen=seen(16))
    far = flatten(suggest(study, trials, step, enqueued={16: flatten(SPACE.defaults())})[1])
    assert flatten(suggest(study, trials, step, enqueued={16: far})[1]) != far


def test_a_cohort_shares_its_structure_and_nothing_else() -> None:
    result = suggest(config(), [], Plan(ask=range(8, 16)))
    structures = [SPACE.structure(values) for values in result]
    assert structures[:4] == [structures[0]] * 4
    assert structures[4:] == [structures[4]] * 4
    assert structures[0] != structures[4]
    assert len({values["lr"] for values in result}) == 8


def test_a_cohort_shares_no_structure_where_nothing_else_is_searched() -> None:
    names = categorical("adam", "sgd", "rmsprop", "lion", default="adam", structural=True)
    study = config(space=Space(name=names, gamma=fixed(0.99)).priors())
    assert len({values["name"] for values in suggest(study, [], Plan(ask=range(0, 16)))}) == 4
    depends = Space(name=names, momentum=real(0.0, 0.99, default=0.5, when={"name": "sgd"}))
    result = suggest(config(space=depends.priors()), [], Plan(ask=range(0, 16)))
    assert len({tuple(flatten(values).items()) for values in result}) > 4


def test_every_suggestion_is_in_the_space() -> None:
    for values in suggest(config(trials=[64], generation=64), [], Plan(ask=range(0, 64))):
        assert SPACE.validate(values) == values


def test_values_that_do_not_go_together_are_drawn_again() -> None:
    def check(values: Any) -> None:
        if values["layers"] == 2:
            raise ValueError("layers must not be 2")

    result = suggest(config(), [], Plan(ask=range(0, 8)), check)
    assert all(values["layers"] != 2 for values in result)
    assert result == suggest(config(), [], Plan(ask=range(0, 8)), check)


def test_a_space_without_values_that_go_together_is_an_error_and_no_endless_search() -> None:
    def check(values: Any) -> None:
        raise ValueError("never")

    with pytest.raises(BadConfig, match=r"trial 8 needs valid hyperparameters.*never"):
        suggest(config(), [], Plan(ask=range(8, 16)), check)


def test_optuna_is_told_what_is_known_and_no_more() -> None:
    study = config()
    trials = rows(study, 8)[:4]
    output = {0: [(1, 1.0), (3, 2.0), (9, 3.0)], 1: [(1, 5.0)], 2: []}
    complete, pruned, failed, running = history(study, trials, {**output})
    assert (complete.state, complete.value) == (TrialState.COMPLETE, 3.0)
    assert complete.intermediate_values == {1: 1.0, 3: 2.0, 9: 3.0}
    assert (pruned.state, pruned.intermediate_values) == (TrialState.PRUNED, {1: 5.0})
    assert failed.state == TrialState.FAIL
    assert (running.state, running.params["lr"]) == (TrialState.RUNNING, trials[3].params["lr"])
    [cancelled] = history(study, [replace(trials[3], state="cancelled")], {})
    assert cancelled.state == TrialState.FAIL
    assert complete.params["lr"] == trials[0].params["lr"]


def test_a_sampler_is_new_and_seeded_for_every_trial() -> None:
    draws = set()
    for number, attempt in ((3, 0), (3, 0), (4, 0), (3, 1)):
        study = optuna.create_study(sampler=make_sampler(config(sampler="random"), number, attempt))
        draws.add(study.ask().suggest_float("x", 0, 1))
    assert len(draws) == 3


def test_tpe_suggests_what_optunas_own_does() -> None:
    study = config()
    asked = []
    for sampler in (TPE, optuna.samplers.TPESampler):
        ours = optuna.create_study(direction="maximize")
        ours.add_trials(history(study, rows(study, 32), seen(32)))
        for number in range(32, 38):
            ours.sampler = sampler(seed=number, n_startup_trials=8)
            asked.append(suggest_values(SPACE, ours.ask()))
    assert asked[:6] == asked[6:]
    assert asked[0] != asked[1]


def test_the_cache_of_trials_changes_no_suggestion() -> None:
    study = config()
    optuna_params: OptunaParams = {}
    trials = rows(study, 24)
    for total in (8, 16, 24):
        step = Plan(ask=range(total, total + 8), bracket=total // 8, seen=seen(total))
        remembering = suggest(study, trials, step, optuna_params=optuna_params)
        assert remembering == suggest(study, trials, step)
        assert optuna_params.keys() == set(range(total))
