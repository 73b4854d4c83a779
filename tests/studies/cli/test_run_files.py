"""Run files: options in TOML or YAML, typed options beside them, and files that commands write."""

from __future__ import annotations

import json
import resource
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rekindle.studies.cli.parsers import make_parser
from rekindle.studies.cli.run_files.reading import COMMANDS, places, read
from rekindle.studies.cli.run_files.writing import to_toml
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
RUN = """
task = "ppo"
epochs = 2
seed = 3
snapshots = "all"

[env]
id = "MountainCar-v0"
max_episode_steps = 50

[hyperparameters]
epoch_steps = 64
num_envs = 2
num_steps = 32
num_minibatches = 2
update_epochs = 1
max_grad_norm = "null"
model = {width = 16, layers = 1, activation = "tanh"}
optimizer.lr = 2e-3

[ranges]
gamma = "near_one(0.9, 0.999)"

[study]
name = "from a file"
trials = 2
cohort = 2
objective = ["return", "model_size"]
"""
YAML = """
task: ppo
epochs: 2
seed: 3
env: {id: MountainCar-v0, max_episode_steps: 50}
hyperparameters:
  epoch_steps: 64
  num_envs: 2
  num_steps: 32
  num_minibatches: 2
  update_epochs: 1
  max_grad_norm: null
  model: {width: 16, layers: 1, activation: tanh}
  optimizer: {lr: 2e-3}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "run.yaml").write_text(YAML)
    return str(tmp_path / "run.toml")


def train(cli: Cli, *words: str) -> dict[str, Any]:
    status, out, errors = cli("train", *words, "--json")
    assert status == 0, errors
    return dict(json.loads(out))


def test_a_file_is_the_command_line_and_what_is_typed_wins(file: str, sqlite_url: str, cli: Cli) -> None:
    env = '{"id": "MountainCar-v0", "max_episode_steps": 50}'
    settings = [*SETTINGS, "--set", "max_grad_norm=null", "--set", "optimizer.lr=2e-3", "--seed", "3"]
    typed = train(cli, "ppo", env, "--epochs", "2", *settings, "--storage", sqlite_url)
    for path in (file, file.replace(".toml", ".yaml")):
        result = train(cli, path, "--storage", sqlite_url)
        assert (result["uid"], result["digest"], result["resumed"]) == (typed["uid"], typed["digest"], True)
    other = train(cli, file, "--seed=4", "--set", "optimizer.lr=1e-3", "--epochs", "1", "--storage", sqlite_url)
    assert (other["seed"], other["epochs"], other["hyperparameters"]["optimizer.lr"]) == (4, 1, 1e-3)
    assert other["hyperparameters"]["max_grad_norm"] is None
    assert train(cli, file, "--env-steps", "128", "--storage", sqlite_url)["epochs"] == 2  # the file has epochs


@pytest.mark.parametrize(
    ("text", "value"), [("1:27", "1:27"), ("1:27.5", "1:27.5"), ("27", 27), ("1e3", 1e3), ("2.5", 2.5)]
)
def test_yaml_reads_numbers_with_colons_as_text(text: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"epochs: {text}")
    assert read(tmp_path / "run.yaml") == {"epochs": value}


def test_a_written_run_file_alone_trains_the_same(file: str, sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    saved, output = tmp_path / "saved.toml", tmp_path / "shown.toml"
    first = train(cli, file, "--set", "gamma=0.9", "--storage", sqlite_url, "--save-config", str(saved))
    content = tomllib.loads(saved.read_text())
    assert (content["seed"], content["env_processes"], content["hyperparameters"]["clip_coef"]) == (3, 0, 0.2)
    output.write_text(cli("show", first["uid"], "--config", "--storage", sqlite_url)[1])
    for n, path in enumerate((saved, output)):
        again = train(cli, str(path), "--storage", f"sqlite:///{tmp_path / str(n)}.db")
        assert (again["uid"], again["digest"], again["resumed"]) == (first["uid"], first["digest"], False)


def test_a_date_is_no_hyperparameter(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "dates.toml").write_text("gamma = 2026-01-01")
    words = ["ppo", "CartPole-v1", "--set", f"@{tmp_path / 'dates.toml'}", "--storage", sqlite_url]
    for command in ("create", "train"):
        status, _, errors = cli(command, *words)
        law = "gamma must be a number, a text, a truth value or a list, but is datetime.date(2026, 1, 1); put a text in"
        assert (status, law in " ".join(errors.split())) == (2, True)


def test_a_written_run_file_keeps_what_is_off_and_what_is_none(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    saved, again = tmp_path / "saved.toml", tmp_path / "again.toml"
    env = '{"id": "CartPole-v1", "kwargs": {"render_mode": null}}'
    words = ["ppo", env, *SETTINGS, "--epochs", "1", "--trials", "1", "--stuck", "off", "--storage", sqlite_url]
    assert cli("create", *words, "--save-config", str(saved))[0] == 0
    content = tomllib.loads(saved.read_text())
    assert (content["stuck"], json.loads(content["env"])["kwargs"]) == ("off", {"render_mode": None})
    assert cli("create", str(saved), "--save-config", str(again))[0] == 0
    assert tomllib.loads(again.read_text()) == content


@pytest.mark.parametrize("command", ["create", "import-config"])
def test_a_run_file_that_finds_no_room_leaves_the_old_one(
    command: str, sqlite_url: str, tmp_path: Path, cli: Cli
) -> None:
    old, behaviors = tmp_path / "files" / "old.toml", tmp_path / "behaviors.yaml"
    old.parent.mkdir()
    old.write_text("task = 'ppo'")
    behaviors.write_text("behaviors: {mine: {trainer_type: ppo, hyperparameters: {learning_rate: 2.0e-3}}}")
    words = {
        "create": ["ppo", "CartPole-v1", "--storage", sqlite_url, "--save-config", str(old)],
        "import-config": [str(behaviors), "--output", str(old)],
    }
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        status, _, errors = cli(command, *words[command])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, "old.toml cannot be: File too large; give another name" in errors) == (2, True)
    assert [file.read_text() for file in old.parent.iterdir()] == ["task = 'ppo'"]
    assert cli(command, *words[command])[0] == 0
    assert tomllib.loads(old.read_text())["task"] == "ppo"


def test_a_study_is_made_of_a_file_and_again_of_the_one_it_writes(
    file: str, sqlite_url: str, tmp_path: Path, cli: Cli
) -> None:
    saved = str(tmp_path / "saved.toml")
    status, out, errors = cli("create", file, "--storage", sqlite_url, "--json", "--save-config", saved)
    assert status == 0, errors
    made = json.loads(out)
    assert (made["study"], made["trials_total"], made["rungs"], made["seed"]) == ("from a file", 2, [2], 3)
    assert list(made["objectives"]) == ["return", "model_size"]
    assert made["fixed"]["max_grad_norm"] is None
    assert cli("create", saved, "--storage", sqlite_url)[0] == 0  # no StudyMismatch
    status, _, errors = cli("create", file, "--trials", "3", "--set", "vf_coef=0.25", "--storage", sqlite_url)
    assert (status, "differs in" in errors) == (2, True)


def test_a_typed_search_or_value_wins_over_the_file(tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'task = "surrogate"\n[hyperparameters]\nlr = 0.01\nseconds = 0\n[study]\ntrials = 4\n'
        'search = ["gamma", "lr"]\n[ranges]\nwidth = "ordinal(16, 32)"\n'
    )

    def created(*words: str) -> tuple[dict[str, Any], list[str]]:
        study = " ".join(words)
        status, _, errors = cli("create", str(file), *words, f"--study={study}", "--storage", sqlite_url)
        assert status == 0, errors
        with Store(sqlite_url) as store:
            config = Config.from_json(store.study(study).config, study)
        return config.fixed, sorted(config.searched.flat())

    assert created("--set=noise=0.5") == ({"noise": 0.5, "seconds": 0, "epoch_steps": 1}, ["gamma", "lr", "width"])
    assert created("--search=lr", "--try", f"@{file}")[1] == ["lr", "width"]
    assert created("--prior", "seconds=uniform(0, 1)", "--set=noise=0")[1] == ["gamma", "lr", "seconds", "width"]
    assert created("--set", "gamma=0.9", "--set", "width=64")[1] == ["lr"]
    status, _, errors = cli("create", str(file), "--search", "lr", "--set", "lr=1e-3", "--storage", sqlite_url)
    assert (status, errors.count("\n")) == (2, 1)
    assert "lr is both; leave out --set lr or --search lr" in errors


def test_files_that_options_take_are_not_the_run_file(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    known, saved = tmp_path / "known.toml", tmp_path / "saved.toml"
    known.write_text("gamma = 0.9")
    for taken in (["--set", f"@{known}"], ["--try", f"@{known}"]):
        command = ["create", "ppo", "CartPole-v1", *taken, "--study", taken[0][2:], "--save-config", str(saved)]
        status, _, errors = cli(*command, "--storage", sqlite_url)
        assert status == 0, errors
        assert tomllib.loads(saved.read_text())["study"]["name"] == taken[0][2:]
        saved.unlink()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 2", "epoch = 2", "there is no 'epoch' in a run file; did you mean epochs"),
        ("trials = 2", "trails = 2", "there is no 'study.trails' in a run file; did you mean study.trials"),
        ('task = "ppo"', "", "has no task"),
        ("seed = 3", "seed = [3]", "seed must be one value, as --seed takes it, but is [3]"),
        ("seed = 3", "seed = -1", "argument --seed: must be an integer from 0"),
        ("[env]", "[extra]", "there is no 'extra.id' in a run file"),
        ("seed = 3", "partial = 1", "partial must be true or false, but is 1"),
        ("optimizer.lr = 2e-3", "optimizer.rl = 1", "did you mean optimizer.lr"),
        ("[env]", "[env", "must be a file of TOML, but: Expected ']'"),
    ],
)
def test_a_wrong_file_is_one_line_before_a_database(
    old: str, new: str, message: str, file: str, sqlite_url: str, cli: Cli
) -> None:
    Path(file).write_text(RUN.replace(old, new))
    status, out, errors = cli("train", file, "--storage", sqlite_url)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("section", ["hyperparameters", "ranges"])
def test_a_table_of_names_is_a_table(section: str, tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    (file := tmp_path / "run.toml").write_text(f'task = "surrogate"\n{section} = 3\n')
    status, _, errors = cli("create", str(file), "--storage", sqlite_url)
    assert (status, f"{section} must be a table, with a line for each name, but" in errors) == (2, True), errors
    assert errors.strip().endswith(f"{file} has 3")


def test_a_name_that_is_no_text_is_in_no_run_file(tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    """As a shell passes it on in another encoding."""
    words = ("create", "surrogate", "--study", "caf\udce9", "--storage", sqlite_url)
    status, _, errors = cli(*words, "--save-config", str(tmp_path / "run.toml"))
    assert status == 2
    assert "a run file is text in UTF-8, but name = " in errors
    assert "is not; give it another name" in errors


def test_a_file_may_leave_all_out_but_the_task(tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "surrogate"\nepochs = 2\nuse_previous = true\n')
    assert train(cli, str(file), "--storage", sqlite_url)["epochs"] == 2
    file.write_text('task = "ppo"\nenv = ["CartPole-v1", "Acrobot-v1"]\n')
    status, _, errors = cli("train", str(file), "--storage", sqlite_url)
    assert (status, "a training has one environment, but" in errors) == (2, True)
    file.write_text('task = "ppo"\nenv = "CartPole-v1"\n[ranges.optimizer]\nlr = "loguniform(1e-4, 1e-3)"\n')
    status, out, errors = cli("create", str(file), "--trials", "2", "--storage", sqlite_url, "--json")
    assert status == 0, errors
    with Store(sqlite_url) as store:
        assert (
            store.study(json.loads(out)["study"]).config["space"]["optimizer.lr"].startswith("loguniform(0.0001, 0.001")
        )
    listed = tmp_path / "run.yaml"
    listed.write_text("- task\n- ppo\n")
    assert "must hold options by name, but holds \"['task', 'ppo']\"" in cli("train", str(listed))[2]


def test_every_option_has_one_place_in_a_file() -> None:
    for command in COMMANDS:
        parser = make_parser().commands[command]
        result = places(parser)
        options = {action.dest for action in parser._actions if action.option_strings}
        assert {action.dest for action in result.values()} == options - {"help", "json", "debug", "save_config"}
        assert len(result) == len({id(action) for action in result.values()})


def test_toml_is_read_back_as_it_was() -> None:
    content = {"a": 1e-05, "b": float("inf"), "c": 'x"\n', "d": [1, {"e f": True}], "t": {"u.v": 1, "w": "λ"}}
    read = tomllib.loads(to_toml(content))
    assert read == {**content, "t": {"u": {"v": 1}, "w": "λ"}}
