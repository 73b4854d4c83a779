"""Samplers on recorded trainings, all to the end: what the best of a study is worth.

    python benchmarks/samplers.py FOLDER [--trials 27] [--studies 60] [--only NAME]

FOLDER holds tables in the form that `rekindle tune tabular` takes. Studies run in memory through the real samplers, as
those of `rekindle tune` do with `--scheduler none`: the first trial takes the middle of each range, and samplers that
learn draw the first generation of eight at random. Beside the default TPE stand two of Optuna's variants, and TPE on
ranges that a user has halved (`--prior`): around one of the best tenth of the table's rows, or around any of its rows.
What is shown is the mean over seeds of the row that a study calls best, from 0 for the table's worst row to 1 for its
best.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, TPESampler
from rekindle.spaces.choices import Ordinal
from rekindle.spaces.ranges import Real
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.samplers import suggest
from rekindle.studies.samplers.registry import make_sampler
from rekindle.studies.study.config import Config
from rekindle.tasks.algorithms.tabular import Table, Tabular, read_table
from schedulers import run  # type: ignore[import-not-found]  # its neighbour

GENERATION = 8


def variant(config: Config, number: int, *more: int, **options: Any) -> BaseSampler:
    """Make another TPE of Optuna's, with the seed of the default one."""
    sampler = make_sampler(config, number, *more)
    seed = int(sampler._rng.rng.randint(2**31))  # type: ignore[attr-defined]
    return TPESampler(seed=seed, n_startup_trials=config.generation, **options)


SAMPLERS: dict[str, tuple[str, Callable[..., BaseSampler]]] = {
    **{name: (name, make_sampler) for name in ("tpe", "random", "qmc", "cmaes", "gp")},
    "tpe, independent": ("tpe", functools.partial(variant, multivariate=False)),
    "tpe, group": ("tpe", functools.partial(variant, multivariate=True, group=True)),
}
PRIORS = {"tpe, half the range around a good row": 0.1, "tpe, half the range around any row": 1.0}


def halved(table: Table, row: int) -> dict[str, str]:
    """Return priors of half of each range around a row: half of its values, at least two, or of its length."""
    priors = {}
    for name, column in table.columns.items():
        dimension, value = table.space.flat()[name], column[row].item()
        if isinstance(dimension, Ordinal):
            values = list(dimension.values)
            count, at = max(2, len(values) // 2), values.index(value)
            first = min(max(0, at - count // 2), len(values) - count)
            priors[name] = f"ordinal({values[first : first + count]}, default_value={value})"
        else:
            assert isinstance(dimension, Real)
            scale, back = (math.log, math.exp) if dimension.log else (float, float)
            ends = scale(dimension.low), scale(dimension.high)
            low = min(max(ends[0], scale(value) - (ends[1] - ends[0]) / 4), (ends[0] + ends[1]) / 2)
            high = low + (ends[1] - ends[0]) / 2
            least, middle, most = (back(end) for end in (low, (low + high) / 2, high))
            least, most = max(least, dimension.low), min(most, dimension.high)  # which roundings exceed
            priors[name] = f"{'log' * dimension.log}uniform({least}, {most}, default_value={middle})"
    return priors


def study(table: Table, name: str, trials: int, seed: int) -> float:
    """Return what a study's best row is worth."""
    sampler, maker = SAMPLERS.get(name, SAMPLERS["tpe"])
    suggest.make_sampler = maker  # type: ignore[attr-defined]
    true = np.nan_to_num(table.returns[:, :, -1], nan=np.nanmin(table.returns[:, :, -1])).mean(1)
    epochs, priors = [table.epochs, table.epochs], {}
    if name in PRIORS:
        among = np.argsort(-true)[: max(1, round(PRIORS[name] * len(true)))]
        priors = halved(table, int(np.random.default_rng(seed).choice(among)))
    config = study_config(
        Tabular, table.path, trials=trials, epochs=epochs, scheduler="none", sampler=sampler, seed=seed,
        generation=GENERATION, cohort=1, priors=priors,
    )  # fmt: skip
    best, _ = run(config, table, math.inf)
    return float((true[best] - true.min()) / (true.max() - true.min()))


def main() -> None:
    """Print the mean worth of each sampler on each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=27)
    parser.add_argument("--studies", type=int, default=60, help="on each table")
    parser.add_argument("--only", help="the sampler of this name")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for name in [*SAMPLERS, *PRIORS]:
        if options.only in (None, name):
            row, errors = {}, []
            for path in sorted(options.folder.glob("*.npz")):
                table = read_table(str(path))
                results = [study(table, name, options.trials, seed) for seed in range(options.studies)]
                row[path.stem] = round(statistics.fmean(results), 4)
                errors.append(statistics.variance(results) / len(results))
            error = math.sqrt(sum(errors)) / len(row)
            line = {"sampler": name, "mean": statistics.fmean(row.values()), "error": error, "tables": row}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
