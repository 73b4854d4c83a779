"""Choose the portfolio of `rekindle tune` from recorded trainings, and measure it on environments left out.

    python benchmarks/portfolio.py [--task ppo]        # from the tables in benchmarks/trainings/ppo
    python benchmarks/portfolio.py --records FILE ...  # first makes these of files by record_trainings.py

A table is what `rekindle tune tabular benchmarks/trainings/ppo/Swimmer-v5.npz` takes: the greedy policy's return at
three points of each training. `training` (N, S, T) has the mean return of the training's own episodes in each epoch,
and `meta` the environment, the seeds and each row's exact hyperparameters (a text column says none, where they are
None). The portfolio starts with the defaults, and takes the configuration that raises the mean over environments of the
best of the portfolio most, up to a size: greedy maximization of a submodular function. Returns are normalized in each
environment from 0, the lower decile of configurations, to 1, the best. The choice is by the mean of the greedy policy's
last return and of those of the training's own last episodes, which are many more; the portfolio's worth is by the first
alone. A portfolio is written if in environments that are left out it is better than others at random. There, no
configuration counts that somebody tuned in the environment.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rekindle.benchmarks.record_trainings import ENVIRONMENTS, RUNGS, TUNED_IN, recordings
from rekindle.spaces import flatten
from rekindle.tasks import load

SIZES = {"ppo": 7, "sac": 7, "dqn": 2, "qrdqn": 2}  # with the defaults; few recordings do not tell more
LAST = 4  # epochs at the end whose own episodes count
TRAININGS = Path(__file__).parent / "trainings"
FILE = Path(__file__).parent.parent / "studies" / "study" / "portfolio.json"
Array = NDArray[np.float64]


def pack(task: str, paths: Sequence[Path]) -> None:
    """Write a table for each environment, of the configurations that have all of its seeds.

    What the tables hold counts, too.
    """
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    records += packed(task)
    (TRAININGS / task).mkdir(parents=True, exist_ok=True)
    recording, space = recordings()[task], load(task).learner.hyperparameters
    sized = [{**values, "epoch_steps": recording.epoch_steps} for values in recording.configurations]
    complete = [flatten(space.validate(values)) for values in sized]
    searched = [name for name in complete[0] if any(values.get(name) != complete[0][name] for values in complete)]
    for env in recording.environments:
        trainings: dict[int, dict[int, dict[str, Any]]] = {}
        for record in records:
            if record["env"] == env and "error" not in record:
                for i, seed in enumerate(record["seeds"]):
                    scores = {int(epoch): of_seeds[i] for epoch, of_seeds in record["scores"].items()}
                    trainings.setdefault(record["configuration"], {})[seed] = {
                        "scores": scores, "training": record["training"][i],
                    }  # fmt: skip
        if not trainings:
            continue
        seeds = sorted(set.union(*map(set, trainings.values())))
        rows = sorted(index for index in trainings if len(trainings[index]) == len(seeds))
        epochs = [epoch for epoch in RUNGS if epoch in trainings[rows[0]][seeds[0]]["scores"]]
        curves = [[[trainings[n][seed]["scores"][epoch] for epoch in epochs] for seed in seeds] for n in rows]
        training = [[trainings[n][seed]["training"] for seed in seeds] for n in rows]
        meta = {
            "maximize": True, "task": task, "env": ENVIRONMENTS[env][0], "seeds": seeds, "rows": rows,
            "episodes": [RUNGS[epoch] for epoch in epochs],
            "configurations": [recording.configurations[n] for n in rows],
        }  # fmt: skip
        arrays: dict[str, Any] = {
            "steps": np.array(epochs) * recording.epoch_steps, "curves": np.array(curves, np.float32),
            "training": np.array(training, np.float32), "meta": json.dumps(meta),
        }  # fmt: skip
        for name in searched:
            arrays[f"param.{name.replace('.', '_')}"] = _column([complete[n].get(name) for n in rows])
        np.savez_compressed(TRAININGS / task / f"{env}.npz", **arrays)


def packed(task: str) -> list[dict[str, Any]]:
    """Return the records in a task's tables."""
    records = []
    for path in sorted((TRAININGS / task).glob("*.npz")):
        table = np.load(path)
        meta, names = json.loads(str(table["meta"])), list(RUNGS)
        for place, row in enumerate(meta["rows"]):
            scores = {
                epoch: table["curves"][place, :, n].tolist() for n, epoch in enumerate(names[: len(meta["episodes"])])
            }
            training = table["training"][place].tolist()
            records.append(
                {"env": path.stem, "configuration": row, "seeds": meta["seeds"], "scores": scores, "training": training}
            )
    return records


