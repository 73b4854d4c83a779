"""What the tests of studies share: a tiny configuration, and everything of a finished study that must be equal."""

from __future__ import annotations

import threading
from typing import Any

from rekindle.studies.config import Config
from rekindle.studies.configuring import make_config
from rekindle.studies.engine import start_study
from rekindle.studies.storage.store import Store
from rekindle.studies.worker import Worker
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


def tiny(trials: int = 6, epochs: tuple[int, ...] = (1, 4, 2), **options: Any) -> Config:
    fixed = {**TINY, **options.pop("fixed", {})}
    env = options.pop("env", "CartPole-v1")
    options = {"generation": 4, "cohort": 2, **options}
    return make_config(load("ppo"), env, trials=trials, epochs=epochs, fixed=fixed, **options)


def run(url: str, config: Config, name: str = "s", **options: Any) -> dict[str, Any]:
    """A study from beginning to end, with one worker in this process."""
    with Store(url) as store:
        start_study(store, name, config)
        assert Worker(store, name, **options).run()
        return bits(store, name)


def run_by_three(url: str, config: Config, name: str = "s") -> dict[str, Any]:
    """The same with three workers at once."""
    with Store(url) as store:
        start_study(store, name, config)
    through: list[bool] = []

    def work() -> None:
        with Store(url) as mine:
            through.append(Worker(mine, name, workers=3).run())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert through == [True] * 3
    with Store(url) as store:
        return bits(store, name)


def bits(store: Store, name: str = "s") -> dict[str, Any]:
    """All of a study that does not depend on who did it, and when."""
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
