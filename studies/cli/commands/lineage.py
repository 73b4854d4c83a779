"""``rekindle replay``, ``fork`` and ``schedule``: commands on lineages."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from ....tasks.identity import uid_of
from ....tasks.registry import task_of
from ...analysis.schedules import schedule_view
from ...engine import branching
from ...engine.lineage import lineage
from ...report.verdicts import interval_texts
from ...study.number_text import in_digits
from ...workers.training import TaskStorage
from ..output import tables
from ..output.terminal import new_console, note, print_json
from . import options
from .storage import existing_store, whole_uid
from .train import TrainView, fit_task


class ForkView(TrainView):
    """A trained branch of a task."""

    merged = frozenset({"result", "before"})

    from_: Annotated[str, "uid of the task that it branches from"]
    at: Annotated[int, "epoch at which it does"]
    changed: Annotated[Mapping[str, Sequence[Any]], "old and new value by dotted name"]
    before: Annotated[Mapping[str, float], "result of that task after as many epochs: return_before"]


def replay(arguments: argparse.Namespace) -> int:
    """Train a lineage again; return 0 if the last digest is equal."""
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        uid = whole_uid(store, arguments.uid)
        result = branching.replay(
            store,
            uid,
            lambda row: note(errors, f"task {row.uid}, epochs {row.from_} to {row.to}: {row.digest[:12]}"),
            arguments.device,
        )
    status = 0 if result.equal else options.FAILED
    if arguments.json:
        return print_json(result, status)
    equal = "equal" if result.equal else "not equal"
    reason = f": {result.reason}" if result.reason else ""
    note(
        new_console(),
        f"{equal}: task {uid} after {result.epochs} epochs has the digest {result.digest}, "
        f"and trained again {result.replayed or 'it did not get that far'}{reason}",
    )
    return status


def fork(arguments: argparse.Namespace) -> int:
    """Train a branch with other hyperparameters to the task's epochs."""
    with existing_store(arguments) as store:
        uid = whole_uid(store, arguments.uid)
        [row] = store.tasks([uid])
        source, start = branching.state_at(store, lineage(store, uid), arguments.at, row.epochs)
        identity, changed = branching.fork_identity(source.identity, options.expand_files(arguments.set), start.digest)
        new = uid_of(identity)
        store.branch(new, identity, start)
        storage = TaskStorage(store, arguments.use_previous, device=arguments.device)
        task = task_of(identity, storage=storage, device=arguments.device)
        objective = task.learner.objective
        before = branching.score_at(store, uid, row.epochs, arguments.device)
        try:
            result = fit_task(task, row.epochs, new_console(stderr=True))
        finally:
            task.release()
    if arguments.json:
        of = {"from_": uid, "at": arguments.at, "changed": changed, "before": {f"{objective}_before": before}}
        return print_json(ForkView(**vars(result), **of))
    table = {
        "uid": new,
        "from": f"{uid} at epoch {arguments.at}",
        **{name: f"{tables.number(old)} -> {tables.number(value)}" for name, (old, value) in changed.items()},
        "epochs": result.epochs,
        **result.result,
        f"{objective} without the change": before,
        "digest": result.digest,
    }
    new_console().print(tables.pairs_table(str(task), table))
    return 0


def schedule(arguments: argparse.Namespace) -> int:
    """Train a lineage's hyperparameters as a schedule on fresh seeds."""
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        uid = whole_uid(store, arguments.uid)
        say = partial(note, errors)
        result = schedule_view(store, uid, arguments.seeds, say, arguments.device, arguments.objective)
    if arguments.json:
        return print_json(result)
    out = new_console()
    for stage in result.stages:
        values = ", ".join(f"{name}={tables.number(value)}" for name, value in stage.hyperparameters.items())
        note(out, f"epochs {stage.from_} to {stage.to}: {values}")
    for mean, text in (
        (result.schedule, f"{result.objective} by this schedule"),
        (result.last, "its last hyperparameters from the first epoch on"),
        (result.gain, "gain by the schedule"),
    ):
        [(value, low, high)] = interval_texts([mean])
        note(out, f"{text}, on {arguments.seeds} fresh seeds: {value} (95% interval {low} to {high})")
    recorded, luck = in_digits([result.recorded, result.luck])
    note(out, f"the recorded result is {recorded}; luck, what fresh seeds do not repeat: {luck}")
    return 0
