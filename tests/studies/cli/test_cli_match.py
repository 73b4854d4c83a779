"""``rekindle match``: two stored policies against each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rekindle import PPO, Behaviours
from rekindle.spaces import flatten, unflatten
from rekindle.studies.storage.store import Store
from rekindle.tasks.errors import UnsupportedSpace
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]
GAME = "pettingzoo/hunt_env:Nim"


def trained(storage: Store, seed: int, epochs: int) -> Behaviours:
    task = Behaviours(GAME, seed=seed, storage=storage)
    player = {"num_steps": 32, "num_minibatches": 4, "optimizer": {"lr": 0.01}}
    task.init(epoch_steps=256, num_envs=8, player=player)
    task.fit(epochs)
    task.finish()
    return task


def test_a_match_counts_games(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rekindle.db'}"
    with Store(url) as store:
        one = trained(store, 1, 1)
        lone = PPO("CartPole-v1", seed=1, storage=store).init(**unflatten(TINY))
        lone.fit(1)
        lone.finish()
    words = ["match", one.uid, f"{one.uid}@0", "--games", "20", "--storage", url]
    status, out, errors = cli(*words, "--json")
    assert status == 0, errors
    result = json.loads(out)
    assert result["wins"] + result["draws"] + result["losses"] == 20
    assert result["epochs"] == [1, 0]
    untrained = Behaviours(GAME, seed=1).init(**unflatten(flatten(one.hyperparameters)))
    assert result["wins"] == one.match(untrained, 20).count(1)
    assert " games " in cli(*words)[1]
    assert "episode_return.player" in cli("show", one.uid, "--storage", url)[1]
    status, _, errors = cli("match", one.uid, lone.uid, "--storage", url)
    assert status == 2
    assert "a match is played by tasks of several agents" in errors


@pytest.mark.slow
def test_a_match_tells_the_stronger_policy(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rekindle.db'}"
    with Store(url) as store:
        one = trained(store, 1, 12)
    result = json.loads(cli("match", one.uid, f"{one.uid}@0", "--storage", url, "--json")[1])
    assert result["winner"] == one.uid
    assert result["interval"][0] > 0.5


def test_policies_of_other_agents_do_not_play_against_each_other() -> None:
    game, hunt = Behaviours(GAME, seed=1).init(), Behaviours("pettingzoo/hunt_env:Hunt", seed=1).init()
    with pytest.raises(UnsupportedSpace, match="plays against policies of the same agents with the same spaces"):
        game.match(hunt)
