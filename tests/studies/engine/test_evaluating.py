"""Steps of evaluations: their share of a study, stored with it, counted, and the same for any worker."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from rekindle import tune
from rekindle.studies.engine.evaluating import MOST, SHARE, eval_steps_of
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.study_views import study_json, summary_view
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import EVAL_STEPS, Config
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.evaluation.objective import evaluate_within
from studying import TINY, bits, run_by_three, tiny


@pytest.mark.parametrize("method", ["adaptive", "halving", "hyperband", "asha", "none", "pbt"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_evaluations_may_take_a_fifth_of_a_study(env: str, method: str) -> None:
    config = study_config(load("ppo"), env, scheduler=method)
    counts, ends = scheduler(config).entrants(), [0, *config.rungs]
    training = sum(count * (high - low) for count, (low, high) in zip(counts, itertools.pairwise(ends), strict=True))
    steps = config.options[EVAL_STEPS]
    evaluating = sum(count * share for count, (_, share, _) in zip(counts, steps, strict=True))
    assert evaluating <= SHARE * (training + evaluating) * 1.000001
    assert [end for end, *_ in steps] == list(config.rungs)
    whole = 20 * {"CartPole-v1": 500, "Pendulum-v1": 200}[env] / 4096  # epochs' steps of all episodes
    assert steps[-1][1] == pytest.approx(whole)
    longer, most = config.eval_steps(config.rungs[-1] + 1, {"epoch_steps": 64})
    assert (longer, most) == (pytest.approx(whole * 64), MOST)


def test_the_steps_are_divided_by_the_epochs_that_rungs_add() -> None:
    """A quarter of 9 + 3 x 2 + 6 = 21 epochs; 20 episodes of Pendulum take 4,000 of 4,096 steps."""
    config = study_config(
        load("ppo"), "Pendulum-v1", trials=9, epochs="1:9", scheduler="halving", generation=9, portfolio="off"
    )
    last = 4000 / 4096
    left = 21 / 4 - last
    assert config.options[EVAL_STEPS] == [
        [1, pytest.approx(left * 9 / 15 / 9, abs=1e-6), MOST],
        [3, pytest.approx(left * 6 / 15 / 3, abs=1e-6), MOST],
        [9, pytest.approx(last, abs=1e-6), MOST],
    ]


@pytest.mark.parametrize("options", [{"eval_episodes": 20}, {"plateau": 5}, {"objective": "return_median"}])
def test_all_episodes_are_played_where_they_are_needed(options: Any) -> None:
    assert EVAL_STEPS not in study_config(load("ppo"), "CartPole-v1", **options).options


def test_a_study_of_a_task_without_episodes_has_no_steps_of_evaluations() -> None:
    assert EVAL_STEPS not in study_config(load("digits"), None).options


def test_results_of_few_episodes_do_not_depend_on_workers(sqlite_url: str) -> None:
    config = tiny(4, (1, 4, 2))
    steps = eval_steps_of(config, load("ppo"))
    config = replace(config, options={EVAL_STEPS: steps})
    assert steps is not None
    by_three = run_by_three(sqlite_url, config)
    with Store(sqlite_url) as store:
        start_study(store, "alone", config)
        assert Worker(store, "alone").run()
        assert bits(store, "alone") == by_three
        rows = store.segments("alone")
        for row in rows:
            task = config.make_task(load("ppo"), store.trials("alone")[row.number].params, None)
            task.fit(row.epochs)
            within, most = config.eval_steps(row.epochs, TINY)
            [evaluation] = evaluate_within(task.member_ref().learner, within, most=most)
            assert (row.score, row.eval_steps, row.eval_error) == (evaluation.value, evaluation.steps, evaluation.error)
            if evaluation.episodes == 1:
                assert evaluation.error is None
            else:
                spread = statistics.stdev(task.returns(evaluation.episodes))
                assert evaluation.error == pytest.approx(spread / math.sqrt(evaluation.episodes))
        total = sum(row.eval_steps or 0 for row in rows)
        view = study_json(store, "alone")
        assert view["eval_steps"] == summary_view(store, "alone").eval_steps == total > 0
        results = [rung["eval_steps"] for trial in view["trials"] for rung in trial["rungs"]]
        assert sum(results) == total


def test_a_study_without_most_episodes_keeps_the_usual_number() -> None:
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:9")
    before = [entry[:2] for entry in config.options[EVAL_STEPS]]
    older = Config.from_json({**config.to_json(), "options": {**config.options, EVAL_STEPS: before}}, "s")
    assert older.eval_steps(9, {"epoch_steps": 64}) == (config.eval_steps(9, {"epoch_steps": 64})[0], 20)


def test_a_study_from_before_keeps_its_rule(sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 2, "epochs": "1:2", "storage": sqlite_url, "progress": False, "study": "s"}
    fixed = {name: value for name, value in TINY.items() if "." not in name}
    config = study_config(load("ppo"), "CartPole-v1", trials=2, epochs="1:2", fixed=fixed)
    without = {name: value for name, value in config.options.items() if name != EVAL_STEPS}
    with Store(sqlite_url) as store:
        start_study(store, "s", replace(config, options=without))
    study = tune("ppo", "CartPole-v1", fixed=fixed, **options)
    assert EVAL_STEPS not in study.config.options
    task = study.store.task(study.trials[0].uid)
    assert task.metrics["return"] == task.evaluate(20)
