"""Goals: confirmed by fresh episodes, and not declared by luck more often than stated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_envs
from rekindle.studies import Study
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.statistics.betting import wealth
from rekindle.studies.storage.store import Store
from rekindle.studies.workers import training
from rekindle.studies.workers.goal_tests import ERROR, check_goal, error_of, play
from rekindle.studies.workers.training import Training
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from studying import TINY, bits, tiny, undisturbed

GOAL, LEAST = 475.0, 9.0
Draw = Callable[[np.random.Generator, int], np.ndarray]
POLICIES: dict[str, Draw] = {  # whose returns have a mean of GOAL
    "normal": lambda random, n: np.maximum(LEAST, random.normal(GOAL, 60, n)),
    "rare failures": lambda random, n: np.where(random.random(n) < (500 - GOAL) / (500 - LEAST), LEAST, 500.0),
    "rare triumphs": lambda random, n: np.where(random.random(n) < 0.02, GOAL + 49 * 100, GOAL - 100),
    "exponential": lambda random, n: GOAL - 50 + random.exponential(50, n),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_goal_is_declared_by_luck_in_few_of_200_studies(policy: str) -> None:
    """Each study tests ten lucky results of policies that do not exceed the goal."""
    declared = 0
    for study in range(200):
        draws = np.random.default_rng([1, study])
        for test in range(1, 11):
            returns = lambda episodes, seed: POLICIES[policy](draws, episodes).tolist()  # noqa: B023, E731
            if play(returns, GOAL, LEAST, test)[1] >= 1 / error_of(test):
                declared += 1
                break
    assert declared / 200 <= ERROR
    assert sum(error_of(test) for test in range(1, 10_000)) <= ERROR


def test_a_policy_that_exceeds_the_goal_is_found_out_in_few_episodes() -> None:
    result, reached = play(lambda episodes, seed: [500.0] * episodes, GOAL, LEAST, 1)
    assert (len(result), reached >= 1 / error_of(1)) == (140, True)
    draws = np.random.default_rng(3)
    better = sum(
        play(lambda n, seed: draws.normal(495, 20, n).clip(LEAST, 500).tolist(), GOAL, LEAST, 1)[1] >= 1 / error_of(1)
        for _ in range(50)
    )
    assert better >= 45
    assert len(play(lambda episodes, seed: [400.0] * episodes, GOAL, LEAST, 1)[0]) == 20  # it was luck


def test_a_bettor_of_known_bets() -> None:
    """With one result before, the bet is mean / (variance + mean**2), of its guess and this one."""
    assert wealth([1.0], 0.5, 0.0) == 1.0  # nothing is bet on the first one
    mean, variance = 0.5 / 2, (0.25**2 + 0.5**2) / 2
    assert wealth([1.0, 1.0], 0.5, 0.0) == pytest.approx(1 + 0.5 * min(mean / (variance + mean**2), 0.9 / 0.5))
    assert wealth([0.0] * 9, 0.5, 0.0) == 1.0
    assert wealth([1.0, 1.0, -100.0, 1e9], 0.5, 0.0) < 2  # what is below the least ends the bets
    assert wealth([15.0] * 20, 5.0, 5.0) > 1e5  # the untrained policy had reached the goal
    assert wealth([5.0] * 5, 5.0, 5.0) == 1.0


@pytest.mark.slow
def test_the_test_of_a_goal_ends_at_a_step_when_asked_and_is_repeated(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(tiny(1, (1, 2, 2), env="slow_envs:Slow-v0"))
    config = tiny(1, (1, 2, 2), env="slow_envs:Slow-v0", options={"goal": {"return": 8.9}})
    before: list[int] = []
    steps = lambda: sum(path.stat().st_size for path in tmp_path.glob("[0-9]*"))  # noqa: E731

    def asked(*arguments: Any, **more: Any) -> None:
        before.append(steps())
        check_goal(*arguments, **more)

    monkeypatch.setenv(slow_envs.VARIABLE, str(tmp_path))
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with monkeypatch.context() as patched:
            patched.setattr(training, "check_goal", asked)
            assert not Worker(store, "s").run(lambda: bool(before))
        assert before == [steps()]
        assert not store.commands("s")
        assert not store.claims()
        assert not [row for row in store.segments("s") if row.state == "done"]
        assert not Worker(store, "s").run()
        assert [command.kind for command in store.commands("s")] == ["check", "stop"]
        Study("s", store).extend(goal="return:400")
        assert Worker(store, "s").run()
        assert bits(store) == expected


def test_a_study_stops_at_its_goal_and_carries_on_with_a_higher_one(sqlite_url: str) -> None:
    expected = undisturbed(tiny(4, (1, 2, 2)))
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(4, (1, 2, 2), options={"goal": {"return": 12.0}}))
        assert not Worker(store, "s").run()
        study = Study("s", store)
        checks = [command.data for command in study.commands if command.kind == "check"]
        [stop] = [command for command in study.commands if command.kind == "stop"]
        [confirmed] = [check for check in checks if check["confirmed"]]
        assert stop.who == "goal"
        assert stop.data == {"goal": {"return": 12.0}, "check": stop.number - 1}
        assert stop.why.startswith(f"trial {confirmed['trial']} at epoch {confirmed['epochs']} has a return of ")
        assert confirmed["mean"] > 12.0 > confirmed["least"] >= 7  # no pole falls faster
        row = store.trials("s")[confirmed["trial"]]
        task = store.task(row.uid)
        assert task.epochs == confirmed["epochs"]
        assert np.mean(task.returns(400, seed=5)) > 12.0
        task.release()
        study.extend(goal="return:400")
        assert Worker(store, "s").run()
        assert bits(store) == expected  # the tests changed nothing


def test_a_goal_of_a_study_with_several_seeds_names_trial_and_seed(sqlite_url: str) -> None:
    config = study_config(load("ppo"), "CartPole-v1", trials=1, epochs=2, seeds=2, seed=5, fixed=TINY, goal="return:12")
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        assert not Worker(store, "s").run()
        check, *_, stop = store.commands("s")
    assert (check.kind, check.data["trial"], check.data["seed"] in (5, 6)) == ("check", 0, True)
    assert (stop.kind, stop.who) == ("stop", "goal")
    assert re.match(r"trial 0, seed [56], at epoch 2 has a return of ", stop.why)


def test_a_result_is_tested_against_the_goal_of_now(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not against that of the time when its training began, which a user may have changed since."""
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(2, (1, 1, 2), options={"goal": {"return": 12.0}}))
        result = Training.results_of

        def raised_before(training: Training, *arguments: Any) -> Any:
            if not store.commands("s"):
                Study("s", store).extend(goal="return:400")
            return result(training, *arguments)

        monkeypatch.setattr(Training, "results_of", raised_before)
        assert Worker(store, "s").run()
        assert [command.kind for command in store.commands("s")] == ["bound"]


def test_a_goal_that_is_changed_while_it_is_tested_stops_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(2, (1, 1, 2), options={"goal": {"return": 12.0}}))

        def raised_meanwhile(*arguments: Any) -> Any:
            if len(store.commands("s")) == 0:
                Study("s", store).extend(goal="return:400")
            return play(*arguments)

        monkeypatch.setattr("rekindle.studies.workers.goal_tests.play", raised_meanwhile)
        assert Worker(store, "s").run()
        assert [command.kind for command in store.commands("s")] == ["bound", "check"]
