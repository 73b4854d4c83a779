"""``rekindle match``: two stored policies against each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rekindle import PPO, Behaviours, tune
from rekindle.spaces import flatten, unflatten
from rekindle.studies.storage.sql.schema import checkpoint
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.gc import gc
from rekindle.studies.upkeep.importing import import_study
from rekindle.tasks.checkpoint.named_policies import named_policy
from rekindle.tasks.errors import UnsupportedSpace
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]
GAME, HUNT = "pettingzoo/hunt_env:Nim", "pettingzoo/hunt_env:Hunt"


def trained(storage: Store, seed: int, epochs: int) -> Behaviours:
    task = Behaviours(GAME, seed=seed, storage=storage)
    player = {"num_steps": 32, "num_minibatches": 4, "optimizer": {"lr": 0.01}}
    task.init(epoch_steps=256, num_envs=8, player=player)
    task.fit(epochs)
    task.finish()
    return task


def test_a_match_counts_games(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(Behaviours, "match", lambda self, *_: [1] * 20)
    assert json.loads(cli(*words, "--json")[1])["winner"] == f"{one.uid}@1"  # both are of one task
    assert f"{one.uid}@1 is stronger" in cli(*words)[1]


def test_a_task_a_file_and_random_actions_play(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rekindle.db'}"
    with Store(url) as store:
        one = trained(store, 1, 1)
    file = str(tmp_path / "player.safetensors")
    assert cli("export-policy", one.uid, file, "--storage", url)[0] == 0
    values = ["epoch_steps=64", "num_envs=2", "player.num_steps=32", "player.num_minibatches=2"]
    words = ["train", "behaviours", GAME, "--epochs", "1", "--storage", url, "--json"]
    words += [word for value in values for word in ("--set", value)]

    def run(*more: str) -> Any:
        status, out, errors = cli(*words, *more)
        assert status == 0, errors
        return json.loads(out)

    of_task, of_file = run("--opponent", one.uid[:8]), run("--opponent", file)
    name = of_task["env"]["opponents"][0]
    assert name.startswith("policy/")
    assert (of_task["uid"], of_task["digest"]) == (of_file["uid"], of_file["digest"])  # they have one content
    assert of_file["resumed"]
    assert run("--opponent", "random")["uid"] != of_task["uid"]
    with Store(url) as store:
        assert store.task(of_task["uid"]).evaluate() == of_task["return"]
        store.database.write(lambda connection: connection.execute(checkpoint.update().values(created=0.0)))
        gc(store, dry_run=False)
        assert len(store.checkpoints(name)) == 1  # tasks evaluate against it
    for other in ("random", file, name):
        status, out, errors = cli("match", one.uid, other, "--games", "4", "--storage", url, "--json")
        assert status == 0, errors
        assert json.loads(out)["epochs"] == [1, None]
    refused = {
        ("match", "random", one.uid): "name it second",
        ("match", one.uid, "no.safetensors"): "there is no file no.safetensors",
        (*words, "--opponent", "no.safetensors"): "must be random, a task (UID, UID@EPOCH, UID@best) or a file, but",
        (*words, "--player", "player"): "--player must be BEHAVIOUR=POLICY, such as prey=random, but got 'player'",
        (*words, "--player", "player=random"): "at least one behaviour learns",
        (*words, "--player", "x=random"): "behaviours, player, but one is of x; name one of them",
        (*words, "--player", "player=random", "--player", f"player={file}"): f"names random and {file} for player",
        ("train", "behaviours", HUNT, "--epochs", "1", "--player", f"deer={file}"): f"but {file} ({name}) has those of",
    }
    for bad, message in refused.items():
        status, _, errors = cli(*bad, *([] if "--storage" in bad else ["--storage", url]))
        assert (status, message in errors) == (2, True), errors


@pytest.mark.slow
def test_an_exported_study_has_the_policies_that_play_in_it(cli: Cli, tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in "ab"]
    with Store(urls[0]) as store:
        one = trained(store, 1, 1)
    fixed = {"epoch_steps": 64, "num_envs": 2, "player": {"num_steps": 32, "num_minibatches": 2}}
    options: dict[str, Any] = {"trials": 2, "epochs": (1, 2), "search": "player.gamma", "fixed": fixed}
    env = {"id": GAME, "opponents": [one.uid, "random"]}
    study = tune("behaviours", env, study="s", storage=urls[0], progress=False, **options)
    best = study.best
    with Store(urls[0]) as store, Store(urls[1]) as there:
        export_study(store, "s", tmp_path / "s.rekindle")
        import_study(there, tmp_path / "s.rekindle")
        assert check(there) == []
    named_policy.cache_clear()
    with Store(urls[1]) as there:
        assert there.task(best.uid).evaluate() == best.value


def test_a_study_keeps_the_policy_that_will_play_in_it(cli: Cli, sqlite_url: str, tmp_path: Path) -> None:
    with Store(sqlite_url) as store:
        one = trained(store, 1, 1)
    words = ["create", "behaviours", GAME, "--study", "s", "--trials", "1", "--epochs", "1", "--storage", sqlite_url]
    status, _, errors = cli(*words, "--search", "player.gamma", "--opponent", one.uid)
    assert status == 0, errors
    with Store(sqlite_url) as store:
        [name] = store.study("s").config["env"]["opponents"]
        store.database.write(lambda connection: connection.execute(checkpoint.update().values(created=0.0)))
        gc(store, dry_run=False)
        assert len(store.checkpoints(name)) == 1
    assert cli("delete", "s", "--yes", "--storage", sqlite_url)[0] == 0
    with Store(sqlite_url) as store:
        gc(store, dry_run=False)
        assert store.checkpoints(name) == []


@pytest.mark.slow
def test_a_policy_plays_on_ray_as_it_does_here(cli: Cli, sqlite_url: str, postgres_url: str) -> None:
    """In a process of its own, which keeps Ray's threads away from other tests."""
    words = ["tune", "behaviours", HUNT, "--study", "s", "--trials", "2", "--epochs", "1"]
    words += ["--search", "hunter.gamma", "--seed", "7", "--set", "epoch_steps=64", "--set", "num_envs=2"]
    words += ["--set", "hunter.num_steps=16", "--set", "hunter.num_minibatches=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    digests = []
    for url, engine in ((sqlite_url, []), (postgres_url, ["--engine", "ray", "--workers", "1"])):
        with Store(url) as store:
            deer = Behaviours(HUNT, seed=1, storage=store)
            deer.init(epoch_steps=256, num_envs=2)
            deer.fit(1)
            deer.finish()
        command = [sys.executable, "-m", "rekindle", *words, "--player", f"deer={deer.uid}", "--storage", url, *engine]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with Store(url) as store:
            trials = store.trials("s")
            digests.append([(trial.uid, store.checkpoints(trial.uid)[-1].digest) for trial in trials])
    assert digests[0] == digests[1]
    assert len({*digests[0]}) == 2


@pytest.mark.slow
def test_a_match_tells_the_stronger_policy(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rekindle.db'}"
    with Store(url) as store:
        one = trained(store, 1, 12)
    result = json.loads(cli("match", one.uid, f"{one.uid}@0", "--storage", url, "--json")[1])
    assert result["winner"] == f"{one.uid}@12"
    assert result["interval"][0] > 0.5


def test_policies_of_other_agents_do_not_play_against_each_other() -> None:
    game, hunt = Behaviours(GAME, seed=1).init(), Behaviours(HUNT, seed=1).init()
    with pytest.raises(UnsupportedSpace, match="plays against policies of the same agents with the same spaces"):
        game.match(hunt)
