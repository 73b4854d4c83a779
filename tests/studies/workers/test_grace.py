"""Preempted workers save, or at least exit, before they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hanging
import pytest
import slow_envs
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers import training
from rekindle.studies.workers.grace import _watch
from rekindle.studies.workers.supervisor import WorkerProcess
from rekindle.studies.workers.worker import Worker
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.envs.selftest.attempts import self_test
from studying import TINY, bits, sqlite_first, tiny, undisturbed

RECIPE = Path(__file__).parents[3] / "examples" / "slurm.sh"


def test_an_evaluation_is_stopped_and_repeated(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tiny(2, (1, 2, 2)))
    asked: list[bool] = []
    evaluate = training.evaluate_within

    def interrupted(*arguments: Any, **more: Any) -> Any:
        asked.append(True)
        return evaluate(*arguments, **more)

    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(2, (1, 2, 2)))
        with monkeypatch.context() as patched:
            patched.setattr(training, "evaluate_within", interrupted)
            assert not Worker(store, "s").run(lambda: bool(asked))
        assert {task.epochs for task in store.tasks()} == {1}
        assert not store.claims()
        assert not [row for row in store.segments("s") if row.state == "done"]
        assert Worker(store, "s").run()
        assert bits(store) == expected


@pytest.mark.slow
def test_a_training_whose_step_takes_too_long_exits_in_time_and_is_resumed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path / "hangs"))
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    words = ["train", "ppo", "hanging:Hanging-v0", "--epochs", "4", *settings, "--json"]
    hanging.hang(tmp_path / "hangs", "asleep", after=80)
    command = [sys.executable, "-m", "rekindle.studies.cli", *words, "--storage", sqlite_url, "--grace", "3"]
    path = os.pathsep.join(filter(None, sys.path))
    first = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: [*(tmp_path / "hangs").glob("taken-*")] or first.poll() is not None)
    first.terminate()
    _, said = first.communicate(timeout=600)
    assert first.returncode == 128 + signal.SIGTERM, said
    assert "a step takes longer than --grace 3: exits with what was saved last" in said
    with Store(sqlite_url) as store:
        assert not store.claims()
        [before] = store.tasks()
    assert before.epochs >= 1
    assert main([*words, "--storage", sqlite_url]) == 0
    assert main([*words, "--storage", sqlite_url + "2"]) == 0
    with Store(sqlite_url) as store, Store(sqlite_url + "2") as whole:
        assert store.checkpoints(before.uid)[-1].digest == whole.checkpoints(before.uid)[-1].digest


def test_a_state_within_an_epoch_contradicts_no_result(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(1, (1, 2, 2), fixed={"num_steps": 16})  # two iterations make an epoch
    expected = undisturbed(config)
    iterations: list[int] = []
    iterate = PPOLearner.iterate

    def preempted(learner: PPOLearner) -> Any:
        iterations.append(learner.epochs)
        if len(iterations) == 3:
            signal.raise_signal(signal.SIGTERM)
        return iterate(learner)

    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with monkeypatch.context() as patched:
            patched.setattr(PPOLearner, "iterate", preempted)
            assert not Worker(store, "s").run(lambda: len(iterations) >= 3)
        assert iterations == [0, 0, 1]
        [uid] = [trial.uid for trial in store.trials("s")]
        assert [(row.epochs, row.within_epoch) for row in store.checkpoints(uid)] == [(1, False), (1, True)]
        assert check(store) == []
        assert Worker(store, "s").run()
        stored = [(row.epochs, row.digest, row.within_epoch) for row in store.checkpoints(uid)]
        assert stored == [(row.epochs, row.digest, False) for row in store.segments("s")]
        assert check(store) == []
        assert bits(store) == expected


@pytest.mark.parametrize(("grace", "waits"), [(3.0, 2.4), (20.0, 16.0), (60.0, 55.0)])
def test_the_end_of_a_grace_is_left_for_the_release_of_trials(sqlite_url: str, grace: float, waits: float) -> None:
    waited = []

    class Done(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return True

    with Store(sqlite_url) as store:
        _watch(store, grace, lambda: True, Done(), 1)
    assert waited == [pytest.approx(waits)]


@sqlite_first
def test_a_worker_whose_step_takes_too_long_exits_before_it_is_killed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path / "hangs"))
    config = tiny(3, (1, 2, 2), env="hanging:Hanging-v0")
    expected = undisturbed(config)
    with Store(url) as store:
        start_study(store, "s", config)
        hanging.hang(tmp_path / "hangs", "asleep")
        worker = WorkerProcess(url, "s", 1, ["--grace", "3"])
        wait_until(lambda: [*(tmp_path / "hangs").glob("taken-*")])
        asked = time.monotonic()
        worker.stop()
        worker.process.wait(600)
        assert worker.status == 128 + signal.SIGTERM
        assert time.monotonic() - asked > 2.0  # a worker that can save has some time for it
        worker.wait(1)
        assert "a step takes longer than --grace 3: exits with what was saved last" in "\n".join(worker.last_words)
        assert not store.claims()
        assert Worker(store, "s").run()
        assert bits(store) == expected
        kinds = {event.kind for event in store.events_of_study("s")}
        assert not kinds & {"takeover", "failed"}  # nobody was killed
        assert check(store) == []


@sqlite_first
@pytest.mark.slow
def test_the_recipe_of_slurm_is_preempted_and_requeued(
    url: str, tmp_path: Path, wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send the signals of SLURM: SIGTERM in an evaluation and in an epoch, and after KillWait SIGKILL; then requeue."""
    config = tiny(1, (1, 2, 2), env="slow_envs:Slow-v0", fixed={"epoch_steps": 320})
    expected = undisturbed(config)
    program = tmp_path / "rekindle"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rekindle.studies.cli "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join(filter(None, sys.path))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REKINDLE_STORAGE": url, "PYTHONPATH": path}
    folder = tmp_path / "steps"
    folder.mkdir()
    monkeypatch.setenv(slow_envs.VARIABLE, str(folder))
    self_test.__wrapped__(EnvSpec.of(config.env))  # as a worker does before it trains
    [file] = folder.iterdir()
    before = file.stat().st_size
    file.unlink()

    def job(until: Callable[[], object]) -> tuple[int, list[int]]:
        """Run the recipe, preempted at a moment: its status, and the epochs of each result so far."""
        process = subprocess.Popen(["bash", str(RECIPE)], env={**os.environ, **environment}, start_new_session=True)
        try:
            wait_until(lambda: until() or process.poll() is not None)
            process.terminate()
            process.wait(600)  # KillWait, longer for a slow machine
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert not store.claims()
        return process.returncode, [row.epochs for row in store.segments("cartpole") if row.state == "done"]

    def steps() -> int:  # of the newest job
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        return files[-1].stat().st_size if files else 0

    with Store(url) as store:
        start_study(store, "cartpole", config)
        assert job(lambda: steps() > before + 320 + 20) == (128 + signal.SIGTERM, [])  # in its first evaluation
        assert [*store.reached([trial.uid for trial in store.trials("cartpole")]).values()] == [1]
        done = lambda: [row for row in store.segments("cartpole") if row.state == "done"]  # noqa: E731
        in_epoch = lambda: done() and store.holders() and time.sleep(0.5) is None  # noqa: E731
        assert job(in_epoch) == (128 + signal.SIGTERM, [1])  # in its second epoch
        assert job(lambda: False) == (0, [1, 2])
        assert bits(store, "cartpole") == expected
        assert not {event.kind for event in store.events_of_study("cartpole")} & {"takeover", "failed"}
        assert check(store) == []
