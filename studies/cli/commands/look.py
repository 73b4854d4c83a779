"""``rekindle status``, ``trials``, ``show`` and ``tasks``: contents of a storage.

They read rows: importing this module imports neither torch nor optuna.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ....tasks.checkpoint.storage import POLICY_PREFIX, policy_uid
from ...engine.confirmation_views import confirmation_view
from ...engine.probes import lines_of
from ...engine.status_views import status_view
from ...engine.study_views import study_view
from ...engine.task_views import task_view, trainings_view
from ...engine.views import ConfirmedStudyView, TaskView
from ...failures import one_line
from ...storage.commands import CANCELLED
from ...storage.locks.owner import Owner
from ...storage.store import Store
from ...study.config import title
from ..output import tables
from ..output.prometheus import prometheus
from ..output.terminal import new_console, note, print_json
from ..run_files.writing import to_toml
from .storage import existing_store, whole_uid

LEARNING_CURVE = ("epoch", "env_steps", "episode_return", "return", "loss", "approx_kl", "entropy")
FURTHER = ("info.", "episode_return.", "elo.")  # what the user named, and what each behaviour of an environment has


def status(arguments: argparse.Namespace) -> int:
    """Print all studies of a storage, or one."""
    with existing_store(arguments) as store:
        result = status_view(store, arguments.study)
    if arguments.json:
        return print_json(result)
    if arguments.prometheus:
        print(prometheus(result), end="")
        return 0
    out = new_console()
    if result.studies:
        out.print(tables.status_table(result))
    else:
        note(out, f"{result.storage}: no study yet")
    for study in result.studies:
        if (command := study.held) is not None:
            why = f": {command.why}" if command.why else ""
            note(out, f"study {study.study} had the {command.kind} by {command.who}{why}")
        tables.print_labels(out, study)
        for line in lines_of(study.probe, whole=True):
            note(out, f"{study.study}: {line}")
    for worker in result.workers:
        numbers: dict[str, list[str]] = {}
        for trial in worker.trials:
            numbers.setdefault(trial.study, []).append(str(trial.number))
        of = "; ".join(f"{study} {', '.join(trials)}" for study, trials in numbers.items()) or "a task of no study"
        times = f"for {worker.seconds:.0f} s; its lease has {worker.lease_left:.0f} s left"
        note(out, f"{worker.pid} on {worker.host} trains {of} {times}")
    note(out, f"{result.tasks} tasks" + ("" if result.workers else "; no process trains any now"))
    return 0


def tasks(arguments: argparse.Namespace) -> int:
    """Print the trainings that belong to no study."""
    with existing_store(arguments) as store:
        result = trainings_view(store)
    if arguments.json:
        return print_json(result)
    if not result.tasks:
        note(new_console(), f"{result.storage}: no training outside a study yet; `rekindle train` makes one")
        return 0
    columns = ("uid", "task", "env", "seed", "epochs", "return")
    rows = [row.to_json() | {"uid": row.uid[:8], "env": row.env["id"] if row.env else ""} for row in result.tasks]
    new_console().print(tables.rows_table(f"{result.storage}: {len(rows)} trainings in no study", rows, columns))
    return 0


def trials(arguments: argparse.Namespace) -> int:
    """Print the trials of a study."""
    with existing_store(arguments) as store:
        study = study_view(store, arguments.study)
        confirmation = confirmation_view(store, arguments.study, study.trials)
    if arguments.json:
        return print_json(ConfirmedStudyView(**vars(study), confirmation=confirmation))
    out = new_console()
    out.print(tables.trials_table(study))
    if study.exactness is not None:
        note(out, f"resumed after a kill: {study.exactness}")
    for line in lines_of(study.probe, objectives=study.objectives):
        note(out, line)
    if confirmation is not None:
        tables.print_confirmation(out, confirmation, study.probe)
    for trial in study.trials:
        if trial.error:
            subject = f"{'a training of ' * (trial.state == 'complete')}trial {trial.number}"
            note(out, f"{subject} {_end(trial.state)} {one_line(trial.error)}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print everything that is stored about one task."""
    with existing_store(arguments) as store:
        task = task_view(store, whole_uid(store, arguments.uid))
        content = _run_file(store, task) if arguments.config else {}
    if arguments.json:
        return print_json(task.replace(config=content or None))
    if arguments.config:
        print(to_toml(content), end="")
        return 0
    out = new_console()
    measured = ("return",) if task.env else ()  # other objectives are among the metrics
    form = task.to_json()
    head = {name: form[name] for name in ("uid", "seed", "epochs", *measured, "digest")}
    head["trained by"] = _process(task.owner) if task.owner else "nobody at the moment"
    head |= {f"in {trial.study}": f"trial {trial.number}, {trial.state}" for trial in task.trials}
    out.print(tables.pairs_table(title(str(task.task), task.env), head))
    if len(task.lineage) > 1:
        out.print(tables.rows_table("lineage", form["lineage"], ("uid", "until")))
    out.print(tables.pairs_table("hyperparameters", task.hyperparameters))
    reported = dict.fromkeys(name for row in task.metrics for name in row)
    further = [name for name in reported if name.startswith(FURTHER)]
    names = [name for name in ([*LEARNING_CURVE, *further] if task.env else reported) if name in reported]
    out.print(tables.rows_table("metrics", task.metrics, names))
    out.print(tables.rows_table("checkpoints", form["checkpoints"], ("epochs", "bytes", "kept", "digest")))
    events = [_event_row(event) for event in task.events]
    out.print(tables.rows_table("events", events, ("time", "kind", "epochs", "process", "more")))
    if task.exactness is not None:
        note(out, f"resumed after a kill: {task.exactness}")
    for text in (*(f"not bit-exact: {text}" for text in task.inexact), *task.advice):
        note(out, text)
    for trial in task.trials:
        if trial.error:
            note(out, f"trial {trial.number} of study {trial.study} {_end(trial.state)}\n{trial.error.strip()}")
    return 0


def _end(state: str) -> str:
    """Return how a trial ended without a result, before the reason."""
    return "was ended by the command" if state == CANCELLED else "failed:"


def _run_file(store: Store, task: TaskView) -> dict[str, Any]:
    """Return the run file of a stored task.

    Raises:
        ValueError: the task starts from another task's state, which a run file cannot hold.
    """
    [row] = store.tasks([task.uid])
    names = ("task", "seed", "epochs", *(("env",) if task.env else ()), "hyperparameters")
    content = {name: getattr(task, name) for name in names}
    start = (row.identity or {}).get("start")
    if start is None:
        return content
    if len(task.lineage) > 1 and not task.lineage[-2].uid.startswith(POLICY_PREFIX):
        raise ValueError(
            f"a run file describes a training from its start, but {task.uid} is a branch of "
            f"{task.lineage[-2].uid}; rekindle replay {task.uid} trains its whole lineage"
        )
    return {"warm_start": policy_uid(start)} | content


def _event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"time": f"{datetime.fromtimestamp(event['time']).astimezone():%Y-%m-%d %H:%M:%S}"}
    row |= {name: event[name] for name in ("kind", "epochs") if name in event}
    more = {name: event[name] for name in event if name not in ("time", "kind", "epochs", "owner", "token", "trained")}
    if "owner" in event:
        row["process"] = _process(event["owner"])
    if "previous" in more:
        more["previous"] = _process(more["previous"])
    return row | {"more": ", ".join(f"{name} {str(value)[:24]}" for name, value in more.items())}


def _process(owner: str) -> str:
    parsed = Owner.parse(owner)
    return f"{parsed.pid} on {parsed.host}"
