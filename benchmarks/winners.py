"""Compare winners of `rekindle tune`, trained again, with Stable-Baselines3's defaults.

    OMP_NUM_THREADS=1 python benchmarks/winners.py FOLDER [--env CartPole-v1 ...] [--trials 16] [--epochs 27]

In each environment, by default the 20 of `record_trainings.py`, a study of PPO searches; its best trial is trained
again on fresh seeds, and so is Stable-Baselines3's PPO with its defaults, for as many steps (the task `sb3:PPO`). All
are measured on the same 20 episodes. Everything is stored in FOLDER, so the same command continues; several commands
may train in other environments at the same time. A line has interquartile means over seeds and their 95% intervals by
the bootstrap (Agarwal et al. 2021, arXiv:2108.13264), which are too narrow for few seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rekindle
from rekindle.benchmarks.record_trainings import ENVIRONMENTS
from rekindle.spaces import unflatten
from rekindle.studies.statistics.aggregates import iqm
from rekindle.studies.statistics.intervals import interval
from rekindle.tasks import load

FIRST_SEED = 1000  # of the trainings after a search, whose seed is 0
EPISODES = 20
EPOCH_STEPS = 4096
SB3 = {"n_steps": 2048, "ent_coef": 1e-8}  # its defaults where the task has others; 0 is below the range of ent_coef


def trained(
    store: rekindle.Store, task: str, env: Mapping[str, Any], values: Mapping[str, Any], seeds: int, epochs: int
) -> list[float]:
    """Return the mean return of each of several agents, which are trained or were stored."""
    means = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        agent = load(task)(env, seed=seed, storage=store).init(**unflatten(values))
        try:
            agent.fit(epochs)
            means.append(float(agent.evaluate(EPISODES)))
        finally:
            agent.release()
            agent.close()
    return means


def shown(means: list[float]) -> str:
    """Return the interquartile mean of returns and its interval in words."""
    value, low, high = interval(iqm, np.array([means]).T)
    return f"{value:9.4g} ({low:.4g} to {high:.4g}, {len(means)} seeds)"


def main() -> None:
    """Search, train again and compare, environment by environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--env", action="append", default=[], choices=list(ENVIRONMENTS))
    for name, number in (("trials", 16), ("epochs", 27), ("seeds", 10), ("peers", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.env or ENVIRONMENTS:
        env = dict(ENVIRONMENTS[name][0])
        with rekindle.Store(f"sqlite:///{options.folder / name}.db") as store:
            size = {"trials": options.trials, "epochs": f"1:{options.epochs}"}
            fixed = {"epoch_steps": EPOCH_STEPS}
            study = rekindle.tune("ppo", env, storage=store, study="search", fixed=fixed, progress=False, **size)
            assert study.best is not None, f"no trial in {name} has a result"
            ours = trained(store, "ppo", env, study.best.hyperparameters, options.seeds, options.epochs)
            peer = {**SB3, "epoch_steps": EPOCH_STEPS, "total_steps": options.epochs * EPOCH_STEPS}
            theirs = trained(store, "sb3:PPO", env, peer, options.peers, options.epochs)
        print(f"{name:26} Rekindle's winner {shown(ours)}   SB3's defaults {shown(theirs)}", flush=True)


if __name__ == "__main__":
    main()
