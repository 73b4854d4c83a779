"""Warm starts on the command line and in studies: exact, stored once, and resumed without their source."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import nursery
import optuna
import pytest
import sqlalchemy as sa
from rekindle import Objective
from rekindle.spaces import unflatten
from rekindle.studies.engine.lineage import LineageError, lineage, retrain
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.branches import BRANCHED, Start
from rekindle.studies.storage.sql.schema import blob, checkpoint
from rekindle.studies.storage.store import Store
from rekindle.studies.storage.stored_policies import NoPolicy, load_policy, put_policy
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.gc import gc
from rekindle.studies.upkeep.importing import import_study
from rekindle.studies.workers.worker import Turn, Worker
from rekindle.tasks import PPO, load
from rekindle.tasks.checkpoint.storage import policy_uid
from safetensors import safe_open
from studying import TINY, bits, run, sqlite_first, tiny

Cli = Callable[..., tuple[int, str, str]]


def settings(**changes: Any) -> list[str]:
    values = {**TINY, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


SET = settings()


def train(url: str, *more: str, epochs: int = 2, **changes: Any) -> list[str]:
    command = ["train", "ppo", "CartPole-v1", "--storage", url, *settings(**changes)]
    return [*command, "--epochs", str(epochs), "--json", *more]


@cache
def given(seed: int = 9, epochs: int = 2) -> PPO:
    task = PPO("CartPole-v1", seed=seed).init(**unflatten(TINY))
    task.fit(epochs)
    return task


def warm(start: Any, epochs: int, seed: int = 0) -> PPO:
    task = PPO("CartPole-v1", seed=seed, warm_start=start).init(**unflatten(TINY))
    task.fit(epochs)
    return task


def test_a_task_starts_from_a_checkpoint_of_another(sqlite_url: str, cli: Cli) -> None:
    first = json.loads(cli(*train(sqlite_url, "--seed", "9"))[1])
    status, out, errors = cli(*train(sqlite_url, "--warm-start", f"{first['uid'][:8]}@2"))
    assert status == 0
    result = json.loads(out)
    whole = warm(given(), 2)
    assert (result["uid"], result["digest"], result["resumed"]) == (whole.uid, whole.digest, False)
    assert f"of {first['uid']}@2: 8 loaded" in errors
    output = json.loads(cli("show", result["uid"], "--storage", sqlite_url, "--json")[1])
    assert [row["until"] for row in output["lineage"]] == [0, 2]
    assert output["lineage"][0]["uid"].startswith("policy/")
    assert output["checkpoints"][0]["kept"] == "what it started from"
    assert json.loads(cli("status", "--storage", sqlite_url, "--json")[1])["tasks"] == 2
    with Store(sqlite_url) as store:
        assert check(store) == []


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_a_command_carries_on_when_its_file_is_gone(sqlite_url: str, tmp_path: Path, cli: Cli, form: str) -> None:
    file = tmp_path / f"policy.{form}"
    if form == "npz":
        np.savez(file, **{name: tensor.numpy() for name, tensor in given().model.items()})
    else:
        given().save_policy(file)
    first = json.loads(cli(*train(sqlite_url, "--warm-start", str(file), epochs=1))[1])
    file.unlink()
    status, out, errors = cli(*train(sqlite_url, "--warm-start", str(file), epochs=3))
    assert status == 0
    assert f"there is no file {file}; task {first['uid']} started from it, and resumes" in " ".join(errors.split())
    result = json.loads(out)
    assert (result["uid"], result["resumed"]) == (first["uid"], True)
    assert result["digest"] == warm(given(), 3).digest


def test_a_run_file_names_the_policy_that_a_task_starts_from(store: Store, cli: Callable[..., Any]) -> None:
    url = store.database.url.render_as_string(hide_password=False)
    source = load("ppo")("CartPole-v1", storage=store).init(**unflatten(TINY))
    source.fit(1)
    source.finish()
    digest = put_policy(store, load("ppo")("CartPole-v1", warm_start=source).init(**unflatten(TINY)), "mine")
    warm = load("ppo")("CartPole-v1", seed=2, storage=store, warm_start=source).init(**unflatten(TINY))
    warm.fit(1)
    warm.finish()
    content = tomllib.loads(cli("show", warm.uid, "--config", "--storage", url)[1])
    assert (content["warm_start"], content["seed"]) == (policy_uid(digest), 2)
    with pytest.raises(NoPolicy, match=r"task x starts from the policy 0000.*, which is not stored any more"):
        load_policy(store, "x", Start("policy-0", 0, "0" * 64))


def test_a_source_that_has_changed_is_another_start_and_that_is_said(sqlite_url: str, cli: Cli) -> None:
    source = json.loads(cli(*train(sqlite_url, "--seed", "9", epochs=1))[1])["uid"]
    first = json.loads(cli(*train(sqlite_url, "--warm-start", source, epochs=1))[1])["uid"]
    cli(*train(sqlite_url, "--seed", "9", epochs=2))
    status, out, errors = cli(*train(sqlite_url, "--warm-start", source, epochs=1))
    assert status == 0
    assert json.loads(out)["uid"] != first
    assert f"is not the policy that task {first} started from, so this is another task" in " ".join(errors.split())
    again = json.loads(cli(*train(sqlite_url, "--warm-start", f"{source}@1", epochs=1))[1])
    assert (again["uid"], again["resumed"]) == (first, True)


@pytest.mark.slow
def test_the_best_checkpoint_can_be_named(sqlite_url: str, cli: Cli) -> None:
    source = json.loads(cli(*train(sqlite_url, "--seed", "9", "--snapshots", "best", epochs=6))[1])["uid"]
    output = json.loads(cli("show", source, "--storage", sqlite_url, "--json")[1])
    [best] = [row["epochs"] for row in output["checkpoints"] if "best" in row["kept"]]
    status, out, _ = cli(*train(sqlite_url, "--warm-start", f"{source}@best", epochs=1))
    assert status == 0
    assert json.loads(out)["digest"] == warm(given(epochs=best), 1).digest


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("nowhere.npz", {}, "there is no file nowhere.npz"),
        ("beef", {}, "no task of"),
        ("SOURCE@7", {}, "has none at epoch 7; those that are: (1, )?2"),
        ("SOURCE@last", {}, "a checkpoint is named UID, UID@EPOCH or UID@best, but got"),
        ("SOURCE", {"model__width": 32}, r"mismatched actor\.0\.weight: \(4, 16\), not \(4, 32\)"),
    ],
)
def test_an_invalid_start_is_refused_before_training(
    sqlite_url: str, cli: Cli, policy: str, changes: dict[str, Any], message: str
) -> None:
    source = json.loads(cli(*train(sqlite_url, "--seed", "9"))[1])["uid"]
    status, _, errors = cli(*train(sqlite_url, "--warm-start", policy.replace("SOURCE", source), **changes))
    assert status == 2
    assert re.search(message, " ".join(errors.split()))
    with Store(sqlite_url) as store:
        assert [row.uid for row in store.tasks()] == [source]


def test_a_part_is_taken_only_when_asked(sqlite_url: str, cli: Cli) -> None:
    source = json.loads(cli(*train(sqlite_url, "--seed", "9"))[1])["uid"]
    assert cli(*train(sqlite_url, "--warm-start", source, model__layers=2))[0] == 2
    status, _, errors = cli(*train(sqlite_url, "--warm-start", source, "--partial", model__layers=2))
    assert status == 0
    assert "4 loaded, 4 mismatched, 4 missing" in errors
    status, _, errors = cli(*train(sqlite_url, "--partial"))
    assert (status, errors) == (2, "rekindle: error: --partial needs --warm-start, which is not given\n")


def test_a_stored_policy_is_shown_and_taken_like_a_checkpoint(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    file = given().save_policy(tmp_path / "policy.safetensors")
    first = json.loads(cli(*train(sqlite_url, "--warm-start", str(file), epochs=1))[1])
    output = json.loads(cli("show", first["uid"], "--storage", sqlite_url, "--json")[1])
    policy = output["lineage"][0]["uid"]
    assert cli("show", policy, "--storage", sqlite_url)[0] == 0
    again = json.loads(cli(*train(sqlite_url, "--warm-start", policy, epochs=1))[1])
    assert (again["uid"], again["resumed"]) == (first["uid"], True)
    status, _, errors = cli("evaluate", policy, "--storage", sqlite_url)
    assert status == 2
    assert f"but {policy} is only a policy; rekindle train --warm-start takes it" in errors


PAUSES = """
import sys
import tomllib
from rekindle.studies.cli import main
from rekindle.tasks.learner import Learner
run_epoch = Learner.run_epoch
def pauses(learner, *arguments, **more):
    if learner.epochs == 4:
        sys.stdin.readline()
    return run_epoch(learner, *arguments, **more)
