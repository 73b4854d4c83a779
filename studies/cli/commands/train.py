"""``rekindle train``: train or resume one task, or one trial of Orion's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from rich.console import Console

from ....spaces import Space, flatten, unflatten
from ....tasks import load
from ....tasks.checkpoint.retention import RETURN, keep_of
from ....tasks.identity import TaskIdentity
from ....tasks.runtime.interrupts import Interrupts
from ....tasks.runtime.observers import EpochEvent, NoImprovement
from ....tasks.runtime.progress import at_work
from ....tasks.runtime.watcher import TRAINING
from ....tasks.signals.demonstrations import check_name
from ....tasks.task import Task
from ...curves.beside import copied
from ...curves.sinks import located
from ...engine.views import Env, Values, View
from ...orion.trial import Results, say, whole
from ...orion.trial import train as train_trial
from ...storage.branches import Start
from ...storage.sql.retry import RetryPolicy
from ...storage.store import Store
from ...study.code import check_resumed
from ...study.config import check_end, check_epochs, choose, default_epochs, parse_epochs
from ...study.number_text import counted
from ...study.objectives import ALWAYS
from ...workers.grace import graceful
from ...workers.hangs import watched
from ...workers.training import TaskStorage
from ..output import tables
from ..output.terminal import epoch_line, new_console, note, print_json
from . import options, warm_start
from .storage import open_store, repeated

OF_EPISODES = ("info.", "recent_")  # prefixes of metrics that a task reports after an episode has ended


class TrainView(View):
    """A trained task."""

    merged = frozenset({"result"})

    uid: Annotated[str, "uid"]
    task: Annotated[str, "algorithm"]
    env: Env
    seed: Annotated[int, "seed"]
    epochs: Annotated[int, "epochs trained"]
    result: Annotated[Mapping[str, float | None], "last result by the name of the task's objective: return"]
    digest: Annotated[str, "digest of the state"]
    resumed: Annotated[bool, "whether it went on from a checkpoint"]
    inexact: Annotated[Sequence[str], "reasons why it is not bit-exact"]
    advice: Annotated[Sequence[str], "advice on it"]
    hyperparameters: Values
    metrics: Annotated[Mapping[str, float], "metrics of the last epoch by name"]


def train(arguments: argparse.Namespace) -> int:
    """Train or resume one task."""
    until = _stopping_rule(arguments.no_better)
    if until is not None and arguments.env and until.metric == RETURN and not _measures_returns(arguments.snapshots):
        raise ValueError(
            f"--no-better {arguments.no_better} needs the return of each epoch, but --snapshots "
            f"{arguments.snapshots or 'latest'} measures it only at the end; add --snapshots best, or use "
            "episode_return"
        )
    if arguments.record is not None:
        check_name(arguments.record)
    logs = [["--to", located(sink)] for sink in arguments.log]
    algorithm = load(arguments.task)
    values = options.space(arguments, algorithm).parse(*options.assignments(arguments))
    make, values, cold = _prepare(arguments, algorithm, values)
    text = options.epochs_of(arguments, algorithm, values)
    low, epochs, _ = check_epochs([default_epochs(algorithm, [cold.env])]) if text is None else parse_epochs(text)
    if low != epochs:
        raise ValueError(f"train takes the total epochs, such as --epochs {epochs}, but got {low}:{epochs}")
    check_end(cold.env.id, algorithm.learner.most_epochs(cold.env), epochs)
    if until is not None and arguments.demonstrations is None:  # only the store can provide demonstrations
        _check_metric(until.metric, lambda: make().init(**values))
    options.save_config(arguments, cold.env.to_json(), flatten(cold.hyperparameters))
    errors = new_console(stderr=True)
    with open_store(arguments) as store:
        values["start"] = warm_start.start_one(store, make(), cold, arguments, partial(note, errors))
        task = make(storage=TaskStorage(store, arguments.use_previous, device=arguments.device)).init(**values)
        recorder = None if arguments.record is None else task.recorder()
        try:
            if not arguments.code:
                check_resumed(task, "--code")
            with (
                copied(arguments.url, task.uid, logs, partial(note, errors)),
                watched(arguments.url, arguments.stuck, TRAINING),
                graceful(store, arguments.grace, Interrupts.pending_anywhere),
                at_work(),
            ):
                result = fit_task(task, epochs, errors, until)
        finally:
            task.close()
            if recorder is not None and recorder.steps:
                recorded = recorder.demonstrations()
                note(errors, f"wrote {recorded.steps} steps to {recorded.save(arguments.record)}")
    if arguments.json:
        return print_json(result)
    out = new_console()
    head = {"uid": result.uid, "epochs": result.epochs, **result.result, "digest": result.digest}
    out.print(tables.pairs_table(str(task), {**head, **result.hyperparameters}))
    out.print(f"[cyan]rekindle show {task.uid[:8]} --storage {repeated(store)}[/]", soft_wrap=True)
    return 0


def _prepare(
    arguments: argparse.Namespace, algorithm: type[Task], values: dict[str, Any]
) -> tuple[Callable[..., Task], dict[str, Any], TaskIdentity]:
    """Return the task's constructor, hyperparameters, and identity before a start.

    Raises:
        ValueError: an option is invalid; this is reported before a database is created.
    """
    warm_start.check_options(arguments)
    values = warm_start.with_demonstrated_steps(values, arguments)
    env, seed = options.trained_env(arguments, arguments.env), arguments.seed
    how = {
        name: getattr(arguments, name)
        for name in ("device", "env_processes", "eval_episodes", "eval_envs", "snapshots")
    }
    make = partial(algorithm, env, seed=seed, **how)
    return make, values, TaskIdentity.of(algorithm, env, seed, values)


def train_for_orion(arguments: argparse.Namespace, parent: Start | None, interrupted: int) -> Results:
    """Train one trial of Orion's, starting from its parent's state if any.

    Args:
        arguments: arguments of the command.
        parent: final state of the parent.
        interrupted: exit status that makes Orion retry a trial.
    """
    algorithm = load(arguments.task)
    space = options.space(arguments, algorithm)
    values = _applying(space, space.parse(*options.assignments(arguments)))
    make, values, cold = _prepare(arguments, algorithm, values)
    text = options.epochs_of(arguments, algorithm, values)
    epochs = default_epochs(algorithm, [cold.env]) if text is None else _orion_epochs(text)
    check_end(cold.env.id, algorithm.learner.most_epochs(cold.env), epochs)

    def at_epoch_end(event: EpochEvent) -> None:
        say(epoch_line(event, epochs, "episode_return", algorithm.learner.objective))

    retry = RetryPolicy(arguments.patience, full=True, say=say)
    with (
        Store(arguments.url, retry=retry) as store,
        watched(arguments.url, arguments.stuck),
        graceful(store, arguments.grace, Interrupts.pending_anywhere, interrupted),
    ):
        return train_trial(
            lambda storage: make(storage=storage),
            values,
            epochs,
            store,
            parent=parent,
            warm=warm_start.start_one(store, make(), cold, arguments, say),
            use_previous=arguments.use_previous,
            code=arguments.code,
            at_epoch_end=at_epoch_end,
        )


def _orion_epochs(text: str) -> int:
    with suppress(ValueError, OverflowError):
        return check_epochs([whole(float(text))])[0]
    low, high, _ = parse_epochs(text)
    if low != high:
        raise ValueError(
            f"under Orion, a trial has one number of epochs, such as --epochs~'fidelity({low}, {high})' "
            f"gives it, but got --epochs {text}"
        )
    return high


def _applying(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop values that do not apply, since Orion has no conditions."""
    flat = flatten(values)
    applying = flatten(space.decide(lambda path, dimension: flat.get(path, dimension.default)))
    return unflatten({path: value for path, value in flat.items() if path in applying})


