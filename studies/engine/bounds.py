"""Budget of a study, after which a worker stops it.

The work is counted from rows, so that of workers that died counts, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import CommandRefused
from ..storage.commands import STOP, hold

if TYPE_CHECKING:
    from ..storage.store import Store
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
    spent, trials = {"epochs": 0, "steps": 0}, {trial.uid: trial for trial in rows.trials.values()}
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
