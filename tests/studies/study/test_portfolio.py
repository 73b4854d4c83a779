"""Portfolios: the first trials of a study, and the recorded trainings that they were chosen from."""

from __future__ import annotations

import json
import operator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.spaces import flatten
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.sizing import Sized
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig, StudyMismatch
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.portfolio import portfolio, scaling_option
from rekindle.studies.study.widening import widened
from rekindle.tasks import EnvSpec, load
from rekindle.tasks.algorithms.auto import algorithms_in
from rekindle.tasks.algorithms.tabular import read_table

TRAININGS = Path(rekindle.__file__).parent / "benchmarks" / "trainings" / "ppo"


def config_of(env: str, **options: Any) -> Config:
    return study_config(rekindle.PPO, env, **{"trials": 16, "epochs": "1:27", **options})


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_studys_first_trials_are_the_defaults_and_then_the_portfolio(env: str) -> None:
    config = config_of(env)
    first = [flatten(values) for values in suggest(config, [], scheduler(config).plan())]
    assert len(first) == len(portfolio("ppo")) == 7
    assert first[0] == flatten(config.searched.defaults())
    ignored = {"use_sde", "sde_sample_freq", "model.std_init"} if env == "CartPole-v1" else set()
    for values, wanted in zip(first, portfolio("ppo"), strict=True):
        complete = flatten(config.identity(rekindle.PPO, values).hyperparameters)
        assert {name: complete[name] for name in wanted if name not in ignored} == {
            name: value for name, value in wanted.items() if name not in ignored
        }


@pytest.mark.parametrize(("name", "rung"), [("adaptive", 3), ("halving", 2), ("none", 0)])
def test_a_portfolio_is_first_compared_after_a_third_of_a_training(name: str, rung: int) -> None:
    config = config_of("CartPole-v1", scheduler=name)
    plan = scheduler(config).plan()
    assert plan.ask == range(7)
    assert plan.rung == rung
    assert config.rungs[rung] in (8, 9, 27)


def test_the_better_half_of_a_portfolio_trains_to_the_end_for_at_most_one_training_more() -> None:
    config = config_of("CartPole-v1", repeats=0)
    assert config.options["portfolio"]["finishers"] == 4  # of 7
    plans = scheduler(config)
    assert plans.entrants() == [9, 1, 1, 7 + 1, 4 + 1, 4 + 1]
    epochs = [high - low for low, high in pairwise((0, *config.rungs))]
    cost = sum(map(operator.mul, plans.entrants(), epochs)) + 7 * config.rungs[2]  # of the portfolio before its rung
    assert cost <= 16 * 27 / 3 + 27
    stored = {name: value for name, value in config.options["portfolio"].items() if name != "finishers"}
    before = replace(config, options={**config.options, "portfolio": stored})  # a study of an earlier version
    assert scheduler(before).entrants() == [9, 6, 4, 7 + 3, 3 + 1, 2 + 1]


@pytest.mark.parametrize(
    ("name", "env", "size"), [("sac", "Pendulum-v1", 4), ("dqn", "CartPole-v1", 2), ("qrdqn", "CartPole-v1", 2)]
)
def test_the_portfolio_of_replay_learning_is_within_its_ranges(name: str, env: str, size: int) -> None:
    config = study_config(load(name), env, trials=16, epochs="1:27")
    assert len(config.portfolio) == size
    for values, wanted in zip(config.portfolio, portfolio(name), strict=True):
        assert {path: values[path] for path in wanted} == wanted


