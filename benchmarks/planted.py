"""Count studies that learned nothing and are told so, and sound studies that are told so by mistake.

    OMP_NUM_THREADS=1 python benchmarks/planted.py [--env CartPole-v1 ...] [--seed 0]

In each environment, by default the 20 of `record_trainings.py`, one study of PPO has a learning rate so small that its
trials cannot learn, and another one has the results of the recorded trainings (`benchmarks/trainings/ppo`). That one is
sound if all episodes of some training's last epochs return more, on average, than random actions and the median of
untrained policies. Both have the real probe of the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rekindle
from rekindle.benchmarks.portfolio import TRAININGS
from rekindle.benchmarks.record_trainings import ENVIRONMENTS
from rekindle.spaces import flatten
from rekindle.studies.analysis.health import diagnose
from rekindle.studies.analysis.unlearned import EPISODE_RETURN
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.storage.commands import FOUND, PROBE, add
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.tasks.checkpoint.storage import Write

LEARNING_RATE = 1e-8  # moves no weight by more than its rounding in so few steps
LAST = 3  # epochs


def plant(store: rekindle.Store, env: Mapping[str, Any], seed: int) -> None:
    """Run a study whose trials cannot learn."""
    fixed = {"epoch_steps": 512, "optimizer": {"lr": LEARNING_RATE}}
    rekindle.tune("ppo", env, storage=store, study="s", trials=8, epochs="1:3", fixed=fixed, seed=seed, progress=False)


def replay(store: rekindle.Store, env: Mapping[str, Any], path: Path, results: Mapping[str, Any]) -> float:
    """Write a study of recorded results; return the best training's own last returns."""
    table = np.load(path)
    meta, scores = json.loads(str(table["meta"])), table["curves"][:, 0].astype(float)  # of the first seed
    epochs = [int(steps) // 4096 for steps in table["steps"]]
    count = len(scores)
    rungs = f"{epochs[0]}:{epochs[-1]}"
    config = study_config(rekindle.PPO, env, trials=count, epochs=rungs, scheduler="halving", generation=count)
    assert [*config.rungs] == epochs
    start_study(store, "s", config)
    store.database.write(lambda connection: add(connection, "s", PROBE, {FOUND: results}, "probe", ""))
    space = rekindle.PPO.learner.hyperparameters
    params = [flatten(space.validate({**values, "epoch_steps": 4096})) for values in meta["configurations"]]
    trials = [Trial(n, f"u{n}", values, {"bracket": 0}) for n, values in enumerate(params)]
    segments = [
        Segment(n, rung, epochs[rung], "done", score) for n, row in enumerate(scores) for rung, score in enumerate(row)
    ]
    store.add_rows("s", trials=trials, segments=segments)
    for trial, training in zip(trials, table["training"][:, 0].astype(float), strict=True):
        points = [
            (epoch, {EPISODE_RETURN: value}) for epoch, value in enumerate(training.tolist(), 1) if value == value
        ]
        with store.open(trial.uid, {"task": "ppo", "number": trial.number}) as lease:
            store.save([Write(lease, epochs[-1], metrics=points)])
    return float(np.nanmax(np.nanmean(table["training"][:, 0, -LAST:], axis=-1)))


def is_told(store: rekindle.Store) -> bool:
    """Return whether the diagnosis of a study says that nothing was learned."""
    return diagnose(store, "s").unlearned


def main() -> None:
    """Print what each study is told, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", default=[], choices=list(ENVIRONMENTS))
    parser.add_argument("--seed", type=int, default=0, help="of the first studies")
    arguments = parser.parse_args()
    recognized, alarms, names = 0, list[bool](), arguments.env or list(ENVIRONMENTS)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            env = dict(ENVIRONMENTS[name][0])
            with rekindle.Store(f"sqlite:///{folder}/{name} planted.db") as store:
                plant(store, env, arguments.seed)
                recognized += (recognizes := is_told(store))
                results = next(row.data[FOUND] for row in store.commands("s") if FOUND in row.data)
            untrained = statistics.median(statistics.fmean(returns) for returns in results["untrained"] if returns)
            above = max(statistics.fmean(results["random"]), untrained)
            with rekindle.Store(f"sqlite:///{folder}/{name} recorded.db") as store:
                best = replay(store, env, TRAININGS / "ppo" / f"{name}.npz", results)
                sound, alarm = best > above, is_told(store)
            alarms += [alarm] if sound else []
            verdict = "sound" if sound else "not sound"
            print(f"{name:26} planted: {'told' if recognizes else 'NOT TOLD'}; recorded: best {best:.4g}, {above:.4g} "
                  f"untrained, {verdict}, {'TOLD' if alarm else 'not told'}", flush=True)  # fmt: skip
    print(f"{recognized} of {len(names)} planted studies are told, and {sum(alarms)} of {len(alarms)} sound ones")


if __name__ == "__main__":
    main()
