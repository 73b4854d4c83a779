"""Compare `rekindle tune auto` with the best single algorithm, chosen afterwards.

    OMP_NUM_THREADS=1 python benchmarks/auto.py FOLDER [--env CartPole-v1 ...] [--trials 16] [--epochs 9] [--studies 1]

In each environment, a study chooses among all algorithms that can learn there, and one of each algorithm searches for
itself, with as many trials and steps. Each best trial is trained again on fresh seeds. Results are scaled from 0, the
mean return of random actions, to 1, the best of all sides in that environment; an algorithm that cannot learn there
has 0. A line compares the choice with the algorithm whose mean over the environments is best. Everything is stored in
FOLDER, so the same command continues; several commands may train in other environments at the same time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import rekindle
from rekindle.benchmarks.record_trainings import ENVIRONMENTS
from rekindle.benchmarks.winners import bounds, trained
from rekindle.tasks import EnvSpec, load
from rekindle.tasks.algorithms.auto import algorithms_in
from rekindle.tasks.identity import TaskIdentity
from rekindle.tasks.probing import probe

AUTO = "auto"
DEVELOPMENT = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0")


def winners(store: rekindle.Store, side: str, env: EnvSpec, seed: int, options: argparse.Namespace) -> list[float]:
    """Return the mean returns of a study's best trial, trained again."""
    steps = {"epoch_steps": options.epoch_steps}
    fixed = dict.fromkeys(algorithms_in(env), steps) if side == AUTO else steps
    size = {"trials": options.trials, "epochs": f"1:{options.epochs}", "seed": seed}
    study = rekindle.tune(side, env, storage=store, study=f"{side} {seed}", fixed=fixed, progress=False, **size)
    assert study.best is not None, f"no trial of {side} in {env.id} has a result"
    algorithm, values = load(side).chosen(env, study.best.hyperparameters)
    return trained(store, algorithm, env.to_json(), values, options.seeds, options.epochs)


def scaled(results: dict[str, list[float]], least: float) -> dict[str, float]:
    """Return the interquartile mean of each side, from 0 (random actions) to 1 (the best side)."""
    means = {side: bounds(returns)[0] for side, returns in results.items()}
    most = max(means.values())
    return {side: (mean - least) / (most - least) if most > least else 0.0 for side, mean in means.items()}


def summary(scores: Sequence[dict[str, float]]) -> str:
    """Return the mean scores over environments and studies, and the difference from the best single algorithm."""
    sides = sorted({side for of_env in scores for side in of_env})
    means = {side: statistics.fmean(of_env.get(side, 0.0) for of_env in scores) for side in sides}
    best = max((side for side in sides if side != AUTO), key=lambda side: means[side])
    table = ", ".join(f"{side} {mean:.3f}" for side, mean in sorted(means.items(), key=lambda row: -row[1]))
    return f"{table}; auto minus {best}: {means[AUTO] - means[best]:+.3f}"


def main() -> None:
    """Search, train again and compare, environment by environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--env", action="append", default=[], choices=list(ENVIRONMENTS))
    numbers = {"trials": 16, "epochs": 9, "epoch-steps": 4096, "seeds": 5, "studies": 1}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    scores = []
    for name in options.env or DEVELOPMENT:
        env = EnvSpec.of(ENVIRONMENTS[name][0])
        looked = probe(rekindle.PPO, TaskIdentity.of(rekindle.PPO, env, 0, {}))
        least = statistics.fmean(looked["random"])
        print(f"{name:26} random actions {least:9.4g}", flush=True)
        with rekindle.Store(f"sqlite:///{options.folder / name}.db") as store:
            for seed in range(options.studies):
                results = {}
                for side in (AUTO, *algorithms_in(env)):
                    results[side] = winners(store, side, env, seed, options)
                    value, low, high = bounds(results[side])
                    print(f"{name:26} {side:14} {value:9.4g} ({low:.4g} to {high:.4g})", flush=True)
                scores.append(scaled(results, least))
        print(f"so far: {summary(scores)}", flush=True)


if __name__ == "__main__":
    main()