def _stopping_rule(text: str | None) -> NoImprovement | None:
    """Return the rule of --no-better."""
    if text is None:
        return None
    metric, _, number = text.rpartition(":")
    if not metric or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"--no-better must be METRIC:N with N epochs, such as episode_return:20, but got {text!r}")
    return NoImprovement(metric, int(number))


def _measures_returns(snapshots: str | None) -> bool:
    """Return whether a task is evaluated while it trains."""
    keep = keep_of(snapshots or "latest")
    return keep is not None and keep.every > 0


def _hint_at_info(task: Task) -> str:
    """Return a sentence about entries of info that are not metrics."""
    envs = vars(task.ref.learner).get("envs") if task.ref else None
    if envs is None:
        return ""
    names = {name for _, metrics in task.history for name in metrics}
    if missing := [name for name in task.env.info if f"info.{name}" not in names and "episodes" in names]:
        unreported = [*envs.unreported, *(name for name in task.env.info if name not in missing)]
        return f"no episode had info {', '.join(missing)}; the environment gives {', '.join(unreported) or 'none'}"
    if envs.unreported and not task.resumed:
        return f"the environment also gives info {', '.join(envs.unreported)}; --info NAME makes it a metric"
    return ""


def _check_metric(name: str, make: Callable[[], Task]) -> None:
    """Raise ValueError if no epoch can report the metric of --no-better.

    A task reveals its metrics only in its first epoch, so one epoch is trained unless all tasks have the metric.
    """
    task = make()
    always = (*(ALWAYS if task.env else ()), task.objective)
    if name not in always and not name.startswith(OF_EPISODES):
        choose("--no-better's metric", name, [*always, *task.fit(1)])


