"""Workers on a real Ray: the same studies as without Ray, whatever is killed."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from gated import VARIABLE, Gate
from rekindle.studies.cli import main
from rekindle.studies.cli.output.live_progress import Progress
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import Snapshot
from rekindle.studies.storage.sql.database import sqlite_file
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.ray_workers import RayWorker, cluster
from rekindle.studies.workers.supervisor import Interrupted, Supervisor, WorkersFailed
from rich.console import Console
from studying import bits, surrogate, tiny, undisturbed
from support_path import SUPPORT

TUNE = ["tune", "ppo", "CartPole-v1", "--trials", "2", "--epochs", "1", "--workers", "1", "--set", "epoch_steps=128"]


def process_of(worker: RayWorker) -> psutil.Process | None:
    """The process in which a worker trains, once it runs."""
    result = re.match(r"(\d+) on", worker.name)
    return psutil.Process(int(result[1])) if result else None


def raylets(pid: int) -> set[psutil.Process]:
    """The raylets that a process started, whose pid ends the names of its sessions."""
    result, session = set[psutil.Process](), re.compile(rf"session_[-\w]+_{pid}\b")
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):  # it has just ended; of a zombie, there are no arguments
            if process.name() == "raylet" and session.search(" ".join(process.cmdline())):
                result.add(process)
    return result


def tune(store: Store, study: str, count: int, hire: Callable[[], RayWorker]) -> Supervisor:
    """Runs a study, with nothing to see of it."""
    with Progress(Console(file=io.StringIO()), study, "here") as progress:
        tuning = Supervisor(store, study, count, hire, progress)
        tuning.run()
    return tuning


ON_RAY = """
import io, signal, sys
from rekindle.studies.cli.output.live_progress import Progress
from rekindle.studies.workers.ray_workers import RayWorker, cluster
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.supervisor import Supervisor, WorkersFailed
from rich.console import Console

url = sys.argv[1]
before = signal.getsignal(signal.SIGTERM)
with Store(url) as store, cluster(url, "s", workers=1, address=None, cpus=1, gpus=0) as (count, hire):
    assert (count, signal.getsignal(signal.SIGTERM)) == (1, before)
    astray = RayWorker(0, 0, url, "no study", 1, [])  # it starts while the other one trains
    with Progress(Console(file=io.StringIO()), "s", "here") as progress:
        Supervisor(store, "s", count, hire, progress).run()
        lost = Supervisor(store, "t", 1, lambda: astray, progress)
        for wrong in (lost.run, cluster(url, "s", workers=1, address=None, cpus=9, gpus=0).__enter__):
            try:
                wrong()
            except (ValueError, WorkersFailed) as error:
                print(error)
