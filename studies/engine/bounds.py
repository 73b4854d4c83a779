"""Bounds of a study and its trials: budget, plateau, trial time.

Work and time are counted from rows, so those of workers that died count, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import CommandRefused
from ..failures import OutOfTime
from ..options.durations import in_words
from ..options.study_options import BOUNDS
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.commands import RESUME, STOP, Command, commands, hold, hold_of, stored_options
from ..storage.rows import Segment, score_of
from ..storage.studies import revise
from ..study.objectives import worth

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..storage.store import Store
    from ..study.config import Config
    from .study_rows import StudyRows

Z = 1.645  # a normal variable exceeds its mean by more standard deviations once in twenty
NOISE = "return_error"  # metric that held the standard error of the return before rows did


def is_lifted(bound: str, data: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether a bound has changed since it stopped the study.

    Args:
        bound: name of the bound.
        data: data of the command that stopped the study.
        options: options of the study now.
    """
    return bound in data and data[bound] != options.get(bound)


def resume_if_lifted(connection: Connection, name: str, who: str = "", why: str = "") -> None:
    """Resume a study if the bound that stopped it has changed.

    It is called in the transaction that changes the bound, so that of several processes one resumes the study, and none
    lifts a stop that a user has given since.
    """
    command, options = hold_of(commands(connection, name)), stored_options(connection, name)
    if command is not None and command.who in BOUNDS and is_lifted(command.who, command.data, options):
        why = why or f"the {command.who} is {options.get(command.who, 'off')} now"
        hold(connection, name, RESUME, who or command.who, why)


def stop_at_bounds(store: Store, rows: StudyRows) -> bool:
    """Stop a study at a bound that it has reached; return whether."""
    return stop_if_spent(store, rows) or stop_if_plateau(store, rows)


def spent_by(
    store: Store, rows: StudyRows, unsaved: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, dict[str, int]] | None:
    """Return the unit whose budget is spent, and the amounts spent.

    The result is None while no budget is spent.

    Args:
        store: store of the study.
        rows: rows of the study.
        unsaved: epochs of the tasks that train in this process, by uid.
    """
    budget = rows.config.options.get("budget")
    if not budget:
        return None
    trials = {trial.uid: trial for trial in rows.trials.values()}
    seconds = int(sum(store.trained_for(list(trials)).values())) if "seconds" in budget else 0
    epochs, steps = 0, sum(row.eval_steps or 0 for row in rows.segments.values())
    reached = store.reached(list(trials))
    for uid, trial in trials.items():
        trained = max(0, max(reached.get(uid, 0), unsaved.get(uid, 0)) - trial.inherited)
        epochs, steps = epochs + trained, steps + trained * trial.epoch_steps
    spent = {"epochs": epochs, "steps": steps, "seconds": seconds}
    over = next((unit for unit, most in budget.items() if spent[unit] >= most), None)
    return None if over is None else (over, spent)


def stop_if_spent(store: Store, rows: StudyRows) -> bool:
    """Stop a study whose saved work spends its budget; return whether."""
    overrun = spent_by(store, rows)
    if overrun is None:
        return False
    (over, spent), budget = overrun, rows.config.options["budget"]
    why, data = f"{spent[over]} of {budget[over]} {over} are trained", {"budget": dict(budget), "spent": spent}
    with suppress(CommandRefused):  # another worker was quicker
        store.command(lambda c: stop_at(c, rows.name, "budget", why, data))
    return True


def stop_at(connection: Connection, name: str, bound: str, why: str, data: Mapping[str, Any]) -> Command:
    """Stop a study at a bound, unless the bound was changed meanwhile.

    Raises:
        CommandRefused: it is stopped already, or has another bound now.
    """
    revise(connection, name)  # locks the study, before its bounds are read
    if is_lifted(bound, data, stored_options(connection, name)):
        raise CommandRefused(f"a study stops at its {bound}, but {name!r} has another one by now")
    return hold(connection, name, STOP, bound, why, data)


def stop_if_plateau(store: Store, rows: StudyRows) -> bool:
    """Stop a study that found nothing better for too many trials.

    A trial is better if it trained for more epochs, if it trained with more seeds, as those that win their race do, if
    it violates the constraints less, or if its score is higher by more than the noise of both. Only trials before the
    first running one count, so the result does not depend on which trial finishes first.

    Returns:
        Whether the study has reached its plateau.
    """
    config, most = rows.config, rows.config.options.get("plateau")
    if not most or len(rows.trials) <= most:
        return False
    replicates, segments = remembered(rows.trials.values(), rows.segments.values())
    trials, results = collapse(config, replicates, segments)
    last = {row.number: row for row in sorted(results, key=lambda row: row.rung) if row.state == "done"}
    best, unimproved = None, 0
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.state == "running":
            break
        if trial.excluded or trial.repeats is not None:
            continue
        row = last.get(trial.number)
        better = row is not None and (best is None or is_better(store, rows, row, best))
        best, unimproved = (row, 0) if better else (best, unimproved + 1)
    if best is None or unimproved < most:
        return False
    why = f"none of {unimproved} trials was better than trial {best.number} beyond the noise of evaluation"
    with suppress(CommandRefused):
        data = {"plateau": most, "best": best.number, "trials": unimproved}
        store.command(lambda c: stop_at(c, rows.name, "plateau", why, data))
    return True


def is_better(store: Store, rows: StudyRows, row: Segment, best: Segment) -> bool:
    if row.epochs != best.epochs:
        return row.epochs > best.epochs
    trained, most = len(rows.done_seeds(row)), len(rows.done_seeds(best))
    if trained != most:
        return trained > most
    (feasible, score), (least, highest) = worth(rows.config, row), worth(rows.config, best)
    if feasible != least or score <= highest:
        return feasible > least
    return score - highest > Z * math.hypot(noise_of(store, rows, row), noise_of(store, rows, best))


def noise_of(store: Store, rows: StudyRows, row: Segment) -> float:
    """Return the standard error of a configuration's score.

    It comes from the spread over seeds, or over episodes if there is one seed.
    """
    seeds = seeds_of(rows.config)
    if seeds == 1 and row.eval_error is not None:
        return row.eval_error
    if seeds == 1:
        return dict(store.metrics(rows.trials[row.number].uid)).get(row.epochs, {}).get(NOISE, 0.0)
    return standard_error([score_of(row) for row in rows.done_seeds(row)])


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def overdue(store: Store, config: Config, epochs: Mapping[str, int]) -> dict[str, OutOfTime]:
    """Return the failures of trials that trained for too long, by uid.

    Args:
        store: store of the study.
        config: configuration of the study.
        epochs: epochs of the trials in question, by uid.
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
