"""How often the intervals of `rekindle compare` contain the truth, by the number of runs.

    python benchmarks/intervals.py [--simulations 2000]

Each simulation draws runs in one environment, two or five, and takes the 95% bootstrap intervals of the IQM and of the
mean. Results are normal, skewed (exponential, lognormal), or fail in a quarter of the runs. The rows hold the range
over these four, and over two and five environments in the columns "several". `COVERAGE` in
`studies/statistics/intervals.py` has these figures.
"""

from __future__ import annotations

import argparse

import numpy as np
from rekindle.studies.statistics.aggregates import AGGREGATES
from rekindle.studies.statistics.intervals import interval

RUNS = (3, 4, 5, 6, 7, 8, 9, 10, 20)
ENVIRONMENTS = {"one": (1,), "several": (2, 5)}
STATISTICS = ("iqm", "mean")
REPETITIONS = 500
POPULATION = 1_000_000


def failing(random: np.random.Generator, size: int | tuple[int, ...]) -> np.ndarray:
    """Return returns of which a quarter are low, about 100 instead of 450."""
    return np.where(random.random(size) < 0.25, random.normal(100, 30, size), random.normal(450, 40, size))


KINDS = {
    "normal": lambda random, size: random.normal(0, 1, size),
    "exponential": lambda random, size: random.exponential(1, size),
    "lognormal": lambda random, size: random.lognormal(0, 1, size),
    "failing": failing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000)
    count = parser.parse_args().simulations
    names = [f"{statistic}, {name}" for name in ENVIRONMENTS for statistic in STATISTICS]
    print("runs" + "".join(f"{name:>18}" for name in names))
    for runs in RUNS:
        print(f"{runs:4}", end="")
        for environments in ENVIRONMENTS.values():
            shares = [covered(distribution, runs, several, count) for distribution in KINDS for several in environments]
            for values in zip(*shares, strict=True):
                print(f"{f'{min(values):.0%} to {max(values):.0%}':>18}", end="", flush=True)
        print()


def covered(distribution: str, runs: int, environments: int, count: int) -> list[float]:
    """Return the share of intervals that contain the truth, for each statistic."""
    random = np.random.default_rng(runs * 10 + environments)
    population = KINDS[distribution](random, POPULATION)[:, None]
    samples = [KINDS[distribution](random, (runs, environments)) for _ in range(count)]
    shares = []
    for statistic in (AGGREGATES[name] for name in STATISTICS):
        truth = float(statistic(population))
        intervals = (interval(statistic, sample, repetitions=REPETITIONS, seed=n) for n, sample in enumerate(samples))
        shares.append(float(np.mean([ends.low <= truth <= ends.high for ends in intervals])))
    return shares


if __name__ == "__main__":
    main()
