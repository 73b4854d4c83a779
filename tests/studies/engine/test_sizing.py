"""Sizes of studies that follow from their time: computed, stored, and never measured again."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import rekindle
import slow_envs
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.studies.cli.commands.outcome import agent_file
from rekindle.studies.engine import sizing
from rekindle.studies.engine.sizing import Sized, learning_soon, pace, sizes
from rekindle.studies.errors import BadConfig
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import SIZED, check_name
from rekindle.studies.study.stored_form import invalid_field
from rekindle.tasks import load, probing
from rekindle.tasks.base_learner import BaseLearner
from rekindle.tasks.checkpoint.policy_files import replace_whole
from rekindle.tasks.envs import make_envs
from rekindle.tasks.errors import EnvironmentFailed
from studying import TINY, surrogate

PACES = {"ppo": 1e-3, "sac": 1.0, "dqn": 1e-3}
PRIOR = ["--prior", "algorithm=choices(['ppo', 'sac'])"]
CREATE = ["create", "auto", "CartPole-v1", "--study", "s", "--budget", "256s", "--json"]


@pytest.mark.parametrize(("seconds", "trials"), [(256, 8), (5760, 64), (3200, 64), (2880, 32), (1920, 32), (960, 8)])
def test_an_epoch_takes_the_same_time_with_each_algorithm_in_studies_of_earlier_versions(
    seconds: int, trials: int
) -> None:
    """All trainings together take n / 3 + 3 full ones of 27 epochs, in a quarter of the time."""
    paces = {"ppo": 1e-4, "sac": 1e-3, "tqc": 10.0}
    result, steps = sizes(Sized(seconds, paces))
    epoch = 0.25 * seconds / (27 * (result / 3 + 3))
    assert result == trials
    assert steps == {name: math.floor(epoch / paces[name]) for name in ("ppo", "sac")}


@pytest.mark.parametrize(
    ("seconds", "trials", "confirmation"), [(256, 8, 3), (5760, 64, 3 + 2 + 2 + 6), (2880, 32, 6 + 6), (720, 16, 3)]
)
def test_an_epoch_takes_the_same_time_with_each_algorithm(seconds: int, trials: int, confirmation: int) -> None:
    """Three of 64 trials race, and two of 32; two finalists are then estimated. No race precedes that of one."""
    paces = {"ppo": 1e-4, "sac": 1e-3, "tqc": 10.0}
    result, steps = sizes(Sized(seconds, paces, races=True))
    epoch = 0.35 * seconds / (27 * (result / 3 + confirmation))
    assert result == trials
    assert steps == {name: math.floor(epoch / paces[name]) for name in ("ppo", "sac")}
    assert result == 8 or 27 * steps["ppo"] >= 300_000


def test_too_little_time_is_refused_with_the_time_that_is_enough() -> None:
    """A training of 10,000 steps of 10 s takes 100,000 s, and 8 / 3 + 3 of them 567,000 s, a quarter of 26.2 days."""
    day = 86_400
    with pytest.raises(BadConfig, match=r"3,000 .* takes 10 s here, and of a budget of 7d .* has 2,668; give 26.2d"):
        sizes(Sized(7 * day, {"ppo": 10.0, "sac": 11.0}))
    with pytest.raises(BadConfig, match=r"has 0; give 26.2d"):
        sizes(Sized(60, {"ppo": 10.0}))


def test_the_time_that_a_refusal_names_suffices_on_a_machine_three_times_as_busy() -> None:
    with pytest.raises(BadConfig, match=r"a budget of 15s .* give 59.1s"):
        sizes(Sized(15, {"ppo": 3.65e-4, "sac": 1.0}, races=True))
    slower = Sized(59.1, {"ppo": 3 * 3.65e-4, "sac": 3.0}, races=True)
    assert sizes(slower) == (8, {"ppo": 123})
    assert sizing.described(slower) == (
        "59.1s pay 8 trials of ppo 3,321 steps; too slow for this time: sac; so few steps seldom teach much, 2.97m "
        "would pay 10,000"
    )


def test_an_environment_whose_episodes_never_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "STEPS", 60)
    monkeypatch.setattr(probing, "MORE_STEPS", 60)
    with pytest.raises(BadConfig, match=r"none of simulators:Endless-v0 ended within [\d,]+ steps, and it has no"):
        sizing.paces_in(rekindle.EnvSpec("simulators:Endless-v0"), ["ppo"], 0)


def test_an_environment_that_fails_again_and_again_is_refused_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = [EnvironmentFailed("lost"), EnvironmentFailed("lost")]

    def measured(name: str, env: rekindle.EnvSpec, seed: int) -> float:
        if failures:
            raise failures.pop()
        return 1e-3

    monkeypatch.setattr(sizing, "pace", measured)
    env = rekindle.EnvSpec("CartPole-v1")
    assert sizing.paces_in(env, ["ppo"], 0) == ({"ppo": 1e-3}, {})
    failures += [EnvironmentFailed("lost")] * 3
    with pytest.raises(
        EnvironmentFailed, match=r'CartPole-v1: its own code .* \(lost\) in 3 .* write .*"on_error": "restart"'
    ):
        sizing.paces_in(env, ["ppo"], 0)


def test_in_a_slow_environment_all_algorithms_are_equally_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_envs("slow_envs:Slow-v0", [0], 1).close()  # the self-test is quick
    monkeypatch.setenv(slow_envs.VARIABLE, str(tmp_path))  # a step takes 5 ms or more
    monkeypatch.setattr(probing, "SECONDS", 0.02)
    monkeypatch.delattr(sizing, "pace")
    paces, _ = sizing.paces_in(rekindle.EnvSpec("slow_envs:Slow-v0"), ["ppo", "dqn"], 0)
    assert paces["ppo"] == paces["dqn"] > 0.004


def test_the_pace_of_an_algorithm_is_that_of_its_steps() -> None:
    assert all(0 < pace(name, rekindle.EnvSpec("CartPole-v1"), 0) < 10 for name in ("ppo", "dqn"))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_measured_steps_have_as_many_gradient_steps_as_those_of_trainings(env: str) -> None:
    """A replaying algorithm whose rollouts were longer seemed 20 times as fast as it is."""
    spec = rekindle.EnvSpec(env)
    names = [start["algorithm"] for start in load("auto").starts(spec)]
    assert {"ppo", "sac", "trpo"} <= {*names}
    for name in names:
        dimensions = load(name).learner.space_in(spec).flat()
        defaults = {path: dimension.default for path, dimension in dimensions.items()}
        assert learning_soon(defaults)
        assert gradient_steps(defaults | learning_soon(defaults)) == gradient_steps(defaults)


def gradient_steps(values: dict[str, Any]) -> tuple[float, float]:
    """Gradient steps for each step of an environment, and the size of their batches."""
    rollout = values["num_steps"] * values["num_envs"]
    if "learning_starts" in values:
        return values["num_updates"] / rollout, values["batch_size"]
    minibatches = values.get("num_minibatches", 1)
    return values.get("update_epochs", 1) * minibatches / rollout, rollout / minibatches


def test_an_algorithm_that_cannot_train_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(name: str, env: rekindle.EnvSpec, seed: int) -> float:
        if name != "ppo":
            raise {"sac": MemoryError, "dqn": ValueError}[name]("no room")
        return 1e-3

    monkeypatch.setattr(sizing, "pace", measured)
    env = rekindle.EnvSpec("CartPole-v1")
    paces, refused = sizing.paces_in(env, ["sac", "ppo", "dqn"], 0)
    assert (paces, refused) == ({"ppo": 1e-3}, {"sac": "no room", "dqn": "no room"})
    assert "; sac is left out: no room" in sizing.described(Sized(256, paces, refused))
    with pytest.raises(ValueError, match="no room"):
        sizing.paces_in(env, ["sac", "dqn"], 0)


def test_an_algorithm_that_takes_too_long_is_measured_by_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "PATIENCE", 0.0)
    monkeypatch.setattr(sizing, "MOMENT", math.inf)
    monkeypatch.setattr(sizing, "MOST", 10**9)
    assert 0 < pace("ppo", rekindle.EnvSpec("CartPole-v1"), 0) < 1


def test_a_size_is_measured_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for paces in (PACES, {}):  # a second measurement would fail
        monkeypatch.setattr(sizing, "paces_in", lambda env, names, seed, paces=paces: (paces, {}) if paces else 1 / 0)
        assert main([*CREATE, "--storage", sqlite_url]) == 0
        output = capsys.readouterr()
        made.append(json.loads(output.out))
        # An epoch takes 0.35 * 256 s / (27 * (8 / 3 + 3)) = 0.5856 s.
        text = "4.27m pay 8 trials of ppo 15,795, dqn 15,795 steps; too slow for this time: sac"
        assert text in output.err
    assert made[0] == made[1]
    with Store(sqlite_url) as store:
        options = store.study("s").config["options"]
    assert options[SIZED] == {"seconds": 256, "paces": PACES, "races": True}
    assert [values["algorithm"] for values in options["portfolio"]["trials"]] == ["ppo", "dqn", "ppo", "ppo"]


@pytest.mark.parametrize(
    "stored",
    [
        {"paces": {}},
        {"seconds": 9, "paces": PACES, "trials": 8},
        {"seconds": 9, "paces": []},
        {"seconds": 9, "paces": PACES, "races": 1},
    ],
)
def test_a_stored_size_that_this_version_cannot_read_is_refused(stored: dict[str, Any]) -> None:
    form = surrogate(4).to_json()
    assert invalid_field(form | {"options": {SIZED: {"seconds": 9, "paces": PACES}}}) == ""
    assert invalid_field(form | {"options": {SIZED: stored}}).startswith(f"its options.{SIZED} is ")


@pytest.mark.parametrize("given", [["--trials", "4"], ["--epochs", "1:3"]])
def test_a_size_that_is_given_is_not_measured(
    sqlite_url: str, given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(sizing, "paces_in")
    assert main([*CREATE, *given, "--storage", sqlite_url]) == 0
    with Store(sqlite_url) as store:
        assert SIZED not in store.study("s").config["options"]


@pytest.mark.slow
def test_time_alone_gives_a_confirmed_agent(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's last paragraph tells of it, and nothing that it tells is told before."""
    monkeypatch.setattr(sizing, "paces_in", lambda env, names, seed: ({name: PACES[name] for name in names}, {}))
    options: dict[str, Any] = {"storage": sqlite_url, "study": "s", "progress": False, "budget": "1920s"}
    study = rekindle.tune("auto", "CartPole-v1", priors={"algorithm": "choices(['ppo', 'sac'])"}, **options)
    assert study.complete
    text = study.answer(tmp_path / "agent.safetensors")
    assert "seeds" in text
    assert f"its agent is in {tmp_path / 'agent.safetensors'}" in text
    assert (tmp_path / "agent.safetensors").stat().st_size > 1000
    monkeypatch.chdir(tmp_path)
    assert (
        main(["tune", "auto", "CartPole-v1", *PRIOR, "--study", "s", "--budget", "1920s", "--storage", sqlite_url]) == 0
    )
    output = " ".join(capsys.readouterr().out.split())
    assert "its agent is in s.safetensors" in output
    for told in ("Expect", "andom actions return"):
        assert output.count(told) == 1, told