Learner.run_epoch = pauses
main()
"""


@pytest.mark.slow
def test_a_killed_task_carries_on_from_its_start_with_the_same_bits(sqlite_url: str, tmp_path: Path) -> None:
    file = given().save_policy(tmp_path / "policy.safetensors")
    arguments = train(sqlite_url, "--warm-start", str(file), "--snapshots", "best:10", epochs=6)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with nursery.Popen([sys.executable, "-c", PAUSES, *arguments], text=True, **pipes) as process:
        assert process.stderr is not None
        assert any(line.startswith("epoch 3/") for line in process.stderr)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    file.unlink()
    command = [sys.executable, "-m", "rekindle.studies.cli", *arguments]
    with nursery.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        result = json.loads(process.communicate()[0])
    whole = warm(given(), 6)
    assert (result["resumed"], result["digest"]) == (True, whole.digest)


# Studies


def warmed(store: Store, start: Any) -> Config:
    task = PPO("CartPole-v1", warm_start=start).init(**unflatten(TINY))
    return replace(tiny(trials=4), options={"warm_start": put_policy(store, task, "given")})


def test_every_trial_of_a_study_starts_with_the_policy_bit_for_bit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Store(url) as store:
        config = warmed(store, given())
    result = run(url, config)
    with Store(url) as store:
        assert check(store) == []
        trials = store.trials("s")
        segments = {(row.number, row.rung): row for row in store.segments("s")}
        assert len({store.checkpoints(trial.uid)[0].digest for trial in trials}) == 1
    for trial in trials[:2]:
        alone = PPO("CartPole-v1", warm_start=given()).init(**unflatten(trial.params))
        alone.fit(segments[trial.number, 0].epochs)
        assert alone.uid == trial.uid
        assert alone.digest == segments[trial.number, 0].digest
    other = f"sqlite:///{tmp_path / 'b.db'}"
    with Store(other) as store:
        assert warmed(store, given()) == config
    assert run(other, config, workers=3) == result


@pytest.mark.slow
@sqlite_first
def test_a_warm_trial_can_be_replayed_and_trained_again(url: str, cli: Cli) -> None:
    with Store(url) as store:
        config = warmed(store, given())
    run(url, config)
    with Store(url) as store:
        assert check(store) == []
        trial = store.trials("s")[0]
        [link] = lineage(store, trial.uid)
        assert link.policy is not None
        assert retrain([link], 1).digest == store.segments("s")[0].digest
    assert cli("replay", trial.uid, "--storage", url)[0] == 0


@pytest.mark.slow
def test_a_population_can_start_warm_and_branches_follow(sqlite_url: str, cli: Cli) -> None:
    first = json.loads(cli(*train(sqlite_url, "--seed", "9"))[1])["uid"]
    arguments = [
        "tune",
        "ppo",
        "CartPole-v1",
        *SET,
        "--scheduler",
        "pbt",
        "--population",
        "4",
        "--interval",
        "1",
        "--exploit",
        "tournament",
        "--epochs",
        "3",
        "--workers",
        "1",
        "--study",
        "p",
        "--json",
        "--warm-start",
        first,
        "--storage",
        sqlite_url,
    ]
    status, out, _ = cli(*arguments)
    assert status == 0
    branches = [trial for trial in json.loads(out)["trials"] if trial["branch"]]
    assert branches
    assert cli("replay", branches[-1]["uid"], "--storage", sqlite_url)[0] == 0


def test_tune_starts_warm_and_carries_on_without_its_source(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    file = given().save_policy(tmp_path / "policy.safetensors")
    arguments = [
        "tune",
        "ppo",
        "CartPole-v1",
        *SET,
        "--set=normalize_obs=false",
        "--epochs",
        "1:2:2",
        "--generation",
        "2",
        "--cohort",
        "2",
        "--workers",
        "1",
        "--study",
        "t",
        "--json",
        "--storage",
        sqlite_url,
    ]
    status, out, errors = cli(*arguments, "--trials", "2", "--warm-start", str(file))
    assert status == 0
    file.unlink()
    status, again, errors = cli(*arguments, "--trials", "4", "--warm-start", str(file))
    assert status == 0
    assert "study t started from it, and resumes" in " ".join(errors.split())
    assert json.loads(again)["trials"][:2] == json.loads(out)["trials"]
    assert len(json.loads(again)["trials"]) == 4
    status, _, errors = cli(*arguments, "--trials", "4")
    assert status == 2
    assert "options.warm_start" in errors


def test_a_warm_start_decides_the_networks_form_unless_the_user_searches_it(
    tmp_path: Path, sqlite_url: str, cli: Cli
) -> None:
    first = json.loads(cli(*train(sqlite_url, "--seed", "9", "--set", "normalize_obs=true"))[1])["uid"]
    file = str(tmp_path / "a.safetensors")
    assert cli("export-policy", first, file, "--storage", sqlite_url)[0] == 0
    for number, source in enumerate((first, file)):
        command = ("create", "ppo", "CartPole-v1", "--study", f"s{number}", "--storage", sqlite_url)
        status, _, errors = cli(*command, "--warm-start", source)
        assert (status, "the warm start decides model.width=" in errors) == (0, True)
        assert "normalize_obs=True; not searched" in " ".join(errors.split())
        status, _, errors = cli(*command, "--warm-start", source, "--prior", "model.width=choices([8, 16])")
        assert (status, "a warm start decides the parts of the policy, but model.width is" in errors) == (2, True)


def test_an_imported_study_knows_what_its_trials_started_from(tmp_path: Path, cli: Cli) -> None:
    url, other = (f"sqlite:///{tmp_path / name}.db" for name in "ab")
    with Store(url) as store:
        config = warmed(store, given())
    result = run(url, config)
    with Store(url) as store, Store(other) as there:
        export_study(store, "s", tmp_path / "s.zip")
        import_study(there, tmp_path / "s.zip")
        assert bits(there) == result
        assert check(there) == []
        uid = there.trials("s")[0].uid
    assert cli("replay", uid, "--storage", other)[0] == 0


def test_an_imported_study_goes_on_from_its_policy(tmp_path: Path, sqlite_url: str) -> None:
    """Without its source, and without what other studies have trained from it."""
    with Store(sqlite_url) as store, Store(f"sqlite:///{tmp_path / 'there'}.db") as there:
        config = warmed(store, given())
        start_study(store, "s", config)
        worker = Worker(store, "s")
        while worker.turn() is not Turn.TRAINED:
            pass
        run(sqlite_url, replace(config, seed=1), "other")
        export_study(store, "s", tmp_path / "s.rekindle")
        import_study(there, tmp_path / "s.rekindle")
        assert check(there) == []
        notes = [event for event in there.events(policy_uid(config.options["warm_start"])) if event.kind == BRANCHED]
        assert {note.data["to"] for note in notes} <= {trial.uid for trial in there.trials("s")}
        assert worker.run()
        assert Worker(there, "s").run()
        assert bits(there) == bits(store)


@sqlite_first
def test_an_old_policy_that_nothing_needs_is_deleted(url: str) -> None:
    def age(store: Store) -> None:
        store.database.write(lambda connection: connection.execute(checkpoint.update().values(created=0.0)))

    def collected(store: Store) -> list[list[int]]:
        before = stored(store)
        garbage = [row for row in gc(store, dry_run=False) if row.uid.startswith("policy/")]
        assert sum(row.size for row in garbage) == before - stored(store)
        assert check(store) == []
        return [list(row.epochs) for row in garbage]

    with Store(url) as store:
        config = warmed(store, given())
        for seed in (1, 2):
            warmed(store, given(seed))
        assert collected(store) == []  # somebody may be about to start from one
        start_study(store, "s", config)
        digest = warmed(store, given(1)).options["warm_start"]
        assert store.branch("branch", {"start": digest}, Start(policy_uid(digest), 0, digest))
        age(store)
        assert [row.uid for row in gc(store, studies=["s"])] == []
        assert collected(store) == [[0]]  # of seed 2
        assert collected(store) == []
        assert Worker(store, "s").run()
        assert len(store.checkpoints(policy_uid(warmed(store, given(2)).options["warm_start"]))) == 1  # stored anew


def stored(store: Store) -> int:
    """Bytes of all blobs."""
    return store.database.read(lambda connection: connection.scalar(sa.select(sa.func.sum(blob.c.size))) or 0)


def test_a_study_whose_policy_is_gone_says_so(sqlite_url: str) -> None:
    config = replace(tiny(trials=4), options={"warm_start": "0" * 64})
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with pytest.raises(LineageError, match=r"no policy 000000000000 is stored; give --warm-start again"):
            Worker(store, "s").run()


def test_an_optuna_study_starts_warm(sqlite_url: str) -> None:
    source = given()
    study, fixed = optuna.create_study(direction="maximize"), unflatten({**TINY, "normalize_obs": False})
    objective = Objective(PPO, "CartPole-v1", epochs=1, storage=sqlite_url, warm_start=source, **fixed)
    study.optimize(objective, n_trials=1)
    result = study.trials[0].user_attrs
    with Store(sqlite_url) as store:
        [row] = store.tasks([result["rk_uid"]])
    assert row.identity is not None
    alone = PPO("CartPole-v1", warm_start=source).init(**unflatten(row.identity["hyperparameters"]))
    alone.fit(1)
    assert (alone.uid, alone.digest) == (result["rk_uid"], result["rk_digest"])


# A checkpoint that is looked at, and used elsewhere


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_and_its_policy_exported(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    uid = json.loads(cli(*train(sqlite_url, "--seed", "9", "--snapshots", "best", epochs=6))[1])["uid"]
    returns = {
        row["epoch"]: row["return"]
        for row in json.loads(cli("show", uid, "--storage", sqlite_url, "--json")[1])["metrics"]
    }
    best = max(returns, key=lambda epoch: (returns[epoch], -epoch))
    for name, epochs in {uid[:8]: 6, f"{uid}@best": best, f"{uid}@6": 6}.items():
        status, out, _ = cli("evaluate", name, "--storage", sqlite_url, "--json")
        assert status == 0
        assert [json.loads(out)[field] for field in ("epochs", "return")] == [epochs, returns[epochs]]
    file = tmp_path / "policies" / "best.safetensors"
    status, out, _ = cli("export-policy", f"{uid}@best", str(file), "--storage", sqlite_url, "--json")
    assert status == 0
    assert json.loads(out)["parameters"] == sum(tensor.numel() for tensor in given().parameters())
    warm_one = warm(file, 0)
    assert warm_one.evaluate() == returns[best]
    assert " return " in cli("evaluate", uid, "--storage", sqlite_url)[1]
    result = json.loads(cli("evaluate", uid, "--episodes", "5", "--stochastic", "--storage", sqlite_url, "--json")[1])
    assert result["deterministic"] is False
    assert result["min"] <= result["median"] <= result["top_quartile"] <= result["max"]
    assert result["min"] <= result["return"] <= result["max"]
    assert result["return"] != returns[6]


def test_an_exported_policy_says_that_it_is_weights_only(tmp_path: Path) -> None:
    task = given()
    file = task.save_policy(tmp_path / "policy.safetensors")
    with safe_open(file, "np") as opened:
        about = opened.metadata()
        assert set(opened.keys()) == set(task.model)
    assert about["contents"].startswith("weights only, not resumable")
    assert (about["uid"], about["epochs"], about["task"], about["env"]) == (task.uid, "2", "ppo", "CartPole-v1")
    with pytest.raises(ValueError, match=r"a policy is written in safetensors form, .* call it policy\.safetensors"):
        task.save_policy(tmp_path / "policy.pt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "beef"), "no task of"),
        (("evaluate", "UID@9"), "has none at epoch 9"),
        (("evaluate", "UID@best"), "none of task .* has one; train it with --snapshots best"),
        (("evaluate", "UID", "--episodes", "0"), "episodes: must be a number of at least 1, but got '0'"),
        (("export-policy", "UID", "policy.zip"), r"a policy is written as safetensors .* but got 'policy.zip'"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_said(
    sqlite_url: str, cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    with Store(sqlite_url) as store:
        task = PPO("CartPole-v1", storage=store).init(**unflatten(TINY))
        task.fit(1)
        task.finish()
    status, _, errors = cli(*(argument.replace("UID", task.uid) for argument in arguments), "--storage", sqlite_url)
    assert status == 2
    assert re.search(message, " ".join(errors.split()))