def fit_task(task: Task, epochs: int, errors: Console, until: NoImprovement | None = None) -> TrainView:
    """Train a task, report progress, and return the result."""
    if task.is_beyond(epochs):
        more = "" if task.epochs > epochs else " and a part of the next"
        raise ValueError(
            f"training only goes forward, but {task} has {task.epochs} epochs{more} and {epochs} were requested; "
            "ask for more, or use another --storage"
        )
    begins = f"resumes after epoch {task.epochs}" if task.resumed else "starts"
    note(errors, f"{task} {begins}; {counted(epochs, 'epoch')} in all")
    if task.stored.inexact:
        note(errors, f"not bit-exact from here on: {'; '.join(task.stored.inexact)}")
    reported: set[str] = {*task.stored.inexact}

    def tell_labels() -> None:
        for text in (*(f"not bit-exact: {reason}" for reason in task.inexact if reason not in reported), *task.advice):
            if text not in reported:
                note(errors, text)
        reported.update((*task.inexact, *task.advice))

    objective, info = task.learner.objective, [f"info.{name}" for name in task.env.info]

    def at_epoch_end(event: EpochEvent) -> None:
        tell_labels()
        note(errors, epoch_line(event, epochs, task.learner.unit, "episode_return", objective, *info))

    task.fit(epochs, at_epoch_end, until)
    score, metrics = task.score_epoch(), task.metrics
    if until is not None and task.epochs < epochs:
        note(errors, f"{until.metric} has not risen for {until.epochs} epochs: stopped after epoch {task.epochs}")
    if hint := _hint_at_info(task):
        note(errors, hint)
    if metrics.get("updates") == 0:
        note(
            errors,
            f"nothing was learned: no gradient step was due in {task.epochs} epochs; train for more epochs, or lower "
            "learning_starts, min_rollouts or min_steps",
        )
    return TrainView(
        uid=task.uid,
        task=task.name,
        env=task.env.to_json(),
        seed=task.seed,
        epochs=task.epochs,
        result={objective: score},
        digest=task.digest,
        resumed=task.resumed,
        inexact=task.inexact,
        advice=task.advice,
        hyperparameters=dict(task.identity.values),
        metrics=metrics,
    )
