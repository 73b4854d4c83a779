"""Compare winners of `rekindle tune`, trained again, with Stable-Baselines3's PPO.

    OMP_NUM_THREADS=1 python benchmarks/winners.py FOLDER [--env CartPole-v1 ...] [--trials 16] [--confirm 3]

In each environment, by default the 20 of `record_trainings.py`, a study of PPO searches; its best trial is trained
again on fresh seeds, and so is Stable-Baselines3's PPO for as many steps, with its defaults and with rl-zoo3's settings
where `zoo.py` has some. With --confirm, the winner of a confirmation of the study's three best trials and the defaults,
with so many fresh seeds each, is another side. All are measured on the same episodes. Everything is stored in FOLDER,
so the same command continues; several commands may train in other environments at the same time. A line has
interquartile means over seeds and their 95% intervals by the bootstrap (Agarwal et al. 2021, arXiv:2108.13264), which
are too narrow for few seeds.
The study's portfolio is made without its own environment, and without what others tuned there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import rekindle
from rekindle.benchmarks.portfolio import Recorded
from rekindle.benchmarks.record_trainings import ENVIRONMENTS
from rekindle.benchmarks.zoo import DEFAULTS, TUNED
from rekindle.spaces import unflatten
from rekindle.studies.statistics.aggregates import iqm
from rekindle.studies.statistics.estimates import FEWEST
from rekindle.studies.statistics.intervals import interval
from rekindle.studies.study import portfolio
from rekindle.tasks import Task
from rekindle.tasks.adapters.sb3 import SB3
from stable_baselines3 import PPO

FIRST_SEED = 1000  # of the trainings after a search, whose seed is 0
WINNER, CONFIRMED = "Rekindle's winner", "and confirmed"
CANDIDATES = 3  # of a confirmation, besides the defaults
EPISODES = 100
EPOCH_STEPS = 4096


def trained(
    store: rekindle.Store,
    task: type[Task],
    env: Mapping[str, Any],
    values: Mapping[str, Any],
    seeds: int,
    epochs: int,
    episodes: int = EPISODES,
) -> list[float]:
    """Return the mean return of each of several agents, which are trained or were stored."""
    means = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        agent = task(env, seed=seed, storage=store).init(**unflatten(values))
        try:
            agent.fit(epochs)
            means.append(float(agent.evaluate(episodes)))
        finally:
            agent.release()
            agent.close()
    return means


def portfolio_without(name: str, task: str) -> Sequence[Mapping[str, Any]]:
    """Return the portfolio from the recorded trainings in all environments but one, the defaults first."""
    recorded = Recorded.read(task)
    return [recorded.configurations[n] for n in recorded.portfolio(without=name)]


def peers(
    store: rekindle.Store, name: str, env: Mapping[str, Any], seeds: int, epochs: int, episodes: int = EPISODES
) -> dict[str, list[float]]:
    """Return the mean returns of agents of Stable-Baselines3's PPO, by the origin of its settings."""
    sides: dict[str, tuple[type[PPO], dict[str, Any]]] = {"SB3's defaults": (PPO, {})}
    if name in TUNED:
        sides["rl-zoo3's settings"] = TUNED[name]
    steps = {"epoch_steps": EPOCH_STEPS, "total_steps": epochs * EPOCH_STEPS}
    return {
        side: trained(store, SB3(algorithm), env, {**DEFAULTS, **values, **steps}, seeds, epochs, episodes)
        for side, (algorithm, values) in sides.items()
    }


def confirmed(study: rekindle.Study, seeds: int) -> Mapping[str, Any]:
    """Return the hyperparameters of the winner of a confirmation."""
    answer = study.confirm(top=CANDIDATES, seeds=seeds, progress=False)
    hyperparameters: Mapping[str, Any] = answer["candidates"][answer["winner"]]["hyperparameters"]
    return hyperparameters


def bounds(means: list[float]) -> tuple[float, float, float]:
    """Return the interquartile mean of returns and its interval."""
    return interval(iqm, np.array([means]).T)


def verdict(ours: list[float], others: Mapping[str, list[float]]) -> str:
    """Return where the winner stands among the other sides."""
    value, _, high = bounds(ours)
    below = [side for side, means in others.items() if value < bounds(means)[0]]
    clearly = [side for side in below if high < bounds(others[side])[1]]
    return f"below {' and '.join(below)}{', beyond intervals' if clearly else ''}" if below else "at least the best"


def main() -> None:
    """Search, train again and compare, environment by environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--env", action="append", default=[], choices=list(ENVIRONMENTS))
    for name, number in (("trials", 16), ("epochs", 27), ("seeds", 10), ("peers", 5), ("episodes", EPISODES)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--confirm", type=int, metavar="SEEDS", help="train a confirmation's winner again, too")
    options = parser.parse_args()
    if min(options.seeds, options.peers) < FEWEST:
        parser.error(f"an interval needs {FEWEST} seeds, but got --seeds {options.seeds} --peers {options.peers}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.env or ENVIRONMENTS:
        env = dict(ENVIRONMENTS[name][0])
        with rekindle.Store(f"sqlite:///{options.folder / name}.db") as store:
            size = {"trials": options.trials, "epochs": f"1:{options.epochs}", "fixed": {"epoch_steps": EPOCH_STEPS}}
            with patch.object(portfolio, "portfolio", partial(portfolio_without, name)):
                study = rekindle.tune("ppo", env, storage=store, study="search", progress=False, **size)
            assert study.best is not None, f"no trial in {name} has a result"
            length = {"epochs": options.epochs, "episodes": options.episodes}
            ours = {WINNER: study.best.hyperparameters}
            if options.confirm:
                ours[CONFIRMED] = confirmed(study, options.confirm)
            winners = {
                side: trained(store, rekindle.PPO, env, values, options.seeds, **length)
                for side, values in ours.items()
            }
            others = peers(store, name, env, options.peers, **length)
        for side, means in {**winners, **others}.items():
            value, low, high = bounds(means)
            print(f"{name:26} {side:18} {value:9.4g} ({low:.4g} to {high:.4g}, {len(means)} seeds)")
        for side, means in winners.items():
            print(f"{name:26} {side} is {verdict(means, others)}", flush=True)


if __name__ == "__main__":
    main()
