"""One configuration for several environments, found with few of a grid's trainings.

    python benchmarks/across.py FOLDER [--pattern 'brax*.npz'] [--studies 100] [--only NAME]

FOLDER holds tables of the same grid of hyperparameters in the form that `rekindle tune tabular` takes. Studies across
all of them run in memory through the real schedulers and samplers, and train at most a quarter of what the whole grid
would cost in every environment; a resumed training's epochs count once. What a study is worth is the score of the
configuration that it calls the best, as a part of the best common configuration's: the mean over environments of its
true result at the end, from 0 for a table's worst row to 1 for its best.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rekindle.spaces import flatten
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.schedulers.racing import at_once
from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.schedulers.seeds import collapse, seeds_of
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import Config
from rekindle.tasks.algorithms.tabular import Table, Tabular, read_table

PART = 0.25  # of the whole grid's trainings

SETTINGS: dict[str, dict[str, object]] = {  # studies race by default, except by adaptive
    "halving": {"scheduler": "halving"},
    "tpe, to the end": {"scheduler": "none", "generation": 8},
    "adaptive": {"scheduler": "adaptive"},
    "random, to the end": {"scheduler": "none", "generation": 8, "sampler": "random"},
}


def run(config: Config, tables: Sequence[Table], budget: float) -> tuple[dict[str, object], float]:
    """Run a study in memory, up to a budget in trainings; return its best hyperparameters and its cost."""
    plans, seeds, spent = scheduler(config), seeds_of(config), 0
    trials: dict[int, Trial] = {}
    results: dict[tuple[int, int], Segment] = {}
    waiting: list[Segment] = []
    while spent < budget * tables[0].epochs:
        plan = plans.plan()
        new: list[Trial] = []
        if plan.ask is not None:
            configurations, _ = collapse(config, trials.values(), [])
            for number, values in zip(plan.ask, suggest(config, configurations, plan), strict=True):
                params, attrs = {**config.fixed, **flatten(values)}, {"bracket": plan.bracket}
                numbers = range(number * seeds, (number + 1) * seeds)
                new += [Trial(n, "", params, attrs, seeds=seeds) for n in numbers]
            first = [trial for trial in new if trial.replicate < at_once(config)]
            rung = config.rungs[plan.rung]
            plan.segments += [Segment(trial.number, plan.rung, rung, seeds=seeds) for trial in first]
        trials |= {trial.number: trial for trial in new}
        ended = [Trial(n, "", trials[n].params, trials[n].attrs, state, seeds=seeds) for n, state in plan.finished]
        trials |= {trial.number: trial for trial in ended}
        waiting = sorted([*waiting, *plan.segments], key=plans.priority)
        done = []
        if waiting:
            row, waiting = waiting[0], waiting[1:]
            table = tables[row.replicate % len(tables)]
            column = row.replicate // len(tables) + config.seed
            at = table.nearest(trials[row.number].params)
            score = float(table.returns[at, column % table.returns.shape[1], row.epochs - 1])
            spent += row.epochs - (config.rungs[row.rung - 1] if row.rung else 0)
            done = [Segment(row.number, row.rung, row.epochs, "done", score, seeds=seeds)]
            results[row.number, row.rung] = done[0]
        if not (new or ended or done):
            break
        plans.observe([*new, *ended], [*plan.segments, *done])
    rows = collapse(config, [], results.values())[1]
    trained = {
        (row.number, row.rung): sum(
            (n, row.rung) in results for n in range(row.number * seeds, row.number * seeds + seeds)
        )
        for row in rows
    }
    best = max(rows, key=lambda row: (row.epochs, trained[row.number, row.rung], row.score, -row.number))
    return dict(trials[best.number * seeds].params), spent / tables[0].epochs


def worth(tables: Sequence[Table], params: dict[str, object]) -> float:
    """Return the mean over tables of a configuration's true result, from 0 to 1."""
    results = []
    for table in tables:
        last = np.nan_to_num(table.returns[:, :, -1], nan=np.nanmin(table.returns[:, :, -1])).mean(1)
        results.append((last[table.nearest(params)] - last.min()) / (last.max() - last.min()))
    return statistics.fmean(results)


def main() -> None:
    """Print what studies of each setting are worth, and what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pattern", default="*.npz", help="of the tables' names")
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--across", default="mean")
    parser.add_argument("--only", help="the setting of this name")
    options = parser.parse_args()
    tables = [read_table(str(path)) for path in sorted(options.folder.glob(options.pattern))]
    grid = [
        {name: column[row].item() for name, column in tables[0].columns.items()}
        for row in range(len(tables[0].returns))
    ]
    most = max(worth(tables, params) for params in grid)
    budget = PART * len(grid) * len(tables)
    for name, more in SETTINGS.items():
        if options.only not in (None, name):
            continue
        results, costs = [], []
        for seed in range(options.studies):
            last = tables[0].epochs
            epochs = [last, last] if more["scheduler"] == "none" else [max(1, last // 4), last]
            config = study_config(
                Tabular, [table.path for table in tables], across=options.across, trials=len(grid), epochs=epochs,
                seed=seed, cohort=1, **more,  # type: ignore[arg-type]
            )  # fmt: skip
            best, cost = run(config, tables, budget)
            results.append(worth(tables, best) / most)
            costs.append(cost / len(grid) / len(tables))
        error = statistics.stdev(results) / len(results) ** 0.5 if len(results) > 1 else 0.0
        print(
            f"{name:20} {statistics.fmean(results):.3f} ± {error:.3f}  cost {statistics.fmean(costs):.3f}", flush=True
        )


if __name__ == "__main__":
    main()
