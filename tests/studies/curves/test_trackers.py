"""Copies of curves for W&B and MLflow, read back from what these tools write."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rekindle
from rekindle.studies.curves import sinks
from rekindle.studies.curves.beside import Copier
from rekindle.studies.curves.copying import Copy
from rekindle.studies.curves.runs import Curves
from rekindle.studies.curves.sinks import opened, parse
from rekindle.studies.storage.store import Store

BLOCK = 32768  # of LevelDB's logs, which W&B writes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path_factory.mktemp('trackers') / 'studies.db'}") as store:
        how: dict[str, Any] = {"study": "s", "storage": store, "progress": False, "scheduler": "halving"}
        how |= {"fixed": {"seconds": 0.0}}
        rekindle.tune("surrogate", trials=4, epochs=(1, 27), **how)
        yield store


def copy(store: Store, target: str) -> int:
    """The number of points that one copying adds."""
    with opened(*parse(target), print) as sink:
        made = Copy(Curves(store, "s"), sink)
        made.update()
        return made.points


def expected(store: Store) -> dict[str, list[int]]:
    ends = {row.number: row.epochs for row in store.segments("s") if row.state == "done"}
    return {f"trial-{number:04}": list(range(1, last + 1)) for number, last in ends.items()}


def records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def of_wandb(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each run, by name."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        name, ended = "", False
        for record in records(path):
            if record.HasField("run"):
                name = name or record.run.display_name
                assert runs.setdefault(name, []) == []
                values = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert "lr" in values or "lr" in str(record.run.config)
            if record.HasField("history"):
                items = record.history.item
                runs[name].append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
            ended = ended or record.HasField("exit")
        assert ended, path
    return runs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # these libraries warn of each other
def test_offline_runs_of_wandb_hold_each_epoch_once_and_in_order(store: Store, tmp_path: Path) -> None:
    for _ in range(2):  # again: the runs are replaced
        copy(store, f"wandb:{tmp_path}")
        found = of_wandb(tmp_path)
        assert {name: [round(row["time/epoch"]) for row in rows] for name, rows in found.items()} == expected(store)
    uid = store.trials("s")[0].uid
    measured = [metrics["episode_return"] for _, metrics in store.metrics(uid)]
    assert [row["rollout/ep_rew_mean"] for row in found["trial-0000"]] == measured


def of_mlflow(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The steps and epochs of each run, by name."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("s")
    if experiment is None:
        return {}
    return {
        run.info.run_name: [
            (each.step, each.value) for each in client.get_metric_history(run.info.run_id, "time/epoch")
        ]
        for run in client.search_runs([experiment.experiment_id])
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # these libraries warn of each other
def test_mlflow_holds_each_epoch_once_and_in_order_although_its_writer_is_killed(
    store: Store, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    from mlflow.tracking import MlflowClient

    path, said = tmp_path / "m.db", list[str]()
    client = MlflowClient(f"sqlite:///{path}")  # makes the tables
    killed = Copier(store.url, "s", ["--to", f"mlflow:{path}"], 0.0, said.append)
    wait_until(lambda: any(of_mlflow(path).values()))
    assert killed._process is not None
    os.kill(killed._process.pid, signal.SIGKILL)
    killed.end()
    Copier(store.url, "s", ["--to", f"mlflow:{path}"], 0.0, said.append).end()
    assert copy(store, f"mlflow:{path}") == 0
    found = of_mlflow(path)
    assert {name: [round(epoch) for _, epoch in sorted(rows)] for name, rows in found.items()} == expected(store)
    trial = store.trials("s")[0]
    experiment = client.get_experiment_by_name("s")
    [run] = client.search_runs([experiment.experiment_id], "tags.`rekindle.run` = 'trial-0000'")
    assert run.data.params["lr"] == str(trial.params["lr"])
    assert run.data.metrics["rollout/ep_rew_mean"] == store.metrics(trial.uid)[-1][1]["episode_return"]
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("kind", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_says_what_to_install(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"{kind} needs the library {kind}: pip install 'rekindle\[{kind}\]'"):
        parse(f"{kind}:{tmp_path}/x")
    assert not list(tmp_path.iterdir())


def test_a_tracking_server_is_a_place_of_mlflow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    assert parse("mlflow:http://localhost:5000") == ("mlflow", "http://localhost:5000", "sb3")
    assert parse("mlflow:m.db") == ("mlflow", tmp_path / "m.db", "sb3")
    assert parse("wandb:runs", "rekindle") == ("wandb", tmp_path / "runs", "rekindle")