def _column(values: list[Any]) -> Any:
    """Return a column; texts if some values are None or do not apply."""
    return np.array(["none" if value is None else str(value) for value in values] if None in values else values)


@dataclass(frozen=True)
class Recorded:
    """Trainings of the configurations that have trained in all environments.

    Attributes:
        task: name of the algorithm.
        envs: names of the environments.
        rows: numbers of the configurations in `recordings`, of which the defaults are the first.
        configurations: their hyperparameters by dotted name.
        curves: returns of the greedy policies in each environment, (N, S, T).
        training: returns of the trainings' own episodes in each epoch of each environment, (N, S, epochs).
    """

    task: str
    envs: Sequence[str]
    rows: Sequence[int]
    configurations: Sequence[dict[str, Any]]
    curves: Sequence[Array]
    training: Sequence[Array]

    @classmethod
    def read(cls, task: str) -> Recorded:
        """Read the tables of a task."""
        tables = {path.stem: np.load(path) for path in sorted((TRAININGS / task).glob("*.npz"))}
        metas = {env: json.loads(str(table["meta"])) for env, table in tables.items()}
        rows = sorted(set.intersection(*(set(meta["rows"]) for meta in metas.values())))
        places = {env: [meta["rows"].index(row) for row in rows] for env, meta in metas.items()}
        first = next(iter(metas))
        values = [metas[first]["configurations"][place] for place in places[first]]
        curves, training = (
            [tables[env][name][places[env]].astype(float) for env in tables] for name in ("curves", "training")
        )
        return cls(task, [*tables], rows, values, curves, training)

    def results(self) -> Array:
        """Return the normalized last returns of the greedy policies, (E, N)."""
        return normalized([of_env[:, :, -1].mean(1) for of_env in self.curves])

    def merits(self) -> Array:
        """Return by what a portfolio is chosen, (E, N)."""
        last = [np.ma.masked_invalid(of_env[:, :, -LAST:]).mean((1, 2)) for of_env in self.training]
        return (self.results() + normalized([of_env.filled(of_env.min()) for of_env in last])) / 2

    def portfolio(self, without: str | None = None) -> list[int]:
        """Return the indices of the chosen configurations, the defaults first.

        Args:
            without: environment that is left out, with what was tuned in it.
        """
        merits = self.merits()[[env != without for env in self.envs]]
        left_out = TUNED_IN.get(without or "", ()) if self.task == "ppo" else ()
        candidates = [
            index
            for index, (row, values) in enumerate(zip(self.rows, self.configurations, strict=True))
            if row not in left_out and fits(self.task, values)
        ]
        return chosen(merits, candidates, SIZES[self.task])

    def gains(self, portfolio: Sequence[int]) -> list[float]:
        """Return by how much each configuration but the first raises the mean merit of a portfolio's best."""
        best = np.maximum.accumulate(self.merits()[:, portfolio], axis=1).mean(0)
        return [round(float(gain), 3) for gain in np.diff(best)]


def normalized(returns: Sequence[Array]) -> Array:
    """Return returns from 0, an environment's lower decile, to 1, its best, (E, N)."""
    of_envs = np.array(returns)
    high, low = of_envs.max(1, keepdims=True), np.quantile(of_envs, 0.1, axis=1, keepdims=True)
    return np.where(high > low, np.clip((of_envs - low) / np.where(high > low, high - low, 1.0), 0, 1), 1.0)


