"""Copies of curves for W&B and MLflow, read back from the files that these tools write."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import rekindle
from reading_copies import expected, of_mlflow, of_wandb
from rekindle.studies.cli import main
from rekindle.studies.curves import sinks
from rekindle.studies.curves.beside import Copier
from rekindle.studies.curves.copying import Copy
from rekindle.studies.curves.runs import Curves, Point, Run
from rekindle.studies.curves.sinks import opened, parse
from rekindle.studies.storage.store import Store


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # these libraries warn of each other
def test_offline_runs_of_wandb_hold_each_epoch_once_and_in_order(store: Store, tmp_path: Path) -> None:
    for _ in range(2):  # again: the runs are replaced
        copy(store, f"wandb:{tmp_path}")
        result = of_wandb(tmp_path)
        assert {name: [round(row["time/epoch"]) for row in rows] for name, rows in result.items()} == expected(store)
    uid = store.trials("s")[0].uid
    measured = [metrics["episode_return"] for _, metrics in store.metrics(uid)]
    assert [row["rollout/ep_rew_mean"] for row in result["trial-0000"]] == measured


@pytest.mark.filterwarnings("ignore")  # W&B's own
def test_an_offline_run_is_written_when_its_trial_ends_and_again_once_it_has_grown(tmp_path: Path) -> None:
    hyperparameters = {"optimizer.lr": 1e-3, "clip": None}
    run = Run("s", "trial-0000", "uid", "Surrogate", 0, 3, hyperparameters, None, "running", 10.0, None, None)
    points = [Point(epoch, 10.0 + epoch, {"env_steps": 64 * epoch, "return": epoch / 2}) for epoch in range(1, 4)]

    def write(run: Run, points: Sequence[Point], ends: bool) -> list[tuple[float, int, float]]:
        """The return, the epoch and the time of each step that stands in the folder afterwards, in one run."""
        before = of_wandb(tmp_path)
        with opened(*parse(f"wandb:{tmp_path}"), print) as sink:
            assert sink.last(run) == 0
            sink.write(run, points)
            assert of_wandb(tmp_path) == before
            if ends:
                sink.end(run)
                sink.end(run)  # it has not grown
                assert of_wandb(tmp_path) != before
        rows = of_wandb(tmp_path)[run.name]
        return [(row["eval/mean_reward"], row["time/epoch"], row["_timestamp"]) for row in rows]

    half = write(run, points[:2], ends=False)  # the copy ends before the trial
    whole = write(replace(run, state="failed", finished=13.0), points, ends=True)
    assert half == whole[:2]
    assert whole == [(0.5, 1, 11.0), (1.0, 2, 12.0), (1.5, 3, 13.0)]


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
    assert killed.process is not None
    os.kill(killed.process.process.pid, signal.SIGKILL)
    killed.end()
    Copier(store.url, "s", ["--to", f"mlflow:{path}"], 0.0, said.append).end()
    assert copy(store, f"mlflow:{path}") == 0
    result = of_mlflow(path)
    assert {name: [round(epoch) for _, epoch in sorted(rows)] for name, rows in result.items()} == expected(store)
    trial = store.trials("s")[0]
    experiment = client.get_experiment_by_name("s")
    [run] = client.search_runs([experiment.experiment_id], "tags.`rekindle.run` = 'trial-0000'")
    assert run.data.params["lr"] == str(trial.params["lr"])
    assert run.data.metrics["rollout/ep_rew_mean"] == store.metrics(trial.uid)[-1][1]["episode_return"]
    assert run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_run_of_mlflow_has_its_hyperparameters_although_its_writer_died_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient
    from rekindle.studies.curves.mlflow import MLflow

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = Run("s", "trial-0000", "uid", "Surrogate", 0, 3, {"lr": 0.5}, None, "running", 10.0, None, None)
    points = [Point(1, 11.0, {"return": 0.5})]
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            MLflow(tmp_path / "m.db", "sb3").write(run, points)
    sink = MLflow(tmp_path / "m.db", "sb3")
    assert sink.last(run) == 0
    sink.write(run, points)
    assert (sink.last(run), sink.client.get_run(sink._ids[run.name]).data.params) == (1, {"lr": "0.5", "seed": "3"})


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_says_what_to_install(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=rf"{tracker} needs the library {tracker}: pip install 'rekindle-rl\[{tracker}\]'"
    ):
        parse(f"{tracker}:{tmp_path}/x")
    assert not list(tmp_path.iterdir())


def test_a_tracking_server_that_nobody_reaches_is_an_error_at_once(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["export-curves", "s", "--to", f"mlflow:{address}", "--storage", store.url]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"error: MLflow's server must answer, but {address} does not: Connection refused; start it" in said
    assert "`mlflow server`" in said


def test_a_tracking_server_need_not_let_everybody_in() -> None:
    from rekindle.studies.curves.mlflow import MLflow

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.handle_request).start()
        MLflow(f"http://127.0.0.1:{server.server_port}", "sb3")


def test_a_tracking_server_is_a_place_of_mlflow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: True)
    monkeypatch.chdir(tmp_path)
    assert parse("mlflow:http://localhost:5000") == ("mlflow", "http://localhost:5000", "sb3")
    assert parse("mlflow:m.db") == ("mlflow", tmp_path / "m.db", "sb3")
    assert parse("wandb:runs", "rekindle") == ("wandb", tmp_path / "runs", "rekindle")