"""


@pytest.mark.slow
def test_a_study_on_ray_is_the_same_study(sqlite_url: str) -> None:
    """In a process of its own, which keeps Ray's threads away from other tests."""
    config = tiny(2, (1,))
    with Store(sqlite_url) as store:
        for study in "st":
            start_study(store, study, config)
        command = [sys.executable, "-W", "error", "-c", ON_RAY, sqlite_url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert bits(store) == undisturbed(config)
    lost, tight = done.stdout.splitlines()
    assert re.search("no study", lost)
    assert re.search("9 CPUs and 0 GPUs, but no machine .* that one has is 1 CPUs, 0 GPUs", tight)


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning")  # Ray waits for none of its own
def test_a_supervisor_shows_that_a_worker_on_ray_waits_for_the_database(sqlite_url: str) -> None:
    said: list[str] = []

    class Display:
        workers = 0

        def show(self, snapshot: Snapshot) -> None:
            pass

        def say(self, text: str) -> None:
            said.append(text)
            writer.rollback()

    with Store(sqlite_url) as store, closing(sqlite3.connect(sqlite_file(sqlite_url) or "")) as writer:
        start_study(store, "s", surrogate(2))
        writer.execute("BEGIN IMMEDIATE")
        patience = ["--patience", "600"]
        with cluster(sqlite_url, "s", workers=1, address=None, cpus=1, gpus=0, extra=patience) as (count, hire):
            Supervisor(store, "s", count, hire, Display()).run()
        assert bits(store) == undisturbed(surrogate(2))
    assert [text.partition(", for")[0] for text in said] == ["1 of 1 workers: waiting for the database"]
    gc.collect()  # Ray's processes are told of here, and not in another test


def test_a_cluster_that_is_not_there_is_named() -> None:
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(WorkersFailed, match=f"no Ray cluster answers at {address}: .*ray start --head"):
            cluster("postgresql://", "s", workers=1, address=address, cpus=1, gpus=0).__enter__()


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning")  # Ray waits for none of its own
def test_a_study_on_ray_is_the_same_study_whatever_is_killed_and_whenever_it_is_stopped(
    sqlite_url: str, wait_until: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(6, (1, 9, 3), env="gated:Gated-v0")
    gate = Gate(tmp_path / "gate")
    gate.close(300)  # steps of each process; the study takes more than four of them can make
    monkeypatch.setenv(VARIABLE, str(gate.directory))
    monkeypatch.setenv("PYTHONPATH", SUPPORT)
    said, left = io.StringIO(), list[psutil.Process]()

    def disturb(tuning: Supervisor) -> None:
        """Kills a worker's process, then the actor that holds another one, then asks the parent to stop."""
        wait_until(lambda: tuning.steps >= 1 and all(map(process_of, tuning.workers)))
        first, second = tuning.workers
        victim, spared = process_of(first), process_of(second)
        victim.kill()
        left.append(spared)
        spared.parent().kill()
        wait_until(lambda: {first, second}.isdisjoint(tuning.workers) and all(map(process_of, tuning.workers)))
        left.extend(map(process_of, tuning.workers))
        os.kill(os.getpid(), signal.SIGINT)
        gate.open()

    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with cluster(sqlite_url, "s", workers=2, address=None, cpus=1, gpus=0) as (count, hire):
            with Progress(Console(file=said), "s", "here") as progress:
                tuning = Supervisor(store, "s", count, hire, progress)
                thread = threading.Thread(target=disturb, args=(tuning,))
                thread.start()
                with pytest.raises(Interrupted, match="everything is saved"):
                    tuning.run()
                thread.join()
            lines = " ".join(said.getvalue().split())  # a line may be wrapped, as an address may be long
            assert lines.count("was killed by SIGKILL; another one replaces it") == 2
            wait_until(lambda: not any(process.is_running() for process in left))
            tune(store, "s", count, hire)
            assert bits(store) == undisturbed(config)
    gc.collect()  # Ray's processes are told of here, and not in another test


@pytest.mark.slow
def test_the_command_tunes_on_ray_stops_when_asked_and_leaves_no_ray_behind(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.close(4000)  # steps of each process; the first epochs end before, and the study does not
    environment = {**os.environ, VARIABLE: str(gate.directory), "PYTHONPATH": SUPPORT}
    command = [sys.executable, "-m", "rekindle.studies.cli", "tune", "ppo", "gated:Gated-v0", "--engine", "ray"]
    command += ["--trials", "2", "--workers", "1", "--epochs", "9", "--set", "epoch_steps=1024"]
    command += ["--storage", "sqlite:///a.db"]

    def start() -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes)

    stopped = start()
    assert stopped.stderr is not None
    assert any(re.search(r"epochs: [1-9]", line) for line in stopped.stderr)
    assert raylets(stopped.pid)
    stopped.send_signal(signal.SIGINT)
    gate.open()
    assert "stopped by SIGINT; everything is saved" in stopped.communicate()[1]
    assert stopped.returncode == 130
    done = start()
    said, errors = done.communicate()
    assert (done.returncode, "2 trials" in said) == (0, True), errors
    wait_until(lambda: not raylets(stopped.pid) | raylets(done.pid))  # Ray does not wait for it where it is slow


@pytest.mark.slow
def test_a_cluster_that_dies_is_no_reason_to_wait_for_ever(sqlite_url: str, wait_until: Callable[..., None]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(2, (9, 9, 3), fixed={"epoch_steps": 65536}))
        before = raylets(os.getpid())  # one of another test may take a while to end
        with cluster(sqlite_url, "s", workers=1, address=None, cpus=1, gpus=0) as (count, hire):

            def disturb(tuning: Supervisor) -> None:
                wait_until(lambda: all(map(process_of, tuning.workers)))
                [raylet] = raylets(os.getpid()) - before
                raylet.kill()

            with Progress(Console(file=io.StringIO()), "s", "here") as progress:
                tuning = Supervisor(store, "s", count, hire, progress)
                thread = threading.Thread(target=disturb, args=(tuning,))
                thread.start()
                with pytest.raises(WorkersFailed, match="no machine of the Ray cluster is alive any more"):
                    tuning.run()
                thread.join()


# What makes no sense is said before Ray is started, and before a study is made


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine", "ray", "--address", "10.0.0.1:6379"], "SQLite is for one, .* use PostgreSQL"),
        (["--address", "10.0.0.1:6379"], "only --engine ray takes options of Ray, but got --address; add --engine ray"),
        (["--cpus-per-worker", "2", "--gpus-per-worker", "1"], "but got --cpus-per-worker and --gpus-per-worker; add"),
        (
            ["--engine", "ray", "--cpus-per-worker", "-1"],
            "must be a number above 0, such as 1 or 0.5, and 10000000 at most, but got '-1'",
        ),
        (["--engine", "dask"], "invalid choice: 'dask'"),
    ],
)
def test_an_engine_that_cannot_work_is_refused(
    sqlite_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    try:
        status = main([*TUNE, "--storage", sqlite_url, *more])
    except SystemExit as error:
        status = int(str(error))
    assert status == 2
    assert re.search(said, capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_without_ray_the_error_says_how_to_install_it(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "rekindle.studies.workers.ray_workers")
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, errors = cli(*TUNE, "--engine", "ray")
    assert status == 2
    assert "pip install 'rekindle-rl[ray]'" in errors
    assert not list(tmp_path.iterdir())
