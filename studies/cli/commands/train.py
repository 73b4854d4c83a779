"""``rekindle train``: train or resume one task."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from typing import Any

from rich.console import Console

from ....tasks import load
from ....tasks.identity import TaskIdentity
from ....tasks.runtime.observers import EpochEvent, NoImprovement
from ....tasks.task import Task
from ...study.config import parse_epochs
from ...study.objectives import RETURN
from ...workers.training import TaskStorage
from ..output import tables
from ..output.terminal import epoch_line, new_console, note, print_json
from . import options, warm_start
from .storage import open_store


def train(arguments: argparse.Namespace) -> int:
    """Train or resume one task."""
    warm_start.check_options(arguments)
    algorithm = load(arguments.task)
    low, epochs, _ = parse_epochs(arguments.epochs)
    if low != epochs:
        raise ValueError(f"train takes the epochs in all, such as --epochs {epochs}, but got {arguments.epochs}")
    until = _stopping_rule(arguments.no_better)
    env = options.parse_env(arguments.env)
    make = partial(algorithm, env, seed=arguments.seed, snapshots=arguments.snapshots)
    values = algorithm.learner.hyperparameters.parse(*options.expand_files(arguments.set))
    values = warm_start.with_demonstrated_steps(values, arguments)
    cold = TaskIdentity.of(algorithm, env, arguments.seed, values)  # wrong values are reported before a database exists
    errors = new_console(stderr=True)
    with open_store(arguments) as store:
        values["start"] = warm_start.start_one(store, make(), cold, arguments, partial(note, errors))
        storage = TaskStorage(store, arguments.use_previous)
        task = make(storage=storage, env_processes=arguments.env_processes).init(**values)
        try:
            result = fit_task(task, epochs, errors, until)
        finally:
            task.release()
    if arguments.json:
        return print_json(result)
    out = new_console()
    head = {name: result[name] for name in ("uid", "epochs", "return", "digest")}
    out.print(tables.pairs_table(str(task), {**head, **result["hyperparameters"]}))
    out.print(f"[cyan]rekindle show {task.uid[:8]} --storage {shlex.quote(store.url)}[/]", soft_wrap=True)
    return 0


def _stopping_rule(text: str | None) -> NoImprovement | None:
    """Return the rule of --no-better."""
    if text is None:
        return None
    metric, _, number = text.rpartition(":")
    if not metric or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"--no-better must be METRIC:N with N epochs, such as episode_return:20, but got {text!r}")
    return NoImprovement(metric, int(number))


def fit_task(task: Task, epochs: int, errors: Console, until: NoImprovement | None = None) -> dict[str, Any]:
    """Train a task, report progress, and return the result for JSON."""
    if task.epochs > epochs:
        raise ValueError(
            f"training only goes forward, but {task} has done {task.epochs} epochs and {epochs} were asked for; "
            "ask for more, or use another --storage"
        )
    begins = f"resumes after epoch {task.epochs}" if task.resumed else "starts"
    note(errors, f"{task} {begins}; {epochs} epochs in all")

    def at_epoch_end(event: EpochEvent) -> None:
        if event.epoch == epochs and RETURN not in event.metrics:
            event.metrics[RETURN] = event.task.evaluate()
        note(errors, epoch_line(event, epochs, "env_steps", "episode_return", RETURN))

    metrics = task.fit(epochs, at_epoch_end, until)
    if until is not None and task.epochs < epochs:
        note(errors, f"{until.metric} has not risen for {until.epochs} epochs: ends after epoch {task.epochs}")
    if metrics.get("updates") == 0:
        note(
            errors,
            f"nothing was learned: no gradient step was due in {task.epochs} epochs; train for more epochs, or lower "
            "min_rollouts or min_steps",
        )
    return {
        "uid": task.uid,
        "task": task.name,
        "env": task.env.to_json(),
        "seed": task.seed,
        "epochs": task.epochs,
        "return": metrics[RETURN] if RETURN in metrics else task.evaluate(),
        "digest": task.digest,
        "resumed": task.resumed,
        "hyperparameters": dict(task.identity.values),
        "metrics": metrics,
    }
