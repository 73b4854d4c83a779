"""The commands `space`, `create` and `tasks`, budgets, and tasks named by their class."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import rekindle
from rekindle.studies.storage.store import Store
from studying import TINY, bits, tiny, undisturbed

Cli = Callable[..., tuple[int, str, str]]
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


def test_a_space_is_shown_with_and_without_an_environment(cli: Cli) -> None:
    status, out, _ = cli("space", "ppo", "CartPole-v1", "--json")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(out)["hyperparameters"]}
    assert rows["optimizer.lr"]["searched"].startswith("loguniform(3e-05, 0.01")
    assert (rows["optimizer.lr"]["default"], rows["epoch_steps"]["default"]) == (1e-3, 4096)
    assert (rows["epoch_steps"]["searched"], rows["model.std_init"]["searched"]) == (None, None)
    status, out, _ = cli("space", "ppo")
    assert status == 0
    assert "optimizer.lr" in out
    assert cli("space", "pppo")[0] == 2


def test_a_study_is_made_without_workers_and_is_the_same_one(sqlite_url: str, cli: Cli) -> None:
    command = [
        "ppo",
        "CartPole-v1",
        "--trials",
        "2",
        "--generation",
        "4",
        "--cohort",
        "2",
        "--epochs",
        "1:4:2",
        "--eval-episodes",
        "20",
        *SETTINGS,
    ]
    status, out, _ = cli("create", *command, "--study", "s", "--storage", sqlite_url)
    assert (status, "rekindle worker --study s --storage" in out) == (0, True)
    with Store(sqlite_url) as store:
        assert store.trials("s") == []
        assert cli("worker", "--study", "s", "--storage", sqlite_url)[0] == 0
        assert bits(store) == undisturbed(tiny(2))


def test_a_study_for_gpus_is_made_where_none_is(sqlite_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    command = ["surrogate", "--study", "g", "--storage", sqlite_url, "--device", "cuda:7"]
    status, out, _ = cli("create", *command)
    assert (status, out.strip().endswith("--device cuda:7")) == (0, True)
    status, _, errors = cli("tune", *command)  # trains here
    assert (status, "device 'cuda:7' is not available" in errors) == (2, True)


def test_a_users_environment_is_found_in_the_working_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9"
    (tmp_path / "beside_us.py").write_text(f"import gymnasium\ngymnasium.register('Beside-v0', {made})\n")
    monkeypatch.setattr("sys.path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    command = ["space", "ppo", "beside_us:Beside-v0"]
    status, _, errors = cli(*command)
    assert (status, len(errors.splitlines())) == (2, 1)
    assert "No module named 'beside_us'" in errors
    assert "; install its package, or run where its file is" in errors
    monkeypatch.chdir(tmp_path)
    assert cli(*command)[0] == 0


def test_the_package_is_run_as_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rekindle", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("rekindle", run_name="__main__")
    assert capsys.readouterr().out == f"rekindle {rekindle.__version__}\n"


def test_a_storage_without_such_trainings_says_what_makes_one(sqlite_url: str, cli: Cli) -> None:
    Store(sqlite_url).close()
    said = " ".join(cli("tasks", "--storage", sqlite_url)[1].split())
    assert said == f"{sqlite_url}: no training outside a study yet; `rekindle train` makes one"


def test_trainings_without_a_study_are_listed(sqlite_url: str, cli: Cli) -> None:
    command = ["train", "ppo", "CartPole-v1", "--epochs", "1", *SETTINGS, "--storage", sqlite_url, "--json"]
    trained = json.loads(cli(*command)[1])
    [result] = json.loads(cli("tasks", "--storage", sqlite_url, "--json")[1])["tasks"]
    assert result == {name: trained[name] for name in ("uid", "task", "env", "seed", "epochs", "return")}
    assert trained["uid"][:8] in cli("tasks", "--storage", sqlite_url)[1]


@pytest.mark.parametrize(("steps", "epochs"), [("100", 2), ("64", 1), ("65", 2)])
def test_a_budget_in_environment_steps_is_whole_epochs(steps: str, epochs: int, sqlite_url: str, cli: Cli) -> None:
    command = ["ppo", "CartPole-v1", *SETTINGS, "--storage", sqlite_url, "--json"]
    assert json.loads(cli("train", *command, "--env-steps", steps)[1])["epochs"] == epochs
    made = json.loads(cli("create", *command, "--env-steps", f"{steps}:1000:2")[1])
    assert (made["rungs"][0], made["rungs"][-1]) == (epochs, 16)
    status, _, errors = cli("train", *command, "--env-steps", "many")
    assert (status, "--env-steps must be written high, low:high or low:high:base" in errors) == (2, True)


MINE = """
from rekindle import PPO

