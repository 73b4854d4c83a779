"""Bounds of a study, and of its trials, which workers obey.

Work and time are counted from rows, so those of workers that died count, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import CommandRefused
from ..failures import OutOfTime
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.commands import EXCLUDED, STOP, hold
from ..storage.rows import Segment, score_of
from ..study.durations import in_words

if TYPE_CHECKING:
    from ..storage.store import Store
    from ..study.config import Config
    from .study_rows import StudyRows

Z = 1.645  # standard deviations of a difference's noise, of which one in twenty is larger
NOISE = "return_error"  # the metric: standard error of a return, of studies with a plateau


def is_lifted(bound: str, data: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether a bound has changed since it stopped the study."""
    return bound in data and data[bound] != options.get(bound)


def stop_if_spent(store: Store, rows: StudyRows, unsaved: Mapping[str, int]) -> bool:
    """Stop a study whose budget is spent; return whether it is.

    Args:
        store: holds the study.
        rows: the study's.
        unsaved: epochs of the tasks that train here, by uid.
    """
    budget = rows.config.options.get("budget")
    if not budget:
        return False
    spent, trials = {"epochs": 0, "steps": 0, "seconds": 0}, {trial.uid: trial for trial in rows.trials.values()}
    if "seconds" in budget:
        spent["seconds"] = int(sum(store.trained_for(list(trials)).values()))
    reached = store.reached(list(trials))
    for uid, trial in trials.items():
        inherited = int(trial.attrs["start"]["epochs"]) if "start" in trial.attrs else 0
        epochs = max(0, max(reached.get(uid, 0), unsaved.get(uid, 0)) - inherited)
        spent["epochs"] += epochs
        spent["steps"] += epochs * int(trial.params.get("epoch_steps", 0))
    over = next((unit for unit, most in budget.items() if spent[unit] >= most), None)
    if over is None:
        return False
    why, data = f"{spent[over]} of {budget[over]} {over} are trained", {"budget": dict(budget), "spent": spent}
    with suppress(CommandRefused):  # another worker was quicker
        store.command(lambda c: hold(c, rows.name, STOP, "budget", why, data))
    return True


def stop_if_plateau(store: Store, rows: StudyRows) -> bool:
    """Stop a study that found nothing better for long; return whether.

    A trial is better if it trained for more epochs, or if its score is higher beyond the noise of both. Only trials
    before the first that runs count, so that it does not depend on who finishes first.
    """
    config, most = rows.config, rows.config.options.get("plateau")
    if not most or len(rows.trials) <= most:
        return False
    replicates, segments = remembered(rows.trials.values(), rows.segments.values())
    trials, results = collapse(config, replicates, segments)
    last = {row.number: row for row in sorted(results, key=lambda row: row.rung) if row.state == "done"}
    best, since = None, 0
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.state == "running":
            break
        if EXCLUDED in trial.attrs:
            continue
        row = last.get(trial.number)
        better = row is not None and (best is None or _is_better(store, rows, row, best))
        best, since = (row, 0) if better else (best, since + 1)
    if best is None or since < most:
        return False
    why = f"none of {since} trials was better than trial {best.number} beyond the noise of evaluation"
    with suppress(CommandRefused):
        data = {"plateau": most, "best": best.number, "trials": since}
        store.command(lambda c: hold(c, rows.name, STOP, "plateau", why, data))
    return True


def _is_better(store: Store, rows: StudyRows, row: Segment, best: Segment) -> bool:
    if row.epochs != best.epochs or score_of(row) <= score_of(best):
        return row.epochs > best.epochs
    return score_of(row) - score_of(best) > Z * math.hypot(_noise(store, rows, row), _noise(store, rows, best))


def _noise(store: Store, rows: StudyRows, row: Segment) -> float:
    """Return the standard error of a configuration's score.

    It is that of its seeds, or else that of its episodes.
    """
    seeds = seeds_of(rows.config)
    if seeds == 1:
        return dict(store.metrics(rows.trials[row.number].uid)).get(row.epochs, {}).get(NOISE, 0.0)
    own = (rows.segments.get((row.number * seeds + n, row.rung)) for n in range(seeds))
    scores = [score_of(each) for each in own if each is not None and each.state == "done"]
    return standard_error(scores)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 of a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def overdue(store: Store, config: Config, epochs: Mapping[str, int]) -> dict[str, OutOfTime]:
    """Return failures of trials that trained for too long, by uid.

    Args:
        store: holds the study.
        config: the study's.
        epochs: of the trials in question, by uid.
    """
    most = config.options.get("trial_time")
    if most is None:
        return {}
    took = store.trained_for(list(epochs))
    return {
        uid: OutOfTime(
            f"it trained for {in_words(seconds)} until epoch {epochs[uid]}, but a trial of this study has "
            f"{in_words(most)} (--trial-time); give the study more, or leave what is slow out of its space"
        )
        for uid, seconds in took.items()
        if seconds >= most
    }
