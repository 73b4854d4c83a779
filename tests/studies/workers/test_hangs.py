"""Hanging processes are killed from outside, and their trials end with the bits of an undisturbed training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hanging
import optuna
import pytest
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.failures import FAILED, HUNG
from rekindle.studies.objective import Objective
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.supervisor import WorkerProcess
from rekindle.studies.workers.worker import Worker
from rekindle.tasks.algorithms.ppo import PPO
from rekindle.tasks.errors import Hung
from rekindle.tasks.runtime import progress
from rekindle.tasks.runtime.watcher import Stillness
from studying import TINY, bits, sqlite_first, tiny, undisturbed

STUCK = "3s"  # a step takes microseconds, and what is imported first a second


def slow_to_move(**options: Any) -> Any:
    return tiny(3, (1, 2, 2), env="hanging:Hanging-v0", **options)


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has processes that start in the test hang, each in one of the ways that are named."""
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path / "hangs"))
    return lambda *ways, **when: hanging.hang(tmp_path / "hangs", *ways, **when)


def train_by_workers(url: str, *extra: str) -> list[int]:
    """Worker after worker until one sees the end of the study; their exit statuses."""
    statuses: list[int] = []
    while 0 not in statuses:
        worker = WorkerProcess(url, "s", 1, ["--stuck", STUCK, *extra])
        worker.process.wait(120)
        worker.wait(10)
        statuses.append(worker.status or 0)
        assert statuses[-1] in (0, -signal.SIGKILL), list(worker.last_words)
    return statuses


def hung(store: Store) -> list[dict[str, Any]]:
    events = [event for trial in store.trials("s") for event in store.events(trial.uid) if event.kind == FAILED]
    return [event.data for event in events if event.data["kind"] == HUNG]


@sqlite_first
@pytest.mark.parametrize("way", ["in C", pytest.param("asleep", marks=pytest.mark.slow)])
def test_a_worker_that_hangs_is_killed_and_its_trials_end_as_if_it_had_not(
    url: str, way: str, hangs: Callable[..., None]
) -> None:
    whole = undisturbed(slow_to_move())
    with Store(url) as store:
        start_study(store, "s", slow_to_move())
        hangs(way)
        assert train_by_workers(url) == [-signal.SIGKILL, 0]
        assert bits(store) == whole
        notes = hung(store)
        assert {(note["retry"], note["alone"]) for note in notes} == {(True, True)}
        assert all('hanging.py", line' in note["report"] for note in notes)
        assert not [event for t in store.trials("s") for event in store.events(t.uid) if event.kind == "takeover"]
        assert check(store) == []


def test_a_trial_that_hangs_again_and_again_fails(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", slow_to_move())
        worker = Worker(store, "s")
        uid = worker.runner.advance()[0].trial.uid
        for _ in range(3):
            store.open(uid, None)
            assert store.evict_hung(str(Owner.current()), lambda: Hung("it waited for a server")) == [uid]
        assert [store.histories([uid])[uid].failed[HUNG]] == [3]
        assert worker.run()
        [trial] = [trial for trial in store.trials("s") if trial.uid == uid]
        assert trial.state == "failed"
        assert trial.error == (
            "Hung: 3 times in a row it made no step for too long (--stuck) before it finished epoch 1, and its process "
            "was killed; the events of `rekindle show` say where it hung"
        )
        assert [trial.state for trial in store.trials("s")].count("failed") == 1


@pytest.mark.slow
def test_an_objective_whose_simulator_hangs_again_and_again_fails_and_the_study_goes_on(
    sqlite_url: str, hangs: Callable[..., None]
) -> None:
    def new(url: str) -> tuple[optuna.Study, Objective]:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
        how: dict[str, Any] = {"epochs": 1, "storage": url, "env_processes": 1, "stuck": "1s", **unflatten(TINY)}
        return study, Objective(PPO, "hanging:Hanging-v0", **how)

    calm, objective = new(sqlite_url + "2")
    calm.optimize(objective, n_trials=2)
    study, objective = new(sqlite_url)
    hangs("in C+asleep", after=20)
    study.optimize(objective, n_trials=1)
    hangs("in C", after=20)  # once: its process is replaced
    study.optimize(objective, n_trials=1)
    failed, whole = study.trials
    assert failed.state == optuna.trial.TrialState.FAIL
    law = "an environment process that hangs is replaced, but 2 in a row made no step for 1 s (--stuck)"
    assert failed.user_attrs["rk_error"].startswith(f"Hung: hanging:Hanging-v0: {law}")
    assert whole.user_attrs == calm.trials[1].user_attrs
    assert progress.limit() == progress.STUCK


def test_stalled_paused_and_running_studies_are_distinguished() -> None:
    still = Stillness(limit=0.2, pid=os.getpid())
    deadline = time.monotonic() + 1.0
    ticks = 0
    while time.monotonic() < deadline:
        ticks += 1
        assert not still.exceeds(ticks)
        time.sleep(0.02)
    while not still.exceeds(ticks):
        time.sleep(0.02)
    assert time.monotonic() > deadline + 0.15
    with progress.watched(None):
        assert progress.limit() is None
    assert progress.limit() == progress.STUCK


@pytest.mark.parametrize("text", ["0", "-1", "10 apples", "1e3", "nan", "inf", "", "m", "9999999d"])
def test_a_duration_in_unknown_units_is_an_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "--study", "s", f"--stuck={text}"])
    expected = f"argument --stuck: must be a duration, such as 90s, 10m, 2h or 1d, or off, but got {text!r}"
    assert expected in capsys.readouterr().err
