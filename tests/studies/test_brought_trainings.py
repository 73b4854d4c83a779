"""Programs, functions and models of Stable-Baselines3 and sbx in studies whose workers are killed again and again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import nursery
import own_program_place
import psutil
import pytest
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.tasks import load
from rekindle.tasks.adapters.program_commands import ProgramCommand
from studying import bits, undisturbed
from support_path import SUPPORT

WORDS = [sys.executable, own_program_place.PROGRAM, "{lr}", "{epochs}", "{seed}", "{checkpoint}", "slow"]
PROGRAM = ProgramCommand.of(WORDS, {"space": {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}}).name
PPO = {"epoch_steps": 64, "n_steps": 32, "n_epochs": 2, "total_steps": 16000}
SAC = {"epoch_steps": 64, "batch_size": 32, "buffer_size": 256, "learning_starts": 32, "total_steps": 16000}
SMALL = {"policy_kwargs": '{"net_arch": [8]}'}  # JAX compiles small networks in less time
TASKS: dict[str, tuple[str, Any, dict[str, Any], int]] = {  # the last is the number of epochs for each kill
    "program": (PROGRAM, None, {}, 8),
    "function": ("own_functions:descend", None, {}, 200),
    "sb3": ("sb3:PPO", "CartPole-v1", PPO, 8),
    "sbx": ("sbx:SAC", "Pendulum-v1", SAC | SMALL, 8),
}


def config_of(name: str, kills: int) -> Config:
    task, env, fixed, epochs = TASKS[name]
    epochs *= kills
    rungs = (epochs // 4, epochs, 4)
    return study_config(
        load(task),
        env,
        epochs=rungs,
        fixed=fixed,
        trials=3,
        sampler="random",
        scheduler="halving",
        generation=3,
        cohort=1,
    )


def descendants(worker: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(worker.pid).children(recursive=True)
    return []


def trained(store: Store) -> int:
    """The number of epochs that are stored."""
    return sum(store.reached([trial.uid for trial in store.trials("s")]).values())


def kill_amid_training(url: str, moment: float, store: Store | None) -> bool:
    """Start a worker, kill it after a while, and return whether the study was complete before.

    With a store, the while begins when something new is stored there: on a busy machine, kills after a time alone would
    all come before the first epoch ends, and a trial whose workers are killed five times so has failed.
    """
    before = trained(store) if store else 0
    command = [sys.executable, "-m", "rekindle", "worker", "--study", "s", "--storage", url]
    worker = nursery.Popen(command, env={**os.environ, "PYTHONPATH": SUPPORT}, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    worker.stderr.readline()  # it works on the study
    deadline = time.monotonic() + 300
    while store and worker.poll() is None and trained(store) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(moment)
    crew = descendants(worker)
    complete = worker.poll() is not None
    worker.kill()
    worker.wait()
    worker.stderr.close()
    _, alive = psutil.wait_procs(crew, timeout=120)
    assert alive == [], "a killed worker leaves nothing"
    return complete


def kill_again_and_again(name: str, kills: int, url: str, cli: Callable[..., Any]) -> None:
    config = config_of(name, kills)
    expected = undisturbed(config)
    with Store(url) as store:
        start_study(store, "s", config)
        for kill in range(kills):
            assert not kill_amid_training(url, kill * 0.618 % 1 * 0.4, None if kill % 2 else store), kill
        status, _, errors = cli("worker", "--study", "s", "--storage", url)
        assert status == 0, errors
        assert bits(store) == expected
        assert store.claims() == []
    status, printed, _ = cli("fsck", "--storage", url)
    assert status == 0, printed


@pytest.mark.parametrize(
    "name", ["function", *(pytest.param(name, marks=pytest.mark.slow) for name in ("program", "sb3", "sbx"))]
)
def test_a_kill_of_a_worker_changes_nothing(name: str, sqlite_url: str, cli: Callable[..., Any]) -> None:
    kill_again_and_again(name, 1, sqlite_url, cli)


@pytest.mark.chaos
@pytest.mark.parametrize("name", TASKS)
def test_kills_of_workers_change_nothing(
    name: str, url: str, cli: Callable[..., Any], record_property: Callable[..., None]
) -> None:
    kill_again_and_again(name, 50, url, cli)
    record_property("chaos", f"{name}: 50 kills")
