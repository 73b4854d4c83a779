"""Environments of several objectives on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import own_envs  # noqa: F401  # registers its environments

VECTOR = "own_envs:VectorReward-v0"
SMALL = ("num_steps=16", "num_envs=2", "num_minibatches=1", "update_epochs=1", "epoch_steps=32")


def test_a_probe_takes_the_weights_that_its_error_names(cli: Callable[..., tuple[int, str, str]]) -> None:
    status, _, errors = cli("probe", VECTOR)
    assert status != 0
    assert "--reward-weights 0.5,0.5" in errors
    status, out, errors = cli("probe", VECTOR, "--reward-weights", "0,1", "--steps", "400", "--seed", "0", "--json")
    assert status == 0, errors
    result = json.loads(out)
    assert result["env"]["reward_weights"] == [0.0, 1.0]
    assert {*result["random"]} == {-30.0}  # the price of each step


def test_parts_of_the_return_are_objectives(sqlite_url: str, cli: Callable[..., tuple[int, str, str]]) -> None:
    sets = [word for value in SMALL for word in ("--set", value)]
    objectives = ("--objective", "return.0", "--objective", "return.1")
    words = ("tune", "ppo", VECTOR, "--reward-weights", "1,0", "--trials", "1", "--epochs", "1", *objectives, *sets)
    status, out, errors = cli(*words, "--eval-episodes", "2", "--storage", sqlite_url, "--json")
    assert status == 0, errors
    [trial] = json.loads(out)["trials"]
    assert -30 <= trial["objectives"]["return.1"] <= -1  # a price of 1 for each step
    assert trial["objectives"].keys() >= {"return.0", "return.1"}
    assert "must be numbers, separated by commas" in cli("train", "ppo", VECTOR, "--reward-weights", "a")[2]
