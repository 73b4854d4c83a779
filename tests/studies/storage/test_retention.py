"""Checkpoints that a study's trials keep, and the reasons that `rekindle show` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.errors import StoreError
from rekindle.studies.storage.sql.schema import event
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.gc import gc
from studying import TINY, bits, run, tiny

Cli = Callable[..., tuple[int, str, str]]
SET = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]


def keeping(mode: str | None) -> Config:
    return replace(tiny(trials=3), options={} if mode is None else {"snapshots": mode})


def results(content: dict[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in ("trials", "segments")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(f"sqlite:///{tmp_path_factory.mktemp('plain') / 'plain.db'}", keeping(None))


@pytest.mark.parametrize(
    "mode", ["best", "no", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("best:2", "all", "1"))]
)
def test_a_study_has_the_same_results_whatever_it_keeps(tmp_path: Any, mode: str, plain: dict[str, Any]) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    assert results(run(url, keeping(mode))) == results(plain)
    with Store(url) as store:
        assert check(store) == []
        rows = {trial.uid: store.checkpoints(trial.uid) for trial in store.trials("s")}
        metrics = {uid: dict(store.metrics(uid)) for uid in rows}
    if mode == "no":
        assert not any(rows.values())
    for uid, checkpoints in rows.items():
        if mode == "1":
            assert len(checkpoints) == 1
        if mode.startswith("best"):
            returns = {epoch: row["return"] for epoch, row in metrics[uid].items() if "return" in row}
            assert max(returns, key=lambda epoch: (returns[epoch], -epoch)) in [row.epochs for row in checkpoints]


@pytest.mark.slow
def test_a_study_can_keep_otherwise_when_it_is_carried_on(sqlite_url: str) -> None:
    before = run(sqlite_url, keeping(None))
    again = run(sqlite_url, keeping("best"))
    assert again == before
    with Store(sqlite_url) as store:
        assert store.study("s").config["options"] == {"snapshots": "best"}
    run(sqlite_url, keeping("1"))
    with Store(sqlite_url) as store:
        assert store.study("s").config["options"] == {"snapshots": "1"}
        assert bits(store)["trials"] == before["trials"]


@pytest.mark.parametrize("options", [{"snapshots": "bset"}, {"snapshots": {"best": 1}}, {"warm_start": 5}])
def test_a_row_with_options_that_mean_nothing_is_refused(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(StoreError, match=rf"the configuration of study 's' is invalid: its options\.{name} is"):
        Config.from_json({**keeping("best").to_json(), "options": options}, "s")


def train(url: str, *more: str) -> list[str]:
    return ["train", "ppo", "CartPole-v1", "--storage", url, *SET, "--json", *more]


def test_show_says_which_checkpoints_are_kept_and_why(sqlite_url: str, cli: Cli) -> None:
    arguments = train(sqlite_url, "--epochs", "7", "--set", "optimizer.lr=0.01", "--snapshots", "best:2")
    trained = json.loads(cli(*arguments)[1])
    output = json.loads(cli("show", trained["uid"], "--storage", sqlite_url, "--json")[1])
    returns = {row["epoch"]: row["return"] for row in output["metrics"] if "return" in row}
    assert returns.keys() == {2, 4, 6, 7}
    best = max(returns, key=lambda epoch: (returns[epoch], -epoch))
    why = {row["epochs"]: row["kept"] for row in output["checkpoints"]}
    assert why[7].startswith("latest")
    assert f"best return, {returns[best]:.5g}" in why[best]
    assert "best return" in cli("show", trained["uid"], "--storage", sqlite_url)[1]


def test_show_says_what_a_branch_needs(sqlite_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = train(sqlite_url, "--epochs", "4", "--snapshots", "all")
    monkeypatch.setattr("rekindle.tasks.cohort.SAVING_SHARE", 1e9)  # at every epoch's end
    uid = json.loads(cli(*arguments)[1])["uid"]
    status, out, _ = cli("fork", uid, "--at", "2", "--set", "gamma=0.9", "--storage", sqlite_url, "--json")
    assert status == 0
    other = json.loads(out)["uid"]
    why = {
        row["epochs"]: row["kept"]
        for row in json.loads(cli("show", uid, "--storage", sqlite_url, "--json")[1])["checkpoints"]
    }
    assert why[2] == f"what {other[:8]} started from"
    first = json.loads(cli("show", other, "--storage", sqlite_url, "--json")[1])["checkpoints"][0]
    assert (first["epochs"], first["kept"]) == (2, "what it started from")


def test_show_survives_an_event_of_another_version(sqlite_url: str, cli: Cli) -> None:
    uid = json.loads(cli(*train(sqlite_url, "--epochs", "1", "--snapshots", "best"))[1])["uid"]
    with Store(sqlite_url) as store:
        data = {"snapshots": {"newest": 2}}
        store.database.write(lambda c: c.execute(event.update().where(event.c.kind == "init").values(data=data)))
        assert store.database.read(lambda c: c.scalar(sa.select(sa.func.count()).select_from(event)))
    status, out, _ = cli("show", uid, "--storage", sqlite_url)
    assert status == 0
    assert re.search(r"^\W*return\b", out.partition("hyperparameters")[0], re.MULTILINE)


@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_mode_that_means_nothing_is_refused_before_a_database_is_made(tmp_path: Any, cli: Cli, command: str) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    status, _, errors = cli(command, "ppo", "CartPole-v1", "--storage", url, "--snapshots", "bset")
    assert status == 2
    assert "did you mean best" in errors
    assert not (tmp_path / "new.db").exists()


@pytest.mark.slow
def test_checkpoints_that_a_study_needs_are_no_garbage(tmp_path: Any) -> None:
    kept: dict[Any, list[int]] = {}
    for mode in ("best", None):
        url = f"sqlite:///{tmp_path / str(mode)}.db"
        run(url, replace(keeping(mode), scheduler="none", trials=[2]))
        with Store(url) as store:
            before = {trial.uid: [row.epochs for row in store.checkpoints(trial.uid)] for trial in store.trials("s")}
            gc(store, dry_run=False)
            after = {uid: [row.epochs for row in store.checkpoints(uid)] for uid in before}
            kept[mode] = [len(epochs) for epochs in after.values()]
            if mode is not None:
                assert after == before
            assert check(store) == []
    assert sum(kept["best"]) >= len(kept["best"])
    assert max(kept[None]) <= 2
