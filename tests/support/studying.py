"""Helpers of the tests of studies: tiny configurations, and the parts of a study that must be equal."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest
from gated import Gate
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.workers.supervisor import WorkerProcess
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load

TINY = {  # hyperparameters of trainings that take milliseconds
    "epoch_steps": 64,
    "num_envs": 2,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 1,
    "model.width": 16,
    "model.layers": 1,
    "model.activation": "tanh",
}


# For long tests whose code is the same on both databases: PostgreSQL only in `make slow`.
sqlite_first = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)


def tiny(trials: int = 6, epochs: tuple[int, ...] = (1, 4, 2), **options: Any) -> Config:
    fixed = {**TINY, **options.pop("fixed", {})}
    env = options.pop("env", "CartPole-v1")
    options = {"generation": 4, "cohort": 2, **options}
    return make_config(load("ppo"), env, trials=trials, epochs=epochs, fixed=fixed, **options)


def surrogate(trials: int = 8, **options: Any) -> Config:
    """Return the configuration of a study of a known function, whose trainings take no time."""
    options = {"generation": 4, "cohort": 1, "epochs": (1, 9, 3), "sampler": "tpe", **options}
    return make_config(load("surrogate"), "CartPole-v1", trials=trials, **options)


def run(url: str, config: Config, name: str = "s", **options: Any) -> dict[str, Any]:
    """Run a study from beginning to end, with one worker in this process."""
    with Store(url) as store:
        start_study(store, name, config)
        assert Worker(store, name, **options).run()
        return bits(store, name)


UNDISTURBED: dict[str, dict[str, Any]] = {}


def undisturbed(config: Config) -> dict[str, Any]:
    """Return the result of one worker in its own database; trained once for all tests of a process."""
    key = json.dumps(config.to_json())
    if key not in UNDISTURBED:
        with tempfile.TemporaryDirectory() as directory:
            UNDISTURBED[key] = run(f"sqlite:///{directory}/undisturbed.db", config)
    return UNDISTURBED[key]


def run_by_three(url: str, config: Config, name: str = "s") -> dict[str, Any]:
    """Run a study with three workers at once."""
    with Store(url) as store:
        start_study(store, name, config)
        work(url, 3, name)
        return bits(store, name)


def work(url: str, workers: int, name: str = "s") -> None:
    """Run a study to its end with several workers, each with its own store."""
    through: list[bool] = []

    def one() -> None:
        with Store(url) as store:
            through.append(Worker(store, name, workers=workers).run())

    threads = [threading.Thread(target=one) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert through == [True] * workers


def run_and_be_killed(url: str, config: Config, gate: Gate, wait_until: Callable[..., None]) -> dict[str, Any]:
    """Run a study with two gated processes: both are killed, and then one of the next two."""
    with Store(url) as store:
        start_study(store, "s", config)
        for steps, victims in ((80, 2), (120, 1)):
            gate.close(steps)
            crew = [WorkerProcess(url, "s", 2) for _ in range(2)]
            wait_until(lambda crew=crew: gate.waiting() & {worker.process.pid for worker in crew})  # type: ignore[misc]
            for worker in crew[:victims]:
                worker.process.kill()
                worker.wait(300)
                assert worker.status == -signal.SIGKILL
        gate.open()
        wait_until(lambda: crew[1].status is not None)
        crew[1].wait(300)
        assert crew[1].status == 0, list(crew[1].last_words)
        return bits(store)


def bits(store: Store, name: str = "s") -> dict[str, Any]:
    """Return all parts of a study that do not depend on who trained it, and when."""
    trials = store.trials(name)
    return {
        "trials": [(t.number, t.uid, t.params, t.attrs, t.state, t.error) for t in trials],
        "segments": store.segments(name),
        "metrics": {t.uid: store.metrics(t.uid) for t in trials if t.state != "failed"},
        "checkpoints": {
            t.uid: [(last.epochs, last.digest) for last in store.checkpoints(t.uid)[-1:]]
            for t in trials
            if t.state != "failed"
        },
    }
