"""Whether earlier studies help a new one, and how little misleading ones hurt.

    python benchmarks/learn_from.py FOLDER [--rows 64] [--studies 100] [--reversed] [--plain]

FOLDER holds tables of the same hyperparameters, in the form that `rekindle tune tabular` takes. In turn each is the new
one, and so many random rows of each other table are its sources; `--rows 0` takes all. Studies run in memory through
the real samplers, trial by trial, and find a row's true result. What is shown is how many trials they need in the mean
to be as good as the best of 12, 18 and 27 random rows. `--reversed` turns the scores of all sources around, `--plain`
leaves them out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rekindle.spaces import flatten
from rekindle.studies.analysis.learning import source_of
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.storage.rows import Trial
from rekindle.studies.study.plan import Plan
from rekindle.tasks.algorithms.tabular import Table, Tabular, read_table

RANDOM = (12, 18, 27)


def study(table: Table, sources: list[Table], seed: int, options: argparse.Namespace) -> np.ndarray:
    """Return the results of a study's trials."""
    random, learned = np.random.default_rng(seed), []
    for n, other in enumerate(sources):
        count = options.rows or len(other.returns)
        rows = random.permutation(len(other.returns))[:count]
        order = rows[np.argsort(-true(other)[rows], kind="stable")]
        values = [{name: column[row].item() for name, column in other.columns.items()} for row in order]
        learned.append(source_of(str(n), values))
        if options.reversed:
            learned[-1]["scores"] = [1 - score for score in learned[-1]["scores"]]
    config = study_config(
        Tabular,
        table.path,
        trials=options.trials,
        epochs=table.epochs,
        scheduler="none",
        generation=1,
        cohort=1,
        seed=seed,
    )
    if not options.plain:
        config.options["learned"] = learned  # type: ignore[index]
    trials: list[Trial] = []
    results: dict[int, list[tuple[int, float]]] = {}
    for number in range(options.trials):
        plan = Plan(ask=range(number, number + 1), seen=dict(results))
        params = flatten(suggest(config, trials, plan)[0])
        trials.append(Trial(number, "", params, {}))
        results[number] = [(table.epochs, float(true(table)[table.nearest(params)]))]
    return np.array([scores[0][1] for scores in results.values()])


def true(table: Table) -> np.ndarray:
    """Return the result of each row, the mean over its seeds."""
    last = table.returns[:, :, -1]
    return np.nan_to_num(last, nan=np.nanmin(last)).mean(1)


def main() -> None:
    """Print how many trials are needed on each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=64, help="of each source, 0 for all")
    parser.add_argument("--studies", type=int, default=100, help="on each table")
    parser.add_argument("--trials", type=int, default=36, help="of each study")
    parser.add_argument("--pattern", default="*.npz", help="of the tables' names")
    parser.add_argument("--reversed", action="store_true")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    tables = [read_table(str(path)) for path in sorted(options.folder.glob(options.pattern))]
    print(f"{'trials to be as good as the best of':40}" + "".join(f"{f'{k} random':>12}" for k in RANDOM))
    for table in tables:
        others = [other for other in tables if other is not table]
        results = [study(table, others, seed, options) for seed in range(options.studies)]
        curve = np.maximum.accumulate(np.array(results), 1).mean(0)
        drawn = np.random.default_rng(0).choice(true(table), (20_000, max(RANDOM)))
        goals = np.maximum.accumulate(drawn, 1).mean(0)
        needed = [int(np.argmax(curve >= goals[k - 1])) + 1 if curve[-1] >= goals[k - 1] else None for k in RANDOM]
        cells = "".join(f"{trials or f'over {options.trials}':>12}" for trials in needed)
        print(f"{Path(table.path).stem:40}{cells}", flush=True)


if __name__ == "__main__":
    main()