@pytest.mark.parametrize(
    ("study", "file"),
    [
        ("s", "s.safetensors"),
        ("auto-ALE/Pong-v5", "auto-ALE-Pong-v5.safetensors"),
        ("/../s", "-..-s.safetensors"),
        ("ü" * 240, f"{'ü' * 100}-9d004cdd.safetensors"),
    ],
)
def test_the_agent_of_any_study_has_a_file(study: str, file: str, tmp_path: Path) -> None:
    assert check_name(study) == study
    assert str(agent_file(study)) == file
    replace_whole(tmp_path / agent_file(study), b"agent")
    assert (tmp_path / file).read_bytes() == b"agent"


def test_returns_of_random_actions_compare_with_returns_alone(sqlite_url: str, tmp_path: Path) -> None:
    same: dict[str, Any] = {
        "storage": sqlite_url,
        "trials": 1,
        "epochs": 1,
        "fixed": unflatten(TINY),
        "progress": False,
    }
    for study, objective, compared in (("s", "return", True), ("t", "model_size", False)):
        text = rekindle.tune("ppo", "CartPole-v1", study=study, objective=objective, **same).answer(
            tmp_path / "a.safetensors"
        )
        assert ("For comparison: random actions return" in text) is compared, text


def test_time_alone_gives_a_study_whose_winner_cannot_be_confirmed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(training: object, *arguments: object) -> None:
        raise ArithmeticError("lost")

    monkeypatch.setattr(sizing, "paces_in", lambda env, names, seed: ({name: PACES[name] for name in names}, {}))
    monkeypatch.setattr(BaseLearner, "run_epoch", fail)
    options: dict[str, Any] = {"storage": sqlite_url, "study": "s", "progress": False, "budget": "256s"}
    options["priors"] = {"algorithm": "choices(['ppo', 'sac'])"}
    law = "study s is not confirmed: a confirmation needs a result at the top rung"
    with pytest.warns(UserWarning, match=law) as caught:
        study = rekindle.tune("auto", "CartPole-v1", **options)
    assert {Path(warning.filename) for warning in caught if "confirmed" in str(warning.message)} == {Path(__file__)}
    assert study.complete
    assert study.best is None
    with warnings.catch_warnings(record=True) as caught_later:
        warnings.simplefilter("always")
        rekindle.tune("auto", "CartPole-v1", trials=len(study.trials), **options)  # a size, as with the command
    assert not [warning for warning in caught_later if "confirmed" in str(warning.message)]