def chosen(scores: Array, candidates: Sequence[int], size: int) -> list[int]:
    """Return the indices of a portfolio, the defaults first."""
    portfolio = [0]
    while len(portfolio) < size and (left := [n for n in candidates if n not in portfolio]):
        best = scores[:, portfolio].max(1)
        portfolio.append(max(left, key=lambda n: (np.maximum(best, scores[:, n]).mean(), -n)))
    return portfolio


def promoted(curves: Array, scores: Array, portfolio: Sequence[int], count: int) -> float:
    """Return the mean score of a search that trains the best of a portfolio to the end.

    Each seed is a search. Its winner is the best at the end of those that were the best in the middle.

    Args:
        curves: returns of all configurations (N, S, T) at the beginning, in the middle and at the end.
        scores: their normalized final returns, (N,).
        portfolio: indices of its configurations.
        count: number of those that go on.
    """
    winners = []
    for of_seed in curves.swapaxes(0, 1):
        alive = sorted(portfolio, key=lambda n: -of_seed[n, -2])[:count]
        winners.append(scores[max(alive, key=lambda n: of_seed[n, -1])])
    return float(np.mean(winners))


def at_random(scores: Array, size: int) -> float:
    """Return the mean of the best of the defaults and others at random.

    With the scores in rising order, `drawn` is the number of sets of others of which the n-th is the best.
    """
    others = np.sort(scores[1:])
    drawn = [comb(n, size - 2) for n in range(len(others))]
    return float(np.average(np.maximum(others, scores[0]), weights=drawn))


def fits(task: str, values: dict[str, Any]) -> bool:
    """Return whether a study can try the values: those that it searches are within its ranges."""
    from rekindle.spaces import SpaceError
    from rekindle.spaces.drivers.to_optuna import params

    space = load(task).learner.hyperparameters.searched()
    try:
        params(space, {name: value for name, value in values.items() if name in space.flat()})
    except SpaceError:
        return False
    return True


def main() -> None:
    """Write the portfolio, and print what it is worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="ppo", choices=list(recordings()))
    parser.add_argument("--records", type=Path, nargs="+", default=[])
    task, records = vars(parser.parse_args()).values()
    if records:
        pack(task, records)
    recorded = Recorded.read(task)
    scores, portfolio = recorded.results(), recorded.portfolio()
    print(f"{len(recorded.envs)} environments, {len(recorded.rows)} configurations")
    print(f"chosen {[recorded.rows[n] for n in portfolio]}")
    print("environment                defaults  with others at random  portfolio made without it")
    without, random, results = [], [], []
    for place, env in enumerate(recorded.envs):
        others = recorded.portfolio(without=env)
        without.append(scores[place, others].max())
        curves = recorded.curves[place]
        results.append([promoted(curves, scores[place], others, count) for count in range(1, len(portfolio) + 1)])
        random.append(at_random(scores[place], len(portfolio)))
        names = [recorded.rows[n] for n in others]
        print(f"{env:26} {scores[place, 0]:8.2f}  {random[-1]:21.2f}  {without[-1]:8.2f}  {names}")
    print(f"{'mean':26} {scores[:, 0].mean():8.3f}  {np.mean(random):21.3f}  {np.mean(without):8.3f}")
    means = ", ".join(f"{mean:.3f}" for mean in np.mean(results, 0))
    print(f"the best of the portfolio, if 1, 2, ... of it go on in the middle of a training: {means}")
    if np.mean(without) <= np.mean(random):
        print("not written, since others at random are as good in environments that are left out")
        return
    source = f"benchmarks/portfolio.py, from the trainings in benchmarks/trainings/{task}"
    content = json.loads(FILE.read_text()) | {
        task: {
            "source": source,
            "environments": len(recorded.envs),
            "gains": recorded.gains(portfolio),
            "configurations": [recorded.configurations[n] for n in portfolio],
        }
    }
    most_first = sorted(content.items(), key=lambda entry: -entry[1]["environments"])
    FILE.write_text(json.dumps(dict(most_first), indent=1) + "\n")


if __name__ == "__main__":
    main()