@pytest.mark.parametrize(
    ("env", "others"), [("Pendulum-v1", ["sac", "sac", "ppo"]), ("CartPole-v1", ["dqn", "qrdqn", "sac"])]
)
def test_defaults_of_all_algorithms_are_compared_after_a_third_of_a_training(env: str, others: list[str]) -> None:
    """Then come portfolios, and last those of their configurations that were worth little."""
    auto = load("auto")
    config = study_config(auto, env, trials=16, epochs="1:27")
    names = [values["algorithm"] for values in config.portfolio]
    algorithms = algorithms_in(EnvSpec.of(env))
    assert len(algorithms) == 7
    assert names == [*algorithms, *["ppo"] * 4, *others]  # 14, and two repeat the best
    space = auto.learner.space_in(EnvSpec.of(env))
    for name, values in zip(algorithms, config.portfolio, strict=False):
        defaults = {path: dimension.default for path, dimension in space.flat().items()} | {"algorithm": name}
        complete = flatten(space.decide(lambda path, _, values=defaults: values[path]))
        assert config.identity(auto, complete).uid == config.identity(auto, values).uid
    of_ppo = config_of(env)
    uids = [of_ppo.identity(rekindle.PPO, values).uid for values in of_ppo.portfolio]
    assert [config.identity(auto, values).uid for values in config.portfolio[7:11]] == uids[1:5]
    plan = scheduler(config).plan()
    assert (plan.ask, config.rungs[plan.rung]) == (range(14), 8)  # of 27
    assert config.options["portfolio"]["finishers"] == 4


