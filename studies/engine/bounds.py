"""Bounds of a study, and of its trials, which workers obey.

Work and time are counted from rows, so those of workers that died count, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import CommandRefused
from ..failures import OutOfTime
from ..storage.commands import STOP, hold
from ..study.durations import in_words

if TYPE_CHECKING:
    from ..storage.store import Store
    from ..study.config import Config
    from .study_rows import StudyRows

WHO = "budget"  # gives the command


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
        store.command(lambda c: hold(c, rows.name, STOP, WHO, why, data))
    return True


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
