"""Copies of curves, read back with each tool's own reader."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rekindle
from reading_copies import expected, in_order, of_table, of_tensorboard
from rekindle.studies.cli.commands import curves as following
from rekindle.studies.curves.beside import Copier, copied
from rekindle.studies.curves.copying import Copy
from rekindle.studies.curves.names import renamed
from rekindle.studies.curves.runs import Curves
from rekindle.studies.curves.sinks import opened, parse
from rekindle.studies.curves.tensorboard import EPOCH
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.training import TaskStorage
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

Cli = Callable[..., tuple[int, str, str]]


def search(store: Store, trials: int, **options: object) -> rekindle.Study:
    return rekindle.tune(
        "surrogate", trials=trials, epochs=(1, 3, 3), study="s", storage=store, progress=False, **options
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("searched") / "studies.db"
    with Store(f"sqlite:///{path}") as store:
        search(store, 4)
    return path


@pytest.fixture
def store(searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = shutil.copy(searched, tmp_path_factory.mktemp("copy"))
    with Store(f"sqlite:///{path}") as store:
        yield store


def copy(store: Store, name: str, target: str) -> int:
    """The number of points that one copying adds."""
    with opened(*parse(target), print) as sink:
        made = Copy(Curves(store, name), sink)
        made.update()
        return made.points


def test_tensorboard_reads_each_epoch_once_and_in_order(store: Store, tmp_path: Path) -> None:
    assert copy(store, "s", f"tensorboard:{tmp_path}") == sum(map(len, expected(store).values()))
    assert copy(store, "s", f"tensorboard:{tmp_path}") == 0
    assert of_tensorboard(tmp_path) == expected(store)
    search(store, 8)  # an extended study adds trials, and epochs to none of the old ones
    copy(store, "s", f"tensorboard:{tmp_path}")
    assert of_tensorboard(tmp_path) == expected(store)
    assert len(expected(store)) == 8


def test_tensorboard_has_the_values_under_the_names_of_sb3(store: Store, tmp_path: Path) -> None:
    copy(store, "s", f"tensorboard:{tmp_path}")
    trial = store.trials("s")[0]
    events = EventAccumulator(str(tmp_path / "s" / "trial-0000"), {"scalars": 0})
    events.Reload()
    measured = [metrics["episode_return"] for _, metrics in store.metrics(trial.uid)]
    points = events.Scalars("rollout/ep_rew_mean")
    assert [point.value for point in points] == pytest.approx(measured, rel=1e-6)
    assert [point.step for point in points] == [row["env_steps"] for _, row in store.metrics(trial.uid)]
    assert [point.wall_time for point in points] == sorted(point.wall_time for point in points)
    content = events.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    output = HParamsPluginData.FromString(content).session_start_info.hparams
    assert output["lr"].number_value == trial.params["lr"]
    assert metadata.SESSION_END_INFO_TAG in events.summary_metadata


@pytest.mark.parametrize("name", ["../../up", "/up", "..", "a/../../b", "ppo-ALE/Pong-v5"])
def test_a_study_of_any_name_is_written_below_the_folder(sqlite_url: str, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "one" / "two"
    with Store(sqlite_url) as store:
        rekindle.tune("surrogate", trials=1, epochs=1, study=name, storage=store, progress=False)
        copy(store, name, f"tensorboard:{folder}")
    [file] = tmp_path.rglob("*.tfevents.*")
    assert file.is_relative_to(folder)


def test_a_file_cut_anywhere_is_completed(store: Store, tmp_path: Path) -> None:
    copy(store, "s", f"tensorboard:{tmp_path}")
    longest = max(expected(store).items(), key=lambda item: len(item[1]))[0]
    [path] = (tmp_path / "s" / longest).iterdir()
    whole = path.read_bytes()
    for size in range(0, len(whole), 41):
        path.write_bytes(whole[:size])
        copy(store, "s", f"tensorboard:{tmp_path}")
        events = EventAccumulator(str(path.parent), {"scalars": 0})
        events.Reload()
        assert [round(event.value) for event in events.Scalars(EPOCH)] == expected(store)[longest], size
        assert metadata.SESSION_START_INFO_TAG in events.summary_metadata


@pytest.mark.slow
def test_an_epoch_waits_until_its_rung_is_finished(sqlite_url: str, tmp_path: Path) -> None:
    with Store(sqlite_url) as store:
        config = study_config(load("surrogate"), None, epochs=(1, 3, 3), trials=2)
        start_study(store, "s", config)
        runner = StudyRunner(store, "s", "cpu")
        item = runner.advance()[0]
        task = runner.task(item.trial, TaskStorage(store, False))
        task.fit(2)  # as another study would: this one's segment ends after an epoch, and has no result yet
        task.release()
        assert copy(store, "s", f"tensorboard:{tmp_path}") == 0
        search(store, 2)
        copy(store, "s", f"tensorboard:{tmp_path}")
        assert of_tensorboard(tmp_path) == expected(store)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_hold_each_epoch_once(store: Store, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"curves.{ending}"
    for _ in range(2):
        copy(store, "s", f"{ending}:{path}")
    rows = of_table(path)
    assert in_order(rows) == expected(store)
    uid = store.trials("s")[0].uid
    of_first = [float(row["episode_return"]) for row in rows if row["uid"] == uid]
    assert of_first == [metrics["episode_return"] for _, metrics in store.metrics(uid)]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_replaces_no_file_of_another_content(store: Store, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"curves.{ending}"
    for content in (b"my,own\nnotes,1\n", b"\x00\xff"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"written to a file of their own, but .* holds something else; name"):
            copy(store, "s", f"{ending}:{path}")
        assert path.read_bytes() == content
    path.write_bytes(b"")
    uids = [trial.uid for trial in store.trials("s")[:2]]
    copy(store, uids[0], f"{ending}:{path}")
    before = path.read_bytes()
    for name in ("s", uids[1]):
        with pytest.raises(ValueError, match=f"but .* has those of {uids[0]}; name another"):
            copy(store, name, f"{ending}:{path}")
        assert path.read_bytes() == before
    assert copy(store, uids[0], f"{ending}:{path}")


@pytest.mark.slow
def test_a_training_in_no_study_is_a_run(sqlite_url: str, tmp_path: Path, cli: Cli) -> None:
    log = f"csv:{tmp_path / 'one.csv'}"
    status, _, errors = cli("train", "surrogate", "--epochs", "3", "--storage", sqlite_url, "--log", log)
    assert status == 0, errors
    lines = (tmp_path / "one.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[4] for line in lines] == ["epoch", "1", "2", "3"]


def test_a_killed_copier_harms_nothing_and_the_next_one_completes_its_files(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    options = ["--to", f"tensorboard:{tmp_path}"]
    killed = Copier(store.url, "s", options, 0.0, said.append)
    assert killed.process is not None
    os.kill(int(killed.process.name), signal.SIGKILL)
    killed.end()
    assert not killed.wrote_all
    assert said == [
        "no trial depends on it, but a copy of the curves is incomplete: exit status -9; "
        f"rekindle export-curves s {' '.join(options)} writes the rest"
    ]
    following = Copier(store.url, "s", options, 0.0, said.append)
    following.end()
    assert following.wrote_all
    assert of_tensorboard(tmp_path) == expected(store)
    assert len(said) == 1


def test_a_copier_that_is_stopped_with_the_training_has_not_failed(store: Store, tmp_path: Path) -> None:
    """A cluster's scheduler signals both; the rerun's copier writes the rest."""
    said: list[str] = []

    def train() -> None:
        with copied(store.url, "s", [["--to", f"tensorboard:{tmp_path}"]], said.append) as [copier]:
            assert copier.process is not None
            os.kill(int(copier.process.name), signal.SIGTERM)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert said == []


def test_a_copier_that_is_not_done_in_time_is_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.studies.curves.beside.GRACE", 0.0)
    said: list[str] = []
    Copier(store.url, "s", ["--to", "csv:x.csv"], 0.0, said.append).end()
    assert "is incomplete: it was not done 0 s after the training; rekindle export-curves s --to" in said[0]


def test_a_short_training_starts_no_copier_that_would_come_later(store: Store) -> None:
    copier = Copier(store.url, "s", [], 60.0, pytest.fail)
    copier.end()
    assert copier.process is None
    assert not copier.wrote_all


def test_metrics_have_the_names_of_other_tools() -> None:
    ours = {"episode_return": 1.0, "grad_norm.actor": 2.0, "grad_norm_clipped.critic": 3.0, "own": 4.0}
    assert renamed(ours, "rekindle") == ours
    theirs = renamed(ours, "metabox")
    assert (theirs["grad/actor"], theirs["grad_clipped/critic"], theirs["train/own"]) == (2.0, 3.0, 4.0)
    assert renamed(ours, "sb3")["train/grad_norm.actor"] == 2.0
    behaviours = {"episode_return.prey": 1.0, "value_loss.predator": 1.0, "q.prey": 1.0}
    theirs = {"rollout/ep_rew_mean.prey": 1.0, "train/value_loss.predator": 2.0, "train/q.prey": 1.0}
    assert renamed(behaviours, "sb3") == theirs


def test_the_curve_of_a_task_is_copied_alone(store: Store, cli: Cli, tmp_path: Path) -> None:
    url = store.database.url.render_as_string(hide_password=False)
    task = load("surrogate")(None, seed=5, storage=store).init()
    task.fit(2)
    file = tmp_path / "task.csv"
    for epochs in (2, 3):
        task.fit(epochs)
        status, out, errors = cli("export-curves", task.uid[:8], "--to", f"csv:{file}", "--storage", url, "--json")
        assert status == 0, errors
        assert json.loads(out)["copies"] == [{"to": f"csv:{file}", "runs": 1, "points": epochs}]
    task.finish()
    assert [int(row["epoch"]) for row in csv.DictReader(file.read_text().splitlines())] == [1, 2, 3]


def test_curves_are_followed_to_the_end_of_a_study(
    sqlite_url: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL", (0.01, 0.01))
    with Store(sqlite_url) as store:
        start_study(store, "s", study_config(load("surrogate"), None, trials=3, epochs=(2,), scheduler="none"))

    def train() -> None:
        with Store(sqlite_url) as worker_store:
            assert Worker(worker_store, "s").run()

    thread = threading.Timer(0.1, train)
    thread.start()
    file = tmp_path / "study.csv"
    status, out, errors = cli("export-curves", "s", "--follow", "--to", f"csv:{file}", "--storage", sqlite_url)
    thread.join()
    assert status == 0, errors
    assert "6 new epochs of 3 runs" in out
    assert len(file.read_text().splitlines()) == 1 + 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s", "--to", "excel:x"], "curves go to KIND:PLACE with one of the kinds tensorboard, wandb, mlflow"),
        (["s", "--to", "csv:"], "but got 'csv:'"),
        (["s", "--to", "csv:/proc/none/x.csv"], "csv writes to a file, but /proc/none/x.csv cannot be written: "),
        (["s", "--to", "csv:."], "cannot be written: Is a directory"),
        (["none", "--to", "csv:x.csv"], "there is no study 'none', and no task of "),
        (["s", "--to", "mlflow:http://me:sesame@127.0.0.1:1"], "but mlflow:http://me:***@127.0.0.1:1 contains one"),
        (["postgresql://me:sesame@h/x", "--to", "csv:x.csv"], "there is no study 'postgresql://me:***@h/x'"),
        (["s", "--to", "csv:x.csv", "--names", "tf"], "names of metrics are one of sb3, ml-agents, metabox, rekindle"),
    ],
)
def test_bad_input(
    store: Store, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    url = store.database.url.render_as_string(hide_password=False)
    status, _, errors = cli("export-curves", *arguments, "--storage", url)
    assert (status, message in errors, len(errors.splitlines())) == (2, True, 1), errors
    assert "sesame" not in errors
    assert not (tmp_path / "x.csv").exists()


def test_a_bad_log_is_refused_before_a_study_is_made(tmp_path: Path, cli: Cli) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    status, _, errors = cli("tune", "surrogate", "--storage", url, "--log", "excel:x")
    assert status == 2
    assert "curves go to KIND:PLACE" in errors
    assert not (tmp_path / "new.db").exists()
