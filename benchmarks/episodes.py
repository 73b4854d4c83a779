"""Measure how many episodes an evaluation should take, on recorded episodes.

    OMP_NUM_THREADS=1 python benchmarks/episodes.py FILE [--env CartPole-v1 ...] [--count 16] [--episodes 240]

Configurations of PPO (`record_trainings.py`) train in each environment, and their episodes at each rung of a study are
written to FILE, which is continued. Studies in memory then draw trials among them and promote as many as the adaptive
scheduler expects, by the first of these episodes in random order. Rules:

    20       at most 20 episodes, within a study's steps
    200      at most 200, if the first 20 differ
    again    at most 20 within half of the steps, then four times as many for the third that is nearest to the cut
    all      every recorded episode on all rungs but the last, which has 20: as if a rung's means were known

A rule's worth is the mean of all episodes that the winner has at the end, from 0 for the worst configuration to 1 for
the best; it overstates by the winner's last result minus that mean, in the same scale.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rekindle
from numpy.typing import NDArray
from rekindle.benchmarks.record_trainings import ENVIRONMENTS, fitting, recordings
from rekindle.spaces import unflatten
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.schedulers.adaptive import expected
from rekindle.tasks.evaluation.measuring import measure_episodes

EPOCH_STEPS, RUNGS, TRIALS = 4096, (1, 3, 9, 27), 12
RULES = ("20", "200", "again", "all")
Episodes = NDArray[np.float64]  # (configurations, rungs, 2, episodes): returns and lengths


def record(file: Path, name: str, index: int, episodes: int) -> None:
    """Train a configuration, and write its episodes at each rung."""
    env = dict(ENVIRONMENTS[name][0])
    values = {**fitting(env, recordings()["ppo"].configurations[index]), "epoch_steps": EPOCH_STEPS}
    task = rekindle.PPO(env, seed=0).init(**unflatten(values))
    rows = []
    for epochs in RUNGS:
        task.fit(epochs)
        learner, member = task.member_ref()
        measured = measure_episodes(learner, episodes)
        rows.append([measured.returns[member].tolist(), measured.lengths[member].tolist()])
    task.close()
    with file.open("a") as out:
        out.write(json.dumps({"env": name, "configuration": index, "rows": rows}) + "\n")


def result(rows: Episodes, steps: float, most: int) -> tuple[float, float]:
    """Return the mean of the first episodes (2, E) that fit, and their steps."""
    returns, used = rows[0], np.cumsum(rows[1])
    count = max(1, min(most, int(np.count_nonzero(used <= steps))))
    if count > 20 and np.ptp(returns[:20]) == 0:
        count = 20
    return float(returns[:count].mean()), float(used[count - 1])


def study(rule: str, episodes: Episodes, shares: Sequence[float], rng: np.random.Generator) -> tuple[int, float, float]:
    """Return the configuration that a study calls best, its last result, and the steps of evaluations."""
    alive = [int(n) for n in rng.permutation(len(episodes))[:TRIALS]]
    counts, steps = [*expected(RUNGS, len(alive)), 1], 0.0
    for rung, share in enumerate(shares):
        last, kept = rung == len(RUNGS) - 1, counts[rung + 1]
        drawn = {n: rng.permutation(episodes[n, rung], axis=1) for n in alive}
        if rule == "all" and not last:
            results = {n: (float(rows[0].mean()), 0.0) for n, rows in drawn.items()}
        else:
            again = rule == "again" and not last
            within, most = share / 2 if again else share, 200 if rule == "200" else 20
            results = {n: result(rows, within, most) for n, rows in drawn.items()}
            if again and kept < len(alive):
                means = sorted((mean for mean, _ in results.values()), reverse=True)
                cut = (means[kept - 1] + means[kept]) / 2
                near = sorted(alive, key=lambda n: abs(results[n][0] - cut))[: len(alive) // 3]
                results |= {n: result(drawn[n], 2 * share, 20) for n in near}
        steps += sum(used for _, used in results.values())
        alive = sorted(alive, key=lambda n: -results[n][0])[:kept]
    return alive[0], results[alive[0]][0], steps


def main() -> None:
    """Record what is missing, then print each rule's worth by environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--env", action="append", default=[], choices=list(ENVIRONMENTS))
    for name, number in (("count", 16), ("episodes", 240), ("studies", 2000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    options.file.touch()
    for name in options.env:
        recorded = {row["configuration"] for row in _rows(options.file) if row["env"] == name}
        for index in sorted({*range(options.count)} - recorded):
            record(options.file, name, index, options.episodes)
    for name in dict.fromkeys(row["env"] for row in _rows(options.file)):
        episodes = np.array([row["rows"] for row in _rows(options.file) if row["env"] == name])
        config = study_config(rekindle.PPO, ENVIRONMENTS[name][0], portfolio="off", epochs=[1, 27, 3], trials=TRIALS)
        assert config.rungs == RUNGS
        shares = [share * EPOCH_STEPS for _, share, *_ in config.options["eval_steps"]]
        true = episodes[:, -1, 0].mean(-1)
        size = float(np.ptp(true)) or 1.0
        for rule in RULES:
            rng = np.random.default_rng(0)
            results = [study(rule, episodes, shares, rng) for _ in range(options.studies)]
            worth = np.array([(true[best] - true.min()) / size for best, _, _ in results])
            over = np.mean([(last - true[best]) / size for best, last, _ in results])
            error, steps = worth.std() / math.sqrt(len(worth)), np.mean([used for *_, used in results])
            print(f"{name:24} {rule:6} {worth.mean():.3f} ± {error:.3f}, overstated by {over:.3f}, {steps:9,.0f} steps")


def _rows(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    main()
