"""Hyperparameters that a study searches because of its probe."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rekindle
from rekindle.spaces import flatten
from rekindle.studies.engine.evaluating import eval_steps_of
from rekindle.studies.engine.probes import FOUND, WIDER, described, probe_if_asked, request_probe
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import StudyMismatch
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.portfolio import scaling_option
from rekindle.studies.study.widening import is_dark, is_far_from_one, is_sparse, scaling_values, widened

PROBE: dict[str, Any] = {
    "random": [-200.0] * 9, "zero_rewards": 0.0, "lengths": [200] * 9, "slow": None, "observations": None,
    "rewards": None,
}  # fmt: skip
VARIED = {**PROBE, "random": [1.0, 2.0, 4.0]}


def config_of(env: str = "MountainCar-v0", task: str = "ppo", **options: Any) -> Config:
    return study_config(rekindle.tasks.load(task), env, **{"trials": 8, "epochs": "1:27", **options})


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, True),
        ({"random": [0.0] * 9 + [1.0]}, True),
        ({"random": [0.0] * 8 + [1.0] * 2}, False),
        ({"random": [0.0], "zero_rewards": 1.0}, True),
        ({"random": [0.0], "zero_rewards": 0.99}, False),
        ({"random": [0.0] * 9, "zero_sum": True, "zero_rewards": 0.9}, False),  # a game of two
    ],
)
def test_rewards_are_sparse_where_nine_of_ten_returns_of_random_actions_are_equal(
    changes: dict[str, Any], sparse: bool
) -> None:
    assert is_sparse({**PROBE, **changes}) == sparse


def test_curiosity_is_searched_rarely_where_rewards_are_sparse() -> None:
    wider = widened(config_of(), rekindle.PPO, PROBE)
    assert wider["rnd.use"].startswith("choices([False, True], weights=[3.0, 1.0], default_value=False")
    assert wider.keys() == {"rnd.use", "rnd.strength", "rnd.gamma", "rnd.lr", "rnd.width"}
    assert "when={'use': True}" in wider["rnd.strength"]


def test_horizons_reach_ten_times_the_longest_episode() -> None:
    assert not widened(config_of(), rekindle.PPO, {**VARIED, "lengths": [1000]})  # 0.9999 is searched anyway
    assert widened(config_of(), rekindle.PPO, {**VARIED, "lengths": [20, 2700]}) == {
        "gamma": "near_one(0.9, 0.99999, default_value=0.99)"
    }


@pytest.mark.parametrize(
    ("mean", "high", "far"),
    [
        (0.0, 1.0, False),
        (9.0, 0.0, False),
        (300.0, 1.0, True),  # degrees of temperature
        (-300.0, 1.0, True),
        (0.0, 12.0, True),
        (0.01, 0.02, True),
        (0.0, 0.0, False),  # none differs from 0
        (None, 1.0, True),  # of infinite numbers
    ],
)
def test_numbers_are_far_from_one_by_their_mean_or_deviation(mean: float | None, high: float, far: bool) -> None:
    assert is_far_from_one({"mean": mean, "high": high, "low": 0.0}) == far


def test_scaling_is_searched_where_observations_or_rewards_are_far_from_one() -> None:
    far, near = {"mean": 300.0, "high": 1.0}, {"mean": 1.0, "high": 1.0}
    sac, config = rekindle.tasks.load("sac"), config_of("Pendulum-v1", "sac")
    both = widened(config, sac, {**VARIED, "observations": far, "rewards": far})
    assert both.keys() == {"normalize_obs", "scale_reward"}
    for text in both.values():
        assert text.startswith("choices([False, True], default_value=False")
    assert widened(config, sac, {**VARIED, "observations": far, "rewards": near}).keys() == {"normalize_obs"}
    assert not widened(config, sac, {**VARIED, "observations": near, "rewards": near})
    kept = config_of("Pendulum-v1", "sac", fixed={"normalize_obs": False})
    assert not widened(kept, sac, {**VARIED, "observations": far})


@pytest.mark.parametrize(("largest", "dark"), [(None, False), (0, False), (1, True), (25, True), (26, False)])
def test_images_are_dark_if_all_their_numbers_are_small(largest: int | None, dark: bool) -> None:
    assert is_dark(largest) == dark


@pytest.mark.parametrize("task", ["ppo", "dqn", "pqn"])
def test_dark_images_are_scaled_by_their_largest_number(task: str) -> None:
    algorithm, config = rekindle.tasks.load(task), config_of("own_envs:ImageWalk-v0", task)
    probe = {**VARIED, "largest_pixel": 10}
    wider = widened(config, algorithm, probe)
    assert wider.keys() == {"model.largest_pixel"}
    assert wider["model.largest_pixel"].startswith("choices([10, 255], default_value=255")
    config = replace(config, space={**config.space, **wider})
    first, *others = scaling_option(config, algorithm, scaling_values(config, probe))["portfolio"]["trials"]
    assert first["model.largest_pixel"] == 255
    assert others
    assert {other["model.largest_pixel"] for other in others} == {10}
    assert not widened(config_of("own_envs:ImageWalk-v0", task), algorithm, {**VARIED, "largest_pixel": 200})


def test_a_warm_start_decides_how_observations_are_seen() -> None:
    sac, config = rekindle.tasks.load("sac"), config_of("Pendulum-v1", "sac")
    config = replace(config, options={**config.options, "warm_start": "digest"})
    far = {"mean": 300.0, "high": 1.0}
    assert widened(config, sac, {**VARIED, "observations": far, "rewards": far}).keys() == {"scale_reward"}
    assert not scaling_values(config, {**VARIED, "largest_pixel": 10})


@pytest.mark.parametrize(
    ("task", "options", "firsts"),
    [
        ("sac", {}, 4),  # its portfolio has as many
        ("td3", {}, 2),  # which has none
        ("sac", {"portfolio": "off"}, 0),
        ("td3", {"trials": 7}, 0),
        ("td3", {"search": ["gamma"]}, 0),
        ("td3", {"scheduler": "asha"}, 0),
    ],
)
def test_first_trials_scale_what_is_far_from_one_but_for_the_defaults(
    task: str, options: dict[str, Any], firsts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, far = config_of("Pendulum-v1", task, **options), {"mean": 300.0, "high": 1.0, "low": 1.0, "drift": 0.0}
    whole: dict[str, Any] = {**VARIED, "observations": far, "rewards": far, "restore": None, "untrained": []}
    monkeypatch.setattr("rekindle.tasks.probing.probe", lambda *_, **__: whole)
    with Store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        algorithm = rekindle.tasks.load(task)
        request_probe(store, "s", start_study(store, "s", config), algorithm)
        runner = StudyRunner(store, "s")
        probe_if_asked(runner)
        stored = runner.config
        trials = list(stored.portfolio)
        assert len(trials) == firsts
        if trials:
            assert len(runner.advance()) == firsts
            defaults, *others = [flatten(trial.params) for trial in store.trials("s")]
            assert not defaults["normalize_obs"]
            assert not defaults["scale_reward"]
            assert all(other["normalize_obs"] and other["scale_reward"] for other in others)
            assert {other["entropy.alpha"] for other in others} == {0.1} if task == "sac" else True
            assert stored.brackets[0] == range(firsts)
            assert stored.options["portfolio"]["finishers"] == 2
            assert stored.options["eval_steps"] == eval_steps_of(stored, algorithm)
        assert start_study(store, "s", config, priors=()) == stored  # a rerun
        assert start_study(store, "s", config, (), {"portfolio"}) == stored


@pytest.mark.parametrize("task", ["ppo", "ppo2", "a2c", "trpo", "ars", "pqn"])
def test_algorithms_that_search_the_scaling_of_observations_are_not_widened_by_it(task: str) -> None:
    config = config_of(task=task)
    assert "normalize_obs" in config.open
    assert not widened(config, rekindle.tasks.load(task), {**VARIED, "observations": {"mean": 300.0, "high": 1.0}})


@pytest.mark.parametrize(
    "options",
    [
        {"search": ["gamma"]},
        {"priors": {"gamma": "uniform(0.9, 0.99)"}},
        {"scheduler": "pbt", "trials": None, "epochs": "9"},
        {"fixed": {"rnd": {"use": False}}},
    ],
)
def test_a_study_that_says_what_to_search_is_not_widened(options: dict[str, Any]) -> None:
    assert not widened(config_of(**options), rekindle.PPO, PROBE)


def test_a_probe_that_its_machine_ended_widens_nothing() -> None:
    assert not widened(config_of(), rekindle.PPO, {**PROBE, "slow": 1.0})


def test_only_algorithms_that_a_study_chooses_among_are_widened() -> None:
    config = config_of(task="auto")
    kept = {name: text for name, text in config.space.items() if not name.startswith("sac.")}
    config = Config(**{**config.to_json(), "space": kept})
    assert {name for name in widened(config, rekindle.tasks.load("auto"), PROBE) if name.endswith("use")} == {
        "ppo.rnd.use", "dqn.rnd.use", "qrdqn.rnd.use", "trpo.rnd.use",
    }  # fmt: skip


def test_a_study_is_widened_before_its_first_trial_and_a_rerun_keeps_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of()
    with Store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        request_probe(store, "s", start_study(store, "s", config), rekindle.PPO)
        runner = StudyRunner(store, "s")
        assert runner.advance() == []  # trials may depend on the probe
        whole: dict[str, Any] = {**PROBE, "restore": None, "untrained": []}
        monkeypatch.setattr("rekindle.tasks.probing.probe", lambda *_, **__: whole)
        probe_if_asked(runner)
        assert len(runner.advance()) == len(config.portfolio)
        assert "rnd.use" in runner.config.open
        told = runner.rows.commands[-1].data
        assert (told[FOUND], told[WIDER]) == (whole, widened(config, rekindle.PPO, PROBE))
        assert start_study(store, "s", config, priors=()).space == runner.config.space
        with pytest.raises(StudyMismatch, match=r"differs in space.gamma"):
            start_study(store, "s", config_of(priors={"gamma": "uniform(0.9, 0.99)"}), priors=["gamma"])


def test_a_line_names_hyperparameters_that_a_probe_adds() -> None:
    results = {**PROBE, "restore": None, "actions": None, "seed": 0, "steps": 9}
    results |= {"masks": False, "goals": False, "untrained": [], "terminated": 9, "failures": []}
    (line,) = described(results, wider=["rnd.use", "rnd.gamma"]).warnings
    assert line.endswith("so one trial in four explores by curiosity (rnd.use)")
    scaling = described(results, wider=["normalize_obs", "scale_reward"]).warnings
    assert [line.rpartition(", so ")[2] for line in scaling] == [
        "that many trials normalize them (normalize_obs)",
        "that many trials scale them (scale_reward)",
    ]


def test_the_end_of_tune_shows_what_a_probe_added(sqlite_url: str, cli: Callable[..., tuple[int, str, str]]) -> None:
    ends = {name: {"array": [end] * 3, "dtype": "float32"} for name, end in (("min_obs", 299.0), ("max_obs", 301.0))}
    far = {"entry_point": "gymnasium.wrappers:RescaleObservation", "kwargs": ends}
    env = json.dumps({"id": "Pendulum-v1", "wrappers": [far]})
    small = {"epoch_steps": 64, "learning_starts": 64, "batch_size": 32, "model.width": 16, "replay.name": "uniform"}
    words = [f"--set={name}={value}" for name, value in small.items()]
    status, output, errors = cli(
        "tune", "td3", env, "--trials=8", "--epochs=1", "--workers=1", "--storage", sqlite_url, *words
    )
    assert status == 0, errors
    table, _, remarks = output.partition("8 trials")
    assert "normalize_obs" in table  # among the hyperparameters that were searched
    remark = "observations are far from 1, so that many trials normalize them (normalize_obs)"
    assert remark in " ".join(remarks.split())
