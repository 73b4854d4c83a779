"""Commands that play an environment, which ends or blocks their process: it is told, and they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import nursery
import own_envs
import pytest
from rekindle import PPO, Behaviours
from rekindle.spaces import unflatten
from rekindle.studies.cli import dispatch
from rekindle.studies.cli.parsers import make_parser
from rekindle.studies.storage.store import Store
from rekindle.tasks.errors import BadResume, Diverged
from rekindle.tasks.runtime import watcher
from studying import TINY

PATIENCE = 120.0  # seconds
SUPPORT = str(Path(own_envs.__file__).parent)


class Trained(NamedTuple):
    url: str
    alone: str
    team: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trainings in environments whose steps turn as a variable says."""
    url = f"sqlite:///{tmp_path_factory.mktemp('watched') / 'rekindle.db'}"
    with Store(url) as store:
        alone = PPO("own_envs:Turning-v0", seed=1, storage=store).init(**unflatten(TINY))
        team = Behaviours("pettingzoo/hunt_env:Turning", seed=1, storage=store)
        team.init(epoch_steps=64, num_envs=2, player={"num_steps": 8, "num_minibatches": 1})
        for task in (alone, team):
            task.fit(2)
            task.finish()
    return Trained(url, alone.uid, team.uid)


def run(words: list[str], turn: str, **options: Any) -> tuple[int, str]:
    """Return the status and errors of a command whose environment turns."""
    command = [sys.executable, "-m", "rekindle.studies.cli", *words]
    path = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TURN": turn}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = nursery.Popen(command, env=environment, **streams, **options)
    errors = process.communicate(timeout=PATIENCE)[1]
    return process.returncode, errors


def words_of(trained: Trained, command: str) -> list[str]:
    more: dict[str, list[str]] = {
        "evaluate": [trained.alone, "--episodes", "2"],
        "match": [trained.team, "random", "--games", "4"],
        "replay": [trained.alone],
        "fork": [trained.alone, "--at", "1", "--set", "gamma=0.9"],
        "train": ["ppo", "own_envs:Turning-v0", "--epochs", "3", "--seed", "1"],
        "check-resume": ["ppo", "own_envs:Turning-v0"],
        "probe": ["own_envs:Turning-v0"],
    }
    return [command, *more[command], "--storage", trained.url, "--stuck", "3s"]


@pytest.mark.parametrize("command", ["evaluate", "match", "replay", "fork", "check-resume", "probe"])
def test_a_step_that_never_returns_ends_the_command(trained: Trained, command: str) -> None:
    status, errors = run(words_of(trained, command), "sleep")
    assert status == -signal.SIGKILL, errors
    assert "has made no step for 3 s while it " in errors
    assert "and is killed (--stuck)" in errors
    assert "own_envs.py" in errors, "where it hangs"


@pytest.mark.parametrize("command", ["evaluate", "match", "replay", "fork", "train", "check-resume", "probe"])
def test_no_code_of_an_environment_ends_a_command_with_success(trained: Trained, command: str) -> None:
    status, errors = run(words_of(trained, command), "exit 0")
    assert status == 1, errors
    assert "its code exits, or crashes in C, or something killed it" in errors
    assert run(words_of(trained, command), "exit")[0] == 3


@pytest.mark.parametrize("command", ["evaluate", "match", "replay", "fork", "train", "check-resume", "probe"])
def test_a_command_says_that_sigterm_has_stopped_it(trained: Trained, command: str) -> None:
    """SIGTERM to the process group, as by a cluster's scheduler or `timeout`."""
    status, errors = run(words_of(trained, command), "terminate", start_new_session=True)
    assert status == 128 + signal.SIGTERM, errors
    assert "by SIGTERM" in errors.splitlines()[-1]
    assert "killed" not in errors


def test_forks_of_an_environment_end_as_they_say(trained: Trained) -> None:
    from rekindle.tasks.runtime import progress

    with progress.watched(None, doing=watcher.PLAYING), progress.at_work():
        fork = os.fork()
        if not fork:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert os._exit.__module__ == "posix"


def test_every_command_that_plays_can_be_told_how_long_a_step_may_take() -> None:
    playing = {name: parser for name, parser in make_parser().commands.items() if parser.get_default("doing")}
    assert {*playing} == {
        *("space", "probe", "tune", "create", "confirm", "train", "fork", "replay", "schedule", "check-resume"),
        *("evaluate", "match", "export-policy"),
    }
    for name, parser in playing.items():
        options = {option for action in parser._actions for option in action.option_strings}
        assert "--stuck" in options, name


def test_rewards_of_nan_end_a_match(trained: Trained) -> None:
    status, errors = run(words_of(trained, "match"), "nan")
    assert status == 1
    assert "a return of its evaluation is not finite, since pettingzoo/hunt_env:Turning gave a reward" in errors


def test_an_error_of_the_environment_ends_a_match(trained: Trained) -> None:
    status, errors = run(words_of(trained, "match"), "raise")
    assert status == 1
    assert "pettingzoo/hunt_env:Turning: the environment's own code raised ValueError: there is no fuel (" in errors


@pytest.mark.parametrize("turn", ["raise", "nan"])
def test_a_confirmation_of_which_all_trainings_fail_has_status_1(turn: str, sqlite_url: str) -> None:
    sets = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    words = ["ppo", "own_envs:Turning-v0", "--trials", "2", "--epochs", "1", *sets, "--study", "s", "--workers", "1"]
    assert run(["tune", *words, "--repeats", "0", "--storage", sqlite_url], "")[0] == 0
    confirm = ["confirm", "s", "--seeds", "3", "--top", "1", "--workers", "1", "--storage", sqlite_url]
    status, errors = run(confirm, turn)
    assert status == 1, errors
    assert "Traceback" not in errors


def test_a_command_tells_what_broke_a_task_and_not_that_it_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    error = BadResume("its state may be half-changed")
    error.__cause__ = Diverged("policy_loss became nan in epoch 1")
    assert dispatch._explain(error) == 1
    assert capsys.readouterr().err == "rekindle: error: policy_loss became nan in epoch 1\n"