@pytest.mark.parametrize(
    ("trials", "finishers", "entrants"),
    [
        (2, 2, [0, 0, 0, 2, 2, 2]),
        (4, 2, [0, 0, 0, 4, 2, 2]),
        (8, 2, [1, 1, 1, 7 + 1, 2 + 1, 3]),
        (12, 3, [1, 1, 1, 11 + 1, 3 + 1, 4]),
    ],
)
def test_a_small_study_compares_its_algorithms_there_too(trials: int, finishers: int, entrants: list[int]) -> None:
    """Some go on; the last of 8 or 12 trials repeats the best."""
    config = study_config(load("auto"), "Pendulum-v1", trials=trials, epochs="1:27")
    names = algorithms_in(EnvSpec.of("Pendulum-v1"))
    assert [values["algorithm"] for values in config.portfolio] == [*names, *["ppo"] * 4][: trials - trials // 8]
    plan = scheduler(config).plan()
    assert (plan.ask, config.rungs[plan.rung]) == (range(len(config.portfolio)), 8)
    assert config.options["portfolio"]["finishers"] == finishers
    assert scheduler(config).entrants() == entrants


@pytest.mark.parametrize(("options", "size"), [({}, 1), ({"scheduler": "asha"}, 4)])
def test_a_study_of_auto_keeps_its_first_trials_when_it_grows(tmp_path: Path, options: Any, size: int) -> None:
    def config(trials: int, **others: Any) -> Config:
        return study_config(load("auto"), "Pendulum-v1", trials=trials, epochs="1:9", **options, **others)

    with Store(f"sqlite:///{tmp_path / 's.db'}") as store:
        known = start_study(store, "s", config(size)).options["known"]
        assert [values["algorithm"] for values in known] == [*algorithms_in(EnvSpec.of("Pendulum-v1"))[:size]]
        grown = start_study(store, "s", config(12), given_options={"trials"})
        assert (list(grown.trials), grown.options["known"], grown.portfolio) == ([size, 12], known, [])
        with pytest.raises(StudyMismatch, match=r"options\.known"):
            start_study(store, "s", config(12, known={"algorithm": "td3"}), given_options={"trials"})


def test_a_small_study_that_is_given_time_has_no_suggestions() -> None:
    """Its 8 trials are the defaults of five algorithms, and further configurations of PPO."""
    names = ("ppo", "sac", "td3", "tqc", "trpo")
    sized = Sized(1000, dict.fromkeys(names, 1e-3), races=True)
    config = study_config(load("auto"), "Pendulum-v1", trials=8, epochs="1:27", sized=sized)
    assert [values["algorithm"] for values in config.portfolio] == [*names, *["ppo"] * 3]
    assert scheduler(config).entrants() == [0, 0, 0, 8, 2, 2]


@pytest.mark.parametrize("options", [{"portfolio": "off"}, {"scheduler": "asha"}, {"known": {}}])
def test_without_room_for_a_portfolio_the_first_trials_are_the_defaults_of_all(options: dict[str, Any]) -> None:
    config = study_config(load("auto"), "Pendulum-v1", **{"trials": 16, "epochs": "1:27", **options})
    assert not config.portfolio
    assert [values["algorithm"] for values in config.first_trials] == [*algorithms_in(EnvSpec.of("Pendulum-v1"))]


def test_a_chosen_algorithm_has_its_own_portfolio() -> None:
    config = study_config(load("auto"), "Pendulum-v1", trials=16, epochs="1:27", fixed={"algorithm": "ppo"})
    uids = [config.identity(load("auto"), {**config.fixed, **values}).uid for values in config.portfolio]
    alone = config_of("Pendulum-v1")
    assert uids == [alone.identity(rekindle.PPO, values).uid for values in alone.portfolio]


def test_all_algorithms_scale_what_is_far_from_one_but_the_first() -> None:
    auto = load("auto")
    config = study_config(auto, "Pendulum-v1", trials=16, epochs="1:27")
    far = {"mean": 300.0, "high": 1.0}
    probe = {"slow": None, "random": [0.0, 1.0, 2.0], "lengths": [200], "zero_rewards": 0.0, "observations": far}
    wider = replace(config, space={**config.space, **widened(config, auto, {**probe, "rewards": far})})
    first, *others = scaling_option(wider, auto, {"normalize_obs": True, "scale_reward": True})["portfolio"]["trials"]
    assert not first["ppo.normalize_obs"]
    for values in others:
        name = values["algorithm"]
        assert values[f"{name}.normalize_obs"]
        assert values.get(f"{name}.scale_reward", values.get(f"{name}.normalize_reward", True)), name
        assert values.get(f"{name}.entropy.alpha", 0.1) == 0.1
    assert others[0]["sac.scale_reward"]
    assert others[0]["sac.entropy.alpha"] == 0.1


def test_a_fixed_hyperparameter_is_fixed_in_a_portfolio() -> None:
    config = config_of("Pendulum-v1", fixed={"normalize_obs": True, "use_sde": False})
    assert 2 <= len(config.portfolio) < 7  # those that differ in nothing else are one
    assert not any({"normalize_obs", "use_sde"} & values.keys() for values in config.portfolio)


def test_at_most_half_of_the_trials_are_from_a_portfolio() -> None:
    assert len(config_of("CartPole-v1", trials=9).portfolio) == 4
    assert not config_of("CartPole-v1", trials=7).portfolio


@pytest.mark.parametrize(
    "options",
    [
        {"portfolio": "off"},
        {"search": ["gamma"]},
        {"known": {"gamma": 0.9}},
        {"scheduler": "asha"},
        {"racing": True, "seeds": 5},
    ],
)
def test_a_study_that_says_what_to_try_has_no_portfolio(options: dict[str, Any]) -> None:
    assert "portfolio" not in config_of("CartPole-v1", **options).options


def test_an_unknown_portfolio_is_refused() -> None:
    with pytest.raises(BadConfig, match="portfolio must be one of auto, off, but got 'on'"):
        config_of("CartPole-v1", portfolio="on")


def test_a_rerun_keeps_the_stored_portfolio_or_its_absence(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'a.db'}")
    start_study(store, "old", config_of("CartPole-v1", portfolio="off"))
    assert "portfolio" not in start_study(store, "old", config_of("CartPole-v1")).options
    made = start_study(store, "new", config_of("CartPole-v1"))
    assert start_study(store, "new", config_of("CartPole-v1", portfolio="off")) == made
    with pytest.raises(StudyMismatch, match=r"options\.portfolio \('auto', now 'off'\); use the stored values"):
        start_study(store, "new", config_of("CartPole-v1", portfolio="off"), given_options={"portfolio"})
    with pytest.raises(StudyMismatch, match=r"options\.portfolio \('off', now 'auto'\)"):
        start_study(store, "old", config_of("CartPole-v1", portfolio="auto"), given_options={"portfolio"})
    assert start_study(store, "new", config_of("CartPole-v1", portfolio="auto"), given_options={"portfolio"}) == made


def test_recorded_trainings_are_tables_of_twenty_environments() -> None:
    paths = sorted(TRAININGS.glob("*.npz"))
    assert len(paths) >= 20
    table = read_table(str(TRAININGS / "Swimmer-v5.npz"))
    assert table.steps.tolist() == [12288, 36864, 110592]
    with np.load(table.path) as arrays:
        meta = json.loads(str(arrays["meta"]))
    best = meta["configurations"][int(table.returns[:, 0, -1].argmax())]
    assert best in portfolio("ppo")  # the only one that swims far