class Mine(PPO):
    name = "mine"
"""


def test_a_task_is_named_by_its_class(
    sqlite_url: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_task_module.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    command = ["CartPole-v1", "--epochs", "1", *SETTINGS, "--storage", sqlite_url, "--json"]
    status, out, errors = cli("train", "my_task_module:Mine", *command)
    assert status == 0, errors
    trained = json.loads(out)
    assert trained["task"] == "my_task_module:Mine"
    assert json.loads(cli("replay", trained["uid"], "--storage", sqlite_url, "--json")[1])["equal"]
    for name, message in (("my_task_module:Other", "no attribute 'Other'"), ("json:dumps", "must be a class derived")):
        status, _, errors = cli("train", name, *command)
        assert (status, message in errors) == (2, True)


def test_the_hyperparameters_of_an_optuna_trial_are_those_that_init_takes(sqlite_url: str) -> None:
    objective = rekindle.Objective(
        rekindle.PPO, "CartPole-v1", epochs=1, storage=sqlite_url, objectives=["return_stochastic"], **NESTED
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=1)
    task = rekindle.PPO("CartPole-v1").init(**objective.hyperparameters(study.best_trial))
    assert task.uid == study.best_trial.user_attrs["rk_uid"]
    task.fit(1)
    assert sum(task.returns(deterministic=False)) / 20 == pytest.approx(study.best_value)
    objective.store.close()


NESTED: dict[str, Any] = {
    **{name: value for name, value in TINY.items() if "." not in name},
    "model": {"width": 16, "layers": 1, "activation": "tanh"},
}


def test_known_configurations_are_tried_first(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    command = ["ppo", "CartPole-v1", *SETTINGS, "--trials", "3", "--epochs", "1", "--storage", sqlite_url, "--json"]
    for n, content in enumerate(({"gamma": 0.97, "optimizer": {"lr": 2e-3}}, {"hyperparameters": {"gamma": 0.95}})):
        (tmp_path / f"{n}.json").write_text(json.dumps(content))
    known = ["--try", f"@{tmp_path / '0.json'}", "--enqueue", f"@{tmp_path / '1.json'}"]
    status, out, errors = cli("tune", *command, *known, "--workers", "1")
    assert status == 0, errors
    first, second, third = (trial["hyperparameters"] for trial in json.loads(out)["trials"])
    assert (first["gamma"], first["optimizer.lr"], second["gamma"]) == (0.97, 2e-3, 0.95)
    assert third["gamma"] not in (0.97, 0.95)
    (tmp_path / "best.json").write_text(json.dumps(json.loads(out)["best"]))
    status, out, _ = cli("create", *command, "--study", "t", "--try", f"@{tmp_path / 'best.json'}")
    assert status == 0
    for content, message in (
        ({"optimizer.lr": 50.0}, "a known configuration must be in the searched space, but"),
        ({"gama": 0.9}, "names hyperparameters of ppo, but got gama; did you mean gamma"),
        ({"model.width": 64}, "its model.width is 64 and the study's is 16; --set model.width=64, or search it"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(content))
        status, _, errors = cli("create", *command, "--study", "u", "--try", f"@{tmp_path / 'bad.json'}")
        assert (status, message in errors) == (2, True), errors
    assert "each takes one trial" in cli("create", *command, "--trials", "1", "--study", "u", *known)[2]


def test_space_explains_hyperparameters_beside_their_ranges(cli: Callable[..., Any]) -> None:
    status, out, _ = cli("space", "dqn", "CartPole-v1")
    told = " ".join(out.split())
    assert (status, "optimizer.lr loguniform(3e-05, 0.01," in told, "learning rate;" in told) == (0, True, True)
    rows = {row["name"]: row for row in json.loads(cli("space", "dqn", "--json")[1])["hyperparameters"]}
    assert rows["double"]["help"].startswith("choose actions of the target by the online network")
    assert "(learning rate; lower it if " in cli("train", "dqn", "CartPole-v1", "--set", "optimizer.lr=-1")[2]
