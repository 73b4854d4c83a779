"""Probes of studies: made once, by one worker, whatever happens to it, and told beside results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from rekindle import PPO, Store, tune
from rekindle.studies.engine import probes
from rekindle.studies.engine.probes import (
    ASKED,
    BEGUN,
    FOUND,
    LOST,
    described,
    endless,
    lines_of,
    probe_view,
    request_probe,
)
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.engine.views import ProbeView
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.commands import PROBE, hold_of
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.errors import Hung
from rekindle.tasks.probing import probe
from studying import surrogate, tiny, work

GOOD: dict[str, Any] = {
    "slow": None, "masks": False, "goals": True, "steps": 2000, "seed": 0, "random": [1.0], "untrained": [[1.0]],
    "lengths": [4, 6], "terminated": 1, "rewards": {"low": 0.5, "high": 0.5, "mean": 0.1, "drift": 0.0},
    "zero_rewards": 0.5, "observations": {"low": 0.1, "high": 1.0, "mean": 0.0, "drift": 1.5}, "failures": [],
    "restore": {"mode": "replay", "exact": True, "reason": "it repeats"},
}  # fmt: skip


def rows(store: Store) -> list[dict[str, Any]]:
    return [command.data for command in store.commands("s") if command.kind == PROBE]


def started(store: Store, **options: Any) -> Any:
    config = tiny(trials=2, epochs=(1, 1, 2), **options)
    request_probe(store, "s", start_study(store, "s", config), PPO)
    return config


def test_three_workers_make_one_probe_that_is_the_one_made_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(url) as store:
        config = started(store)
        work(url, 3)
        assert sum(FOUND in data for data in rows(store)) == 1
        alone = probe(PPO, config.identity(PPO, config.fixed))
        assert rows(store)[-1][FOUND] == alone
        expected = described(alone)
        assert expected.baselines["random"].low is not None
        monkeypatch.delattr("rekindle.studies.statistics.intervals.mean_interval")  # readers take what is stored
        assert probe_view(store.commands("s")) == expected
        request_probe(store, "s", config, PPO)  # of a study that has begun
        assert sum(ASKED in data for data in rows(store)) == 1


def test_a_probe_is_repeated_after_crashes_and_given_up_after_five(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_by(error: type[BaseException]) -> None:
        def end(*_: Any, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("rekindle.tasks.probing.probe", end)
            with pytest.raises(error):
                Worker(store, "s").run()

    with Store(sqlite_url) as store:
        started(store)
        for error in [SystemExit, KeyboardInterrupt, *[SystemExit] * 4]:  # the second is what a user asks for
            end_by(error)
        assert [data[BEGUN] for data in rows(store) if BEGUN in data] == [0, 1, 2, 3, 4, 5]
        assert {"ended": 1} in rows(store)
        assert Worker(store, "s").run()
        assert rows(store)[-1] == {LOST: "5 processes that probed it were killed"}
        view = study_view(store, "s").probe
        assert lines_of(view, whole=True) == [
            "the environment could not be probed: 5 processes that probed it were killed"
        ]


def test_a_probe_is_given_up_when_it_has_hung_twice(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> None:
        store.evict_hung(str(Owner.current()), lambda: Hung("process 7 made no step for 9 s\nFile ..."))
        raise SystemExit

    with Store(sqlite_url) as store:
        started(store)
        with monkeypatch.context() as patch:
            patch.setattr("rekindle.tasks.probing.probe", hang)
            for _ in range(2):
                with pytest.raises(SystemExit):
                    Worker(store, "s").run()
        assert Worker(store, "s").run()
        assert rows(store)[-1] == {LOST: "process 7 made no step for 9 s"}


def test_a_probe_that_fails_leaves_the_study_as_it_is(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no simulator")

    monkeypatch.setattr("rekindle.tasks.probing.probe", fail)
    with Store(sqlite_url) as store:
        started(store)
        assert Worker(store, "s").run()
        assert rows(store)[-1] == {LOST: "OSError: no simulator"}


def test_a_study_is_stopped_if_no_episode_ends_and_goes_on_if_resumed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "Unlimited-v0" not in gymnasium.registry:
        gymnasium.register("Unlimited-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    none = GOOD | {"lengths": [], "random": [], "untrained": [[]], "unfinished": {"random": 900, "untrained": 1100}}
    monkeypatch.setattr("rekindle.tasks.probing.probe", lambda *_: none)
    with Store(sqlite_url) as store:
        started(store, env="Unlimited-v0")
        Worker(store, "s").run()
        held = hold_of(store.commands("s"))
        assert held is not None
        assert str(held) == (
            "stop by probe: an evaluation plays whole episodes, but none of Unlimited-v0 ended within 1,100 steps, "
            'and it has no time limit; give it one, such as {"id": ..., "max_episode_steps": 1000}'
        )
        assert store.trials("s") == []
        Steering(store, "s").resume()
        assert Worker(store, "s").run()
    assert endless(EnvSpec.of("CartPole-v1"), none) is None  # it has a limit
    assert endless(EnvSpec.of("Unlimited-v0"), none | {"failures": ["OSError: no"]}) is None
    assert endless(EnvSpec.of("Unlimited-v0"), GOOD) is None


def test_a_study_without_an_environment_to_act_in_has_no_probe(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        request_probe(store, "s", start_study(store, "s", surrogate()), load("surrogate"))
        assert rows(store) == []
        assert study_view(store, "s").probe is None


def test_commands_and_reports_show_results_beside_baselines(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    storage = ("--storage", f"sqlite:///{tmp_path / 's.db'}")
    fixed = {"epoch_steps": 64, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "model": {"width": 16}}
    with Store(storage[1]) as store:
        study = tune("ppo", "CartPole-v1", storage=store, study="s", trials=2, epochs=1, fixed=fixed, progress=False)
        result = study_view(store, "s").probe
        assert isinstance(result, ProbeView)
        assert study.commands[0].kind == PROBE
        html = page([report_view(store, "s")])
    random = result.baselines["random"]
    assert (random.runs, random.value) == (20, pytest.approx(sum(result.random) / 20))
    assert random.low < random.value < random.high
    assert f"<p>{result.text}</p>" in html
    baseline = lines_of(result)[0]
    assert baseline.startswith("for comparison: random actions return ")
    assert lines_of(result, objectives=["return.wolf"]) == []
    assert baseline in " ".join(cli("trials", "s", *storage)[1].split())
    assert result.text in " ".join(cli("status", *storage)[1].split())
    assert cli("probe", "CartPole-v1")[1].startswith("Random actions return 23.4 (")
    status, _, errors = cli("probe", "CartPol-v1")
    assert (status, "CartPole" in errors) == (2, True)


def test_the_command_tells_what_a_study_searches_and_how_one_training_gets_it(
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    def told(*arguments: str) -> str:
        return " ".join(cli("probe", *arguments)[1].split())

    plain, car, lake = told("CartPole-v1"), told("MountainCarContinuous-v0", "--task", "sac"), told("FrozenLake-v1")
    assert "for a single training" not in plain
    assert "and the test of how a state is restored, took " in plain
    assert "for a single training" not in told("MountainCarContinuous-v0"), "PPO has no such hyperparameter"
    assert "for a single training: --set scale_reward=true; `rekindle tune` tries that by itself" in car
    assert "so one trial in four explores by curiosity (rnd.use)" in lake
    assert "curiosity" not in told("FrozenLake-v1", "--task", "ars"), "a task is told of its hyperparameters alone"


def test_bad_environments_get_a_line_each() -> None:
    output = described(GOOD)
    assert output.warnings == []
    assert output.text == (
        "Random actions return 1.00 (1 episode), untrained policies return 1.00 (1 episode). Episodes take 4 to 6 "
        "steps, and 50% of them terminate. 50% of rewards are 0; their standard deviation is 0.500. Observations have "
        "standard deviations of 0.100 to 1.00, and they drift by 1.5 of them. Its state is restored exactly (replay: "
        "it repeats). Observations have goals; off-policy algorithms can learn from those that were achieved (--set "
        "replay.relabel=future)."
    )
    for change, line in [
        (
            {"slow": 10.0, "lengths": []},
            "a step takes 10 s, so the probe ended early, and no study scales or explores because of it; more cores or "
            "machines train faster (rekindle worker)",
        ),
        (
            {"failures": ["OSError: no"]},
            "1 episode failed: OSError: no; a trial that meets this again and again fails; to end such episodes and go "
            'on, write {"id": ..., "on_error": "restart"}',
        ),
        (
            {"lengths": [], "random": [], "untrained": [[]]},  # of an earlier version
            "no episode ended within 1,000 steps; without a time limit (max_episode_steps), evaluations take very long",
        ),
        (
            {"lengths": [100, 101], "untrained": [[], []], "unfinished": {"random": 799, "untrained": 1000}},
            "random actions have ended episodes within 101 steps, but untrained policies none within 1,000: they may "
            "get stuck, as by actions without effect; unless it has a time limit (max_episode_steps), evaluations take "
            "very long",
        ),
        ({"zero_rewards": 1.0}, "no reward was other than 0; if there is none at all, nothing can be learned from it"),
        (
            {"observations": {"low": 0.0, "high": 0.0, "mean": 1.0, "drift": 0.0}},
            "all observations are equal, so that a policy cannot react to anything",
        ),
        (
            {"largest_pixel": 10},
            "no number of an image was above 10, of 255; if that is so of all, --set model.largest_pixel=10 scales "
            "them",
        ),
    ]:
        assert described(GOOD | change).warnings == [line]
    assert described(GOOD | {"largest_pixel": 200}).warnings == []
    short = {"lengths": [900], "untrained": [[], []], "unfinished": {"random": 100, "untrained": 1000}}
    assert described(GOOD | short).warnings == []  # policies had little time
    [scaled] = described(GOOD | {"largest_pixel": 10}, wider=["ppo.model.largest_pixel"]).warnings
    assert scaled.endswith(", of 255, so that many trials scale them (ppo.model.largest_pixel)")
    assert "The agents' rewards add up to 0 in every step." in described(GOOD | {"zero_sum": True}).text
    scale = {"low": 6e-5, "high": 3929.6, "mean": 1.0, "drift": 0.0}
    far = described(GOOD | {"lengths": [5000], "observations": scale})
    assert "Observations have standard deviations of 0.0000600 to 3,930." in far.text
    assert "Episodes take 5,000 steps" in far.text
    assert probes.baselines_text({}) == ""
