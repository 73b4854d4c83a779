"""Whether confirmations tell the truth: simulated studies on recorded trainings with several seeds.

    python benchmarks/confirmation.py TABLE.npz [TABLE.npz ...] [--studies 2000] [--trials 64] [--top 5] [--seeds 20]

A table holds `curves` (configurations, seeds, points); the last point is the result, and a JSON text `meta` may say
{"maximize": false}. A study trains some random configurations with one seed each. Its confirmation is decided by the
scheduler of `rekindle confirm` and estimated by its interval; every training draws one of the recorded seeds, and the
mean over all of them is the truth. Beside it stand searches that spend the same number of trainings on 1, 3 or 5 seeds
of each configuration and take the best mean.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from rekindle.studies.schedulers.confirming import Confirmation, standing
from rekindle.studies.statistics.intervals import mean_interval
from rekindle.studies.storage.rows import Segment, score_of

FIXED = (1, 3, 5)
REPETITIONS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    for name, default in (("--studies", 2000), ("--trials", 64), ("--top", 5), ("--seeds", 20)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    print(f"{'':44}{'covered':>9}{'bias':>8}{'one seed':>10}{'trainings':>11}{'winner':>9}", end="")
    print("".join(f"{f'{k} seeds':>9}" for k in FIXED))
    for path in options.tables:
        with np.load(path) as table:
            maximize = json.loads(str(table["meta"])).get("maximize", True) if "meta" in table else True
            results = table["curves"][:, :, -1].astype(float) * (1 if maximize else -1)
        print(row(path.stem, results, options), flush=True)


def row(name: str, results: np.ndarray, options: argparse.Namespace) -> str:
    """Simulate studies on one table, and return the line of their figures."""
    random, truth = np.random.default_rng(0), results.mean(1)
    covered, biases, claims, trainings = 0, list[float](), list[float](), list[int]()
    winners: dict[int, list[float]] = {k: [] for k in (0, *FIXED)}
    for _ in range(options.studies):
        tried = random.choice(len(results), options.trials, replace=False)
        first = results[tried, random.integers(0, results.shape[1], len(tried))]
        order = np.argsort(-first, kind="stable")[: options.top]
        claims.append(float(first[order[0]] - truth[tried[order[0]]]))
        winner, scores, others, spent = confirm(results, tried[order], first[order], options.seeds, random)
        estimate = mean_interval(scores, others, repetitions=REPETITIONS)
        covered += estimate.low - 1e-9 <= truth[winner] <= estimate.high + 1e-9
        biases.append(estimate.estimate - float(truth[winner]))
        trainings.append(options.trials + spent)
        winners[0].append(float(truth[winner]))
        for k in FIXED:
            drawn = random.choice(len(results), trainings[-1] // k, replace=False)
            means = results[drawn[:, None], random.integers(0, results.shape[1], (len(drawn), k))].mean(1)
            winners[k].append(float(truth[drawn[np.argmax(means)]]))
    figures = f"{covered / options.studies:9.1%}{statistics.fmean(biases):8.2f}{statistics.fmean(claims):10.1f}"
    figures += f"{statistics.fmean(trainings):11.0f}" + "".join(f"{statistics.fmean(w):9.1f}" for w in winners.values())
    return f"{name[:43]:44}{figures}"


def confirm(
    results: np.ndarray, candidates: np.ndarray, claims: np.ndarray, seeds: int, random: np.random.Generator
) -> tuple[int, list[float], list[list[float]], int]:
    """Return the winner, the results of its estimate and of the other candidates, and the number of trainings."""
    confirmation = Confirmation("", len(candidates), None, seeds, max(3, seeds // 2), tuple(claims.tolist()))
    rows: dict[tuple[int, int], Segment] = {}
    while not (now := standing(confirmation, rows)).over:
        for candidate, replicate in now.wanted:
            score = float(results[candidates[candidate], random.integers(0, results.shape[1])])
            rows[candidate, replicate] = Segment(0, 0, 1, state="done", score=score)
    winner = now.finalists[0]
    scores = [score_of(rows[winner, s]) for s in confirmation.estimating]
    others = [[score_of(row) for (n, _), row in rows.items() if n == other] for other in range(len(candidates))]
    return int(candidates[winner]), scores, others[:winner] + others[winner + 1 :], len(rows)


if __name__ == "__main__":
    main()
