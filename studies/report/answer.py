"""Answer of a study: an agent's file, and a paragraph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.unlearned import EARLY, NOTHING, UNJUDGED
from ..engine.probes import lines_of
from ..study.config import Config
from ..study.number_text import counted, in_digits_alone
from ..study.objectives import measured, worth
from .data import report_view

if TYPE_CHECKING:
    from ..engine.views import ConfirmationView
    from ..storage.store import Store

ANSWERED = (NOTHING, EARLY, UNJUDGED)  # checks whose findings an answer tells


def answer(store: Store, name: str, path: Path) -> str:
    """Write the policy of a study's best agent, and return its results.

    If the study is confirmed, that is the best of the winner's trainings on fresh seeds, all measured on the same
    episodes; otherwise the agent of the best trial.

    Args:
        store: storage of the study.
        name: name of the study.
        path: file to write, see `Task.export_policy`.

    Raises:
        ValueError: no trial has a result, or the file cannot be written.
        TaskBusy: another process trains the task.
    """
    report = report_view(store, name)
    if (best := report.study.best) is None:
        raise ValueError(f"an agent is the best trial of a study, but no trial of {name} has a result yet")
    uid, origin = _best_training(store, report.confirmation) or (best.uid, f"in trial {best.number}")
    task = store.task(uid)
    try:
        file = task.export_policy(path)
    finally:
        task.release()
    lines = lines_of(report.study.probe, objectives=report.study.objectives)
    compared = [f"{line[0].upper()}{line[1:]}." for line in lines]
    summary = f"{task.name} learned {task.env_steps:,} steps {origin}; its agent is in {file}."
    vain = [f"Nothing was learned: {row.text}; {row.cure}." for row in report.findings if row.check == NOTHING]
    vain += [
        f"{row.text[0].upper()}{row.text[1:]}; {row.cure}." for row in report.findings if row.check in (EARLY, UNJUDGED)
    ]
    return " ".join([*vain, *report.verdict, summary, *compared])


def _best_training(store: Store, confirmation: ConfirmationView | None) -> tuple[str, str] | None:
    """Return the uid of the winner's best training, and words about it.

    There is none before the end, if all have failed, across environments, whose results differ, and if the winner has
    been excluded.
    """
    if confirmation is None or confirmation.best is None or confirmation.across is not None:
        return None
    if confirmation.since is not None and confirmation.since.excluded:
        return None
    name = confirmation.confirmation
    config = Config.from_json(store.study(name).config, name)
    rows = [row for row in store.segments(name) if row.configuration == confirmation.winner and row.state == "done"]
    if not rows:
        return None
    best = max(rows, key=lambda row: worth(config, row))
    uid = next(trial.uid for trial in store.trials(name) if trial.number == best.number)
    result = in_digits_alone(measured(config, best))
    of = f"the best of {counted(len(rows), 'training')} of {confirmation.best.name} on fresh seeds"
    return uid, f"in {of} ({confirmation.objective} {result})"
