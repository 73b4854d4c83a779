"""Thousands of studies in memory, on recorded trainings, through the real schedulers and samplers.

    python benchmarks/schedulers.py FOLDER [--trainings 4] [--studies 1000] [--only NAME]

FOLDER holds tables of whole curves in the form that `rekindle tune tabular` takes. Each setting has a budget in
trainings to the end, where a resumed trial's epochs count once. What a study is worth is the true result of the trial
that it calls the best: the mean over seeds at the end of the curve, from 0 for the table's worst row to 1 for its best.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
from rekindle.spaces import flatten
from rekindle.spaces.drivers.to_optuna import suggest as suggest_values
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import Config
from rekindle.tasks.algorithms.tabular import Table, Tabular, read_table

FIRST = 20  # the first rung is after this part of a training
Result = tuple[int, float]  # the row that a study calls best, and what the study cost in trainings


class Replay:
    """One study on a table, for one column of its seeds."""

    def __init__(self, table: Table, column: int):
        self.table, self.column, self.epochs = table, column % table.returns.shape[1], 0
        self.best: tuple[int, float, int] = (0, -math.inf, 0)  # epochs, score, row

    def train(self, row: int, before: int, epochs: int) -> float | None:
        """Train a row from one number of epochs to another, and return its score."""
        self.epochs += epochs - before
        score = float(self.table.returns[row, self.column, epochs - 1])
        if not math.isfinite(score):
            return None
        self.best = max(self.best, (epochs, score, row), key=lambda result: result[:2])
        return score

    @property
    def result(self) -> Result:
        """The row that is best of those that trained longest, and the cost."""
        return self.best[2], self.epochs / self.table.epochs


def run(config: Config, table: Table, budget: float) -> Result:
    """Run a whole study in memory, or up to a budget in trainings."""
    replay, plans = Replay(table, config.seed), scheduler(config)
    trials: dict[int, Trial] = {}
    rows: dict[int, int] = {}
    segments: list[Segment] = []
    while replay.epochs < budget * table.epochs:
        plan = plans.plan()
        new: list[Trial] = []
        if plan.ask is not None:
            for number, values in zip(plan.ask, suggest(config, trials.values(), plan), strict=True):
                params = {**config.fixed, **flatten(values)}
                params |= {name: table.space.flat()[name].default for name in table.columns if name not in params}
                new.append(Trial(number, "", params, {"bracket": plan.bracket}))
                rows[number] = table.nearest(params)
            plan.segments += [Segment(trial.number, plan.rung, config.rungs[plan.rung]) for trial in new]
        trials |= {trial.number: trial for trial in new}
        ended = [Trial(n, "", trials[n].params, trials[n].attrs, state) for n, state in plan.finished]
        trials |= {trial.number: trial for trial in ended}
        segments = sorted([*segments, *plan.segments], key=plans.priority)
        done = []
        if segments:
            row, segments = segments[0], segments[1:]
            score = replay.train(rows[row.number], config.rungs[row.rung - 1] if row.rung else 0, row.epochs)
            done = [Segment(row.number, row.rung, row.epochs, "failed" if score is None else "done", score)]
            if score is None:
                ended = [Trial(row.number, "", trials[row.number].params, {}, "failed")]
                trials |= {row.number: ended[0]}
        if not (new or ended or done):
            break
        plans.observe([*new, *ended], [*plan.segments, *done])
    return replay.result


def setting(name: str, sampler: str, first: float | None, trials: float, **options: object) -> Callable[..., Result]:
    """Return a study's maker.

    Args:
        name: of the scheduler.
        sampler: its name.
        first: the part of a training before the first rung; None trains to the end at once.
        trials: for each training of the budget.
        options: further fields of the configuration.
    """

    def study(table: Table, budget: float, seed: int) -> Result:
        low = table.epochs if first is None else max(1, round(first * table.epochs))
        count = max(1, round(trials * budget))
        config = study_config(
            Tabular, table.path, trials=count, epochs=[low, table.epochs], scheduler=name, sampler=sampler, seed=seed,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip
        return run(config, table, budget)

    return study


def optuna_hyperband(table: Table, budget: float, seed: int) -> Result:
    """Optuna's TPE with its Hyperband pruner, which continues each trial until it prunes it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    low = max(1, round(table.epochs / FIRST))
    pruner = optuna.pruners.HyperbandPruner(min_resource=low, max_resource=table.epochs)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    replay = Replay(table, seed)
    while replay.epochs < budget * table.epochs:
        trial = study.ask()
        row, epoch, score = table.nearest(flatten(suggest_values(table.space, trial, fixed={}))), 0, None
        while epoch < table.epochs and replay.epochs < budget * table.epochs:
            score = replay.train(row, epoch, epoch + 1)
            epoch += 1
            if score is None:
                break
            trial.report(score, epoch)
            if epoch < table.epochs and trial.should_prune():
                break
        whole = epoch == table.epochs and score is not None
        study.tell(trial, score if whole else None, state=None if whole else optuna.trial.TrialState.PRUNED)
    return replay.result


