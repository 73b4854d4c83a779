"""Options: hyperparameters and environments from files, help, and errors for invalid words and files."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import own_envs
import pytest
from rekindle.studies.cli.commands.options import described_env, expand_files
from rekindle.studies.cli.parsers import make_parser
from rekindle.studies.cli.parsers.looking import PICTURES
from rekindle.studies.cli.run_files.reading import expand, read
from rekindle.studies.report.pictures import KINDS
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
ENDED = "ended while it made or tried its environment: its code exits, or crashes in C"
HUNG = "has made no step for 2 s while it made or tried its environment, and is killed (--stuck)"


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return f"@{path}"


def test_assignments_override_those_of_a_file(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", {"gamma": 0.9, "optimizer": {"lr": 1e-3, "name": "sgd"}, "target_kl": None})
    other = write(tmp_path / "other.json", {"hyperparameters": {"optimizer.lr": 2e-3}, "uid": "x"})
    assert expand_files([one, "gamma=0.5", other]) == [
        "optimizer.lr=0.002",
        'optimizer.name="sgd"',
        "target_kl=null",
        "gamma=0.5",
    ]
    assert expand_files(["gamma=0.5"]) == ["gamma=0.5"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("one.json", '{"gamma": 0.9, "gamma": 0.99}', "must be a file of JSON, but: gamma is there twice; leave one"),
        (
            "one.json",
            '{"hyperparameters": {"optimizer": {"lr": 1e-3, "name": "sgd", "lr": 1e-3}}}',
            "must be a file of JSON, but: hyperparameters.optimizer.lr is there twice; leave one",
        ),
        (
            "one.yaml",
            "optimizer:\n  lr: 1e-3\n  name: sgd\n  lr: 2e-3\n",
            "one.yaml must be a file of YAML, but: lr is there twice, in lines 2 and 4; leave one",
        ),
    ],
)
@pytest.mark.parametrize("option", ["--try", "--enqueue", "--set"])
def test_a_key_that_a_file_has_twice_is_refused(
    tmp_path: Path, sqlite_url: str, cli: Cli, option: str, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    command = ["create", "ppo", "CartPole-v1", "--study", "s", option, f"@{tmp_path / name}", "--storage", sqlite_url]
    status, _, errors = cli(*command)
    assert (status, errors.count("\n")) == (2, 1)
    assert f"{tmp_path / name} must be" in errors
    assert message in errors


def test_merged_keys_of_yaml_are_no_repetition(tmp_path: Path) -> None:
    text = "base:\n  own: &own {lr: 1, <<: &first {lr: 2, name: sgd}}\nother: {<<: *own, lr: 3}\n"
    (tmp_path / "one.yaml").write_text(text)
    expected = {"base": {"own": {"lr": 1, "name": "sgd"}}, "other": {"lr": 3, "name": "sgd"}}
    assert read(tmp_path / "one.yaml") == expected


def test_options_may_stand_between_task_and_environments(sqlite_url: str, cli: Cli) -> None:
    command = ["create", "--trials", "2", "ppo", "--study", "s", "CartPole-v1", "--across", "iqm", "Acrobot-v1"]
    status, out, errors = cli(*command, "--json", "--storage", sqlite_url)
    assert status == 0, errors
    assert [env["id"] for env in json.loads(out)["environments"]] == ["CartPole-v1", "Acrobot-v1"]


def test_a_study_whose_name_begins_with_a_dash_is_tuned_and_reached(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    at = ["--storage", sqlite_url]
    log = f"--log=csv:{tmp_path / 'curves.csv'}"
    command = ["tune", "surrogate", "--study=-x", "--trials", "2", "--workers", "1", "--epochs", "1:2", log, *at]
    assert cli(*command)[0] == 0
    assert "return" in (tmp_path / "curves.csv").read_text()
    status, out, errors = cli("trials", *at, "--", "-x")
    assert status == 0, errors
    assert "-x: surrogate, seed 0" in out
    file = tmp_path / "kept.rekindle"
    assert cli("export", *at, "--", "-x", str(file))[0] == 0
    assert cli("delete", "--yes", *at, "--", "-x")[0] == 0
    assert file.exists()
    assert not json.loads(cli("status", "--json", *at)[1])["studies"]
    assert "takes no further '-y'" in cli("trials", *at, "--", "-x", "-y")[2]
    status, _, errors = cli("train", "--epochs", "1", "ppo", *SETTINGS, *at, "--", "CartPole-v1")
    assert status == 0, errors


def test_a_confirmation_without_a_number_has_the_usual_seeds(tmp_path: Path) -> None:
    commands = make_parser().commands
    usual = commands["confirm"].parse_args(["s"]).seeds
    for words in (["ppo", "CartPole-v1", "--confirm"], ["ppo", "CartPole-v1", "--confirm", "--racing"]):
        assert commands["tune"].parse_args(words).confirm == usual
    assert commands["tune"].parse_args(["ppo", "CartPole-v1", "--confirm=3"]).confirm == 3
    (tmp_path / "run.toml").write_text('task = "ppo"\nenv = "CartPole-v1"\n')
    words = expand(commands, ["tune", "--confirm", str(tmp_path / "run.toml")])
    assert commands["tune"].parse_args(words[1:]).confirm == usual


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "show"])
def test_the_output_of_show_trains_the_same_task_elsewhere(
    sqlite_url: str, tmp_path: Path, cli: Cli, command: str
) -> None:
    asked = ["train", "ppo", "CartPole-v1", "--epochs", "2", "--json"]
    more = ["--set", "optimizer.name=sgd", "--set", "max_grad_norm=null", "--set", "clip_coef_schedule.name=piecewise"]
    out = cli(*asked, *SETTINGS, *more, "--storage", sqlite_url)[1]
    first = json.loads(out)
    file = tmp_path / "shown.json"
    file.write_text(out if command == "train" else cli("show", first["uid"], "--storage", sqlite_url, "--json")[1])
    status, out, errors = cli(*asked, "--set", f"@{file}", "--storage", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert status == 0, errors
    again = json.loads(out)
    assert (again["uid"], again["digest"], again["resumed"]) == (first["uid"], first["digest"], False)
    other = json.loads(cli(*asked, "--set", f"@{file}", "--set", "gamma=0.5", "--storage", sqlite_url)[1])
    assert other["hyperparameters"] == {**first["hyperparameters"], "gamma": 0.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a file of JSON, but: Expecting property name"),
        ("[1]", "must hold hyperparameters by name, but: values must be a dict by name"),
        ('{"gama": 1}', "there is no hyperparameter 'gama'; did you mean gamma"),
        ('{"gamma": 7}', "gamma must be a number in [0.0, 1.0], not 7"),
        ("[" * 100_000, "must be a file of JSON"),
        (None, "must be a file of JSON, but: [Errno 2]"),
    ],
)
def test_a_wrong_file_is_reported_in_one_line(
    tmp_path: Path, sqlite_url: str, cli: Cli, content: str | None, message: str
) -> None:
    file = tmp_path / "values.json"
    if content is not None:
        file.write_text(content)
    status, out, errors = cli("train", "ppo", "CartPole-v1", "--set", f"@{file}", "--storage", sqlite_url)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("what", "status", "told"),
    [("exit", 3, ENDED), ("sleep", -9, HUNG), ("exit in a step", 3, ENDED), ("sleep in a step", -9, HUNG)],
)
def test_an_environment_that_ends_or_hangs_before_any_training_is_told(
    sqlite_url: str, what: str, status: int, told: str
) -> None:
    spec = json.dumps({"id": "own_envs:Faulty-v0", "kwargs": {"what": what}})
    command = [sys.executable, "-m", "rekindle.studies.cli", "tune", "ppo", spec, "--storage", sqlite_url]
    path = os.pathsep.join([str(Path(own_envs.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    process = nursery.Popen([*command, "--stuck", "2s"], env=environment, stderr=subprocess.PIPE, text=True)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == status, errors
    assert told in errors
    assert ("own_envs.py" in errors) == what.startswith("sleep"), errors  # where it hangs


def test_an_error_in_an_environments_code_is_reported_with_its_place(sqlite_url: str, cli: Cli) -> None:
    spec = json.dumps({"id": "own_envs:Faulty-v0", "kwargs": {"what": "fuel"}})
    status, out, errors = cli("tune", "ppo", spec, "--storage", sqlite_url)
    assert (status, out, errors.count("\n")) == (1, "", 1)
    assert "own_envs:Faulty-v0: the environment's own code raised ValueError: there is no fuel (" in errors
    assert "own_envs.py, line " in errors


def test_an_exception_that_quotes_megabytes_is_shortened(sqlite_url: str, cli: Cli) -> None:
    spec = json.dumps({"id": "own_envs:Faulty-v0", "kwargs": {"what": "quote"}})
    status, out, errors = cli("tune", "ppo", spec, "--storage", sqlite_url)
    assert (status, out, errors.count("\n")) == (1, "", 1)
    assert "own_envs:Faulty-v0: the environment's own code raised ValueError: no such map: ####" in errors
    assert "#### ... ####" in errors
    assert "own_envs.py, line " in errors
    assert len(errors) < 10_000


def test_a_failure_to_close_an_environment_names_it(sqlite_url: str, cli: Cli) -> None:
    status, out, errors = cli("tune", "ppo", "own_envs:Unclosable-v0", "--storage", sqlite_url)
    assert (status, out) == (1, "")
    assert errors == "rekindle: error: own_envs:Unclosable-v0: its close() raised OSError: the device is gone\n"


WINDY = {"id": "CartPole-v1", "max_episode_steps": 9, "info": {"wind": "mean"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("env.json", json.dumps(WINDY)),
        ("shown.json", json.dumps({"uid": "x", "env": WINDY, "hyperparameters": {}})),
        ("env.toml", 'id = "CartPole-v1"\nmax_episode_steps = 9\n[info]\nwind = "mean"\n'),
    ],
)
def test_an_environment_is_read_from_a_file(
    name: str, text: str, sqlite_url: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    more = [*SETTINGS, "--trials", "1", "--epochs", "1", "--json", "--storage", sqlite_url]
    for command in (["create"], ["tune", "--workers", "1"]):
        status, out, errors = cli(*command, "ppo", f"@{name}", *more)
        assert status == 0, errors
        result = json.loads(out)["env"]
        assert {key: result[key] for key in WINDY} == WINDY
    assert described_env(argparse.Namespace(info=["x:max"]), f"@{name}")["info"] == {"wind": "mean", "x": "max"}


def test_a_file_that_holds_no_environment_is_named(tmp_path: Path, cli: Cli) -> None:
    several = write(tmp_path / "several.json", [WINDY, WINDY])
    for file, message in (
        (several, r'ENV @.*several.json must hold one environment, such as {"id": "CartPole-v1".*, but holds [{'),
        ("@gone.json", "ENV @gone.json must be a file of JSON, but: [Errno 2] No such file"),
    ):
        status, _, errors = cli("space", "ppo", file)
        assert status == 2
        assert re.search(message.replace("[", r"\["), errors)


def test_an_environment_that_is_no_json_is_named(sqlite_url: str, cli: Cli) -> None:
    status, _, errors = cli("tune", "ppo", '{"id": "CartPole-v1"', "--storage", sqlite_url)
    assert status == 2
    assert (
        """ENV must be an id, such as CartPole-v1, or JSON, but '{"id": "CartPole-v1"': Expecting ',' del""" in errors
    )


def test_info_that_is_no_metric_cannot_be_sought(sqlite_url: str, cli: Cli) -> None:
    status, _, errors = cli("tune", "ppo", "CartPole-v1", "--objective", "info.cost:minimize", "--storage", sqlite_url)
    assert status == 2
    assert "objective info.cost must be an entry of info that is reported; add --info cost" in errors


def test_every_command_explains_itself() -> None:
    for name, command in make_parser().commands.items():
        assert command.format_help().startswith(f"usage: rekindle {name}")  # a "%" in a text must be written "%%"


def test_the_help_lists_every_command_once_under_a_heading(cli: Cli) -> None:
    parser = make_parser()
    listed = [command.dest for commands in parser.sections.values() for command in commands]
    assert sorted(listed) == sorted(parser.commands)
    assert listed.index("tune") < listed.index("gc")
    status, _, errors = cli()
    assert (status, errors) == (2, parser.format_help())  # without a command
    for title, commands in parser.sections.items():
        assert f"\n{title}:\n  {commands[0].dest} " in errors


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["tnue", "ppo"], "there is no command 'tnue'; did you mean tune? (see rekindle --help)"),
        (["pray"], "there is no command 'pray' (see rekindle --help)"),
        (
            ["tune", "ppo", "CartPole-v1", "--trails", "5"],
            "has no option --trails; did you mean --trials? (see rekindle",
        ),
        (["train", "ppo", "--learning-rate=1"], "--learning-rate; a hyperparameter is set by --set optimizer.lr=VALUE"),
        (["create", "ppo", "CartPole-v1", "--confirm", "5"], "rekindle create has no option --confirm"),
        (["train", "ppo", "--strength", "1"], "--strength; a hyperparameter is set by --set NAME=VALUE"),
        (["trials", "study", "other"], "rekindle trials takes no further 'other' (see rekindle trials --help)"),
        (
            ["tune", "ppo", "CartPole-v1", "--env-kwargs", "size:5"],
            "has no option --env-kwargs; an environment's arguments and wrappers stand in its JSON, '{",
        ),
        (["trials", "study", "--width"], "rekindle trials has no option --width (see rekindle trials --help)"),
    ],
)
def test_a_word_that_no_command_takes_is_named_with_a_cure(command: list[str], told: str, cli: Cli) -> None:
    status, out, errors = cli(*command)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert told in errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--budget -3m",
            "--budget must be a number of at least 1 with a unit, 200epochs, 5e6steps or 2h, but got '-3m'",
        ),
        ("--trials -3x", "argument --trials: must be a number of at least 1, but got '-3x'"),
        ("--trials -.5", "argument --trials: must be a number of at least 1, but got '-.5'"),
        ("--epochs -1:3", "epochs must be written high, low:high or low:high:base, such as 1:27, but got '-1:3'"),
        (
            "--env-steps -1e5",
            "--env-steps must be written high, low:high or low:high:base, such as 100000, but got '-1",
        ),
        (
            "--trial-time -2h",
            "argument --trial-time: must be a duration, such as 90s, 10m, 2h or 1d, or off, but got '",
        ),
        ("--goal -inf", "--goal must be return:VALUE, such as return:475, but got '-inf'"),
        (
            "--budget",
            "--budget: takes a value, WORK, but none follows; add it (one that begins with a minus is written ",
        ),
        (
            "--study -x --seed 1",
            "--study: takes a value, NAME, but none follows; add it (one that begins with a minus is",
        ),
    ],
)
def test_a_value_that_begins_with_a_minus_is_judged_as_any_other(words: str, told: str, cli: Cli) -> None:
    status, _, errors = cli("tune", "ppo", "CartPole-v1", *words.split())
    assert status == 2
    assert told in errors


def test_the_help_names_every_picture() -> None:
    assert re.split(", | or ", PICTURES) == [*KINDS]


def test_entries_of_info_are_named_beside_those_of_the_environment() -> None:
    assert described_env(argparse.Namespace(), "CartPole-v1") == "CartPole-v1"
    spec = described_env(argparse.Namespace(info=["cost:mean", "right"]), "own_envs:Search-v0")
    assert spec["info"] == {"cost": "mean", "right": "last"}
    text = json.dumps({**spec, "info": {"cost": "sum", "wind": "max"}})
    again = described_env(argparse.Namespace(info=["cost:mean"]), text)
    assert again == {**spec, "info": {"cost": "mean", "wind": "max"}}
