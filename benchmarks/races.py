"""What further seeds for the best trials of a small study are worth, on the recorded trainings of PPO.

    python benchmarks/races.py [--studies 3000]

A study has 16 trials, as `rekindle tune ppo ENV --trials 16 --epochs 1:27 --repeats 0` trains them: the portfolio, of
which four go on after a third of the training, and nine other configurations at random, of which one goes on after a
ninth. With repeats, which are trials themselves, there are fewer others. Only environments with two recorded seeds
count. A configuration's result is normally distributed around the mean of its two seeds, with their unbiased variance,
within the range of all results; the mean is its true result. Each rule chooses among the five that reached the end.
Scores are 0 for an environment's lower decile of configurations, and 1 for its best.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rekindle.benchmarks.portfolio import TRAININGS
from rekindle.studies.study.portfolio import portfolio

Array = NDArray[np.float64]
OTHERS, LATER, LAST, FIRST_FINISHERS = 9, 1, 1, 4
OWN = 4  # epochs at the end whose own episodes count
TRAININGS_OF_A_STUDY = 167 / 27  # what this study takes, see `schedulers.adaptive`


@dataclass
class Finish:
    """Trials that reached the end of a study.

    Attributes:
        numbers: their configurations.
        results: the result of each.
        training_means: mean return of each one's own episodes in the last epochs.
        again: function that trains a configuration with a further seed, and returns its result.
    """

    numbers: Sequence[int]
    results: dict[int, float]
    training_means: dict[int, float]
    again: Callable[[int], float]


Rule = Callable[[Finish], tuple[int, int]]  # returns the winner, and the number of further trainings


def by(weight: float) -> Rule:
    """Return the rule that weighs the training's own episodes beside the result."""

    def rule(finish: Finish) -> tuple[int, int]:
        scores = {n: (1 - weight) * finish.results[n] + weight * finish.training_means[n] for n in finish.numbers}
        return max(finish.numbers, key=lambda n: scores[n]), 0

    return rule


def race(count: int, seeds: int) -> Rule:
    """Return the rule that trains each of the best with further seeds."""

    def rule(finish: Finish) -> tuple[int, int]:
        best = sorted(finish.numbers, key=lambda n: -finish.results[n])[:count]
        means = {n: np.mean([finish.results[n], *(finish.again(n) for _ in range(seeds))]) for n in best}
        return max(best, key=lambda n: means[n]), count * seeds

    return rule


def repeat(count: int) -> Rule:
    """Return the rule by which the best are trained again, and all rank by their means."""

    def rule(finish: Finish) -> tuple[int, int]:
        best = sorted(finish.numbers, key=lambda n: -finish.results[n])[:count]
        means = {**finish.results, **{n: (finish.results[n] + finish.again(n)) / 2 for n in best}}
        return max(finish.numbers, key=lambda n: means[n]), count

    return rule


def until(seeds: int) -> Rule:
    """Return the rule that trains the best again, until the best mean is of so many trainings."""

    def rule(finish: Finish) -> tuple[int, int]:
        results = {n: [finish.results[n]] for n in finish.numbers}

        def best() -> int:
            return max(results, key=lambda n: np.mean(results[n]))

        while len(results[best()]) < seeds:
            results[best()].append(finish.again(best()))
        return best(), sum(map(len, results.values())) - len(results)

    return rule


REPEATS = 2
REPEATED = f"the last {REPEATS} trials repeat the best (the default)"
RULES: dict[str, Rule] = {
    "the last result": by(0.0),
    f"own episodes of the last {OWN} epochs": by(1.0),
    "the mean of both": by(0.5),
    "two best, one further seed": race(2, 1),
    "three best, one": race(3, 1),
    "two best, two": race(2, 2),
    "three best, two": race(3, 2),
    "the best again, until the best mean is of two": until(2),
    "until it is of three": until(3),
    REPEATED: repeat(REPEATS),
}


def finish_of(
    curves: Array, training_means: Array, first: Sequence[int], random: np.random.Generator, others: int = OTHERS
) -> Finish:
    """Draw a study, and return its end.

    Args:
        curves: returns at the beginning, in the middle and at the end, (N, S, 3).
        training_means: mean returns of each training's last epochs, (N, S).
        first: the portfolio.
        random: source of all that is drawn.
        others: number of configurations beside the portfolio.
    """
    count, seeds, _ = curves.shape
    seed = [int(random.integers(seeds)) for _ in range(count)]
    means, deviations = curves[..., -1].mean(1), curves[..., -1].std(1, ddof=1)
    ends = curves[..., -1].min(), curves[..., -1].max()

    def again(n: int) -> float:
        return float(np.clip(random.normal(means[n], deviations[n]), *ends))

    def best(numbers: Sequence[int], rung: int, size: int) -> list[int]:
        return sorted(numbers, key=lambda n: -curves[n, seed[n], rung])[:size]

    drawn = random.permutation([n for n in range(count) if n not in first])[:others].tolist()
    numbers = best(first, 1, FIRST_FINISHERS) + best(best(drawn, 0, LATER), 1, LAST)
    return Finish(
        numbers, {n: again(n) for n in numbers}, {n: float(training_means[n, seed[n]]) for n in numbers}, again
    )


def main() -> None:
    """Print the mean score of each rule, and what it costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=3000, help="of each environment")
    studies = parser.parse_args().studies
    scores: dict[str, list[float]] = {name: [] for name in RULES}
    spent: dict[str, list[float]] = {name: [] for name in RULES}
    most, environments = [], []
    for path in sorted((TRAININGS / "ppo").glob("*.npz")):
        table = np.load(path)
        meta, curves = json.loads(str(table["meta"])), table["curves"].astype(float)
        if curves.shape[1] < 2:
            continue
        training_means = table["training"][..., -OWN:].astype(float)
        lengths = np.isfinite(training_means).sum(-1)
        training_means = np.where(lengths > 0, np.nansum(training_means, -1) / np.maximum(lengths, 1), curves[..., -1])
        truth, random = curves[..., -1].mean(1), np.random.default_rng(0)
        low, high = np.quantile(truth, 0.1), truth.max()
        worth = np.clip((truth - low) / (high - low), 0, 1)
        first = [meta["configurations"].index(values) for values in portfolio("ppo")]
        of_env: dict[str, list[float]] = {name: [] for name in RULES}
        best = []
        for _ in range(studies):
            finish = finish_of(curves, training_means, first, random)
            best.append(worth[[*finish.numbers]].max())
            with_repeats = finish_of(curves, training_means, first, random, OTHERS - REPEATS)
            for name, rule in RULES.items():
                winner, trainings = rule(with_repeats if name == REPEATED else finish)
                of_env[name].append(worth[winner])
                spent[name].append(trainings)
        environments.append(path.stem)
        most.append(np.mean(best))
        for name, values in of_env.items():
            scores[name].append(float(np.mean(values)))
    print(f"{len(environments)} environments: {', '.join(environments)}")
    for name in RULES:
        cost = np.mean(spent[name])
        print(f"{name:46} {np.mean(scores[name]):.3f}  {cost:.1f} trainings  {cost / TRAININGS_OF_A_STUDY:.0%}")
    print(f"{'the best that reached the end':46} {np.mean(most):.3f}")


if __name__ == "__main__":
    main()
