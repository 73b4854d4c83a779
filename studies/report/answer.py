"""Answer of a study: an agent's file, and a paragraph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.unlearned import EARLY, NOTHING
from ..engine.probes import lines_of
from .data import report_view

if TYPE_CHECKING:
    from ..storage.store import Store


def answer(store: Store, name: str, path: Path) -> str:
    """Write the policy of a study's best trial, and return its results.

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
    task = store.task(best.uid)
    try:
        file = task.export_policy(path)
    finally:
        task.release()
    compared = [f"{line[0].upper()}{line[1:]}." for line in lines_of(report.study.probe)]
    what = f"{task.name} learned {task.env_steps:,} steps in trial {best.number}; its agent is in {file}."
    vain = [f"Nothing was learned: {row.text}; {row.cure}." for row in report.findings if row.check == NOTHING]
    vain += [f"{row.text[0].upper()}{row.text[1:]}; {row.cure}." for row in report.findings if row.check == EARLY]
    return " ".join([*vain, *report.verdict, what, *compared])