SETTINGS: dict[str, Callable[..., Result]] = {
    "random": setting("none", "random", None, 1),
    "tpe": setting("none", "tpe", None, 1),
    "halving, 27 from 1/27": setting("halving", "random", 1 / 27, 27 / 4, generation=27),
    "halving, 7 from 1/3": setting("halving", "random", 1 / 3, 7 / 4, generation=7),
    "hyperband": setting("hyperband", "random", 1 / FIRST, 10),
    "hyperband, tpe": setting("hyperband", "tpe", 1 / FIRST, 10),
    "Optuna TPE + Hyperband": optuna_hyperband,
    "adaptive, random": setting("adaptive", "random", 1 / FIRST, 3, generation=12),
    "adaptive, tpe": setting("adaptive", "tpe", 1 / FIRST, 3, generation=12),
}


def main() -> None:
    """Print each setting's mean result with its error, and each table's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainings", type=float, default=4.0, help="the budget, in trainings to the end")
    parser.add_argument("--studies", type=int, default=1000, help="on each table")
    parser.add_argument("--only", help="settings whose names begin so")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables = [table for path in sorted(arguments.folder.glob("*.npz")) if (table := read_table(str(path))).epochs >= 5]
    if not tables:
        parser.error(f"a folder of tables with whole curves is needed, but {arguments.folder} has none")
    for name, study in SETTINGS.items():
        if arguments.only and not name.startswith(arguments.only):
            continue
        row, errors, costs, began = {}, [], [], time.process_time()
        for table in tables:
            true = np.nan_to_num(table.returns[:, :, -1].mean(1), nan=np.nanmin(table.returns[:, :, -1]))
            worth = (true - true.min()) / (true.max() - true.min())
            results = [study(table, arguments.trainings, seed) for seed in range(arguments.studies)]
            scores = [float(worth[best]) for best, _ in results]
            row[Path(table.path).stem] = statistics.fmean(scores)
            errors.append(statistics.variance(scores) / len(scores) if len(scores) > 1 else math.nan)
            costs += [cost for _, cost in results]
        line = {
            "setting": name,
            "mean": statistics.fmean(row.values()),
            "error": math.sqrt(sum(errors)) / len(row),
            "cost": statistics.fmean(costs),
            "most": max(costs),
            "seconds": time.process_time() - began,
            "tables": row,
        }
        if arguments.json:
            print(json.dumps(line), flush=True)
            continue
        cells = "  ".join(f"{value:.3f}" for value in row.values())
        mean = f"{line['mean']:.3f} ± {line['error']:.3f}"
        print(f"{name:26} {mean}  cost {line['cost']:5.2f} to {line['most']:5.2f}  {cells}", flush=True)


if __name__ == "__main__":
    main()
