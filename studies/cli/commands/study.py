"""What the commands of the command line do; each takes the parsed arguments and returns the exit status."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ....spaces import flatten, unflatten
from ...engine.configuring import defaults_except, make_config, make_population, open_space
from ...engine.engine import start_study
from ...errors import StoreError
from ...schedulers.seeds import seed_options
from ...storage.locks.owner import Owner, cores
from ...storage.store import Store
from ...study.config import Config, parse_epochs
from ...study.objectives import objective_options
from ..output import json_views as report
from ..output import tables
from ..output.terminal import FAILED, existing_store, new_console, note, open_store, print_json, whole_uid

if TYPE_CHECKING:
    from ....tasks.cohort import EpochEvent
    from ....tasks.runtime.observers import NoImprovement
    from ....tasks.task import Task
    from ...workers.supervisor import Hand

LEARNING_CURVE = ("epoch", "env_steps", "episode_return", "return", "loss", "approx_kl", "entropy")


def tune(arguments: argparse.Namespace) -> int:
    """Runs a study to its end with workers of its own, and shows the best trials."""
    from ....tasks import load
    from ...engine.watch import look
    from ...workers.supervisor import Tuning
    from ..output.progress import Progress
    from .warm_start import check_start, is_given, keeping, warmed

    _check_engine(arguments)
    check_start(arguments)
    algorithm = load(arguments.task)
    config = keeping(_config(arguments, algorithm), arguments.snapshots)
    name = arguments.study or f"{arguments.task}-{config.env['id']}"
    errors = new_console(stderr=True)
    # Environments and networks are made once, so that what cannot work is said before a study is made of it.
    config.probe(algorithm)
    with open_store(arguments) as store:
        if is_given(arguments):
            config = warmed(store, name, config, algorithm, arguments, partial(note, errors))
        config = start_study(store, name, config)
        if look(store, name).complete:
            note(errors, f"study {name} is complete; more --trials than {config.trials[-1]} go on with it")
        else:
            extra = ["--use-previous"] if arguments.use_previous else []
            extra += ["--patience", str(arguments.patience), "--lease", str(arguments.lease)]
            extra += ["--env-processes", str(arguments.env_processes)] if arguments.env_processes else []
            with Progress(errors, name, store.url) as progress, _crew(arguments, name, extra) as (workers, hire):
                Tuning(store, name, workers, hire, progress).run()
        _mirror(store, arguments.storage, name, errors)
        result = report.study_json(store, name)
    return print_json(result) if arguments.json else _print_study(result, config.open, store.url)


def _check_engine(arguments: argparse.Namespace) -> None:
    """Says what is wrong with --engine before a study is made."""
    if arguments.engine == "ray":
        try:
            from ...workers.ray_workers import reachable
        except ImportError as error:
            raise ValueError(f"--engine ray needs Ray: pip install 'rekindle[ray]' ({error})") from error
        reachable(arguments.storage, arguments.address)
        return
    given = {"--address": arguments.address, "--cpus-per-worker": arguments.cpus_per_worker}
    given["--gpus-per-worker"] = arguments.gpus_per_worker
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{' and '.join(wrong)} say what Ray gives a worker; add --engine ray")


@contextmanager
def _crew(arguments: argparse.Namespace, study: str, extra: Sequence[str]) -> Iterator[tuple[int, Callable[[], Hand]]]:
    """How many workers there are to be, and what starts one."""
    from ...workers.supervisor import WorkerProcess

    url, workers = arguments.storage, arguments.workers
    if arguments.engine == "ray":
        from ...workers.ray_workers import cluster

        cpus, gpus = arguments.cpus_per_worker or 1.0, arguments.gpus_per_worker or 0.0
        options = {"workers": workers, "address": arguments.address, "cpus": cpus, "gpus": gpus}
        with cluster(url, study, extra=extra, **options) as crew:
            yield crew
        return
    workers = workers or cores()
    yield workers, lambda: WorkerProcess(url, study, workers, extra)


def _config(arguments: argparse.Namespace, algorithm: type[Task]) -> Config:
    """The configuration of the study that is asked for."""
    env, fixed, epochs = _env(arguments.env), _values(algorithm, arguments), parse_epochs(arguments.epochs)
    priors = _priors(arguments.prior)
    if arguments.search:
        space = open_space(algorithm, fixed, priors)
        fixed = dict(unflatten(flatten(defaults_except(space, [*arguments.search, *priors])) | flatten(fixed)))
    options = seed_options(arguments.seeds, arguments.aggregate, arguments.racing)
    options |= objective_options(arguments.objective)
    options |= {} if arguments.grid_points is None else {"grid_points": arguments.grid_points}
    if arguments.scheduler == "pbt":
        names = ("interval", "population", "seed", "exploit", "explore", "perturb", "sampler")
        given = {name: getattr(arguments, name) for name in names} | options
        return make_population(algorithm, env, epochs=epochs[1], fixed=fixed, priors=priors, **given)
    return make_config(
        algorithm,
        env,
        trials=arguments.trials,
        epochs=epochs,
        seed=arguments.seed,
        fixed=fixed,
        priors=priors,
        sampler=arguments.sampler or "tpe",
        scheduler=arguments.scheduler,
        generation=arguments.generation,
        cohort=arguments.cohort,
        options=options,
    )


def _priors(assignments: Sequence[str]) -> dict[str, str]:
    """The texts of --prior by dotted name."""
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name or name in found:
            law = "is given twice" if name in found else "must be written NAME=PRIOR"
            raise ValueError(f"--prior {assignment!r} {law}, such as --prior optimizer.lr='loguniform(1e-5, 1e-3)'")
        found[name] = text
    return found


def _mirror(store: Store, url: str, name: str, errors: Console) -> None:
    """Shows the study to Optuna; that it cannot be shown is no reason to fail."""
    from sqlalchemy.exc import SQLAlchemyError

    from ...engine.optuna_mirror import mirror

    try:
        mirror(store, url, name)
    except (StoreError, SQLAlchemyError, RuntimeError) as error:
        note(errors, f"Optuna's tables were left as they are: {' '.join(str(error).split())}")


def _print_study(study: Mapping[str, Any], searched: Sequence[str], url: str) -> int:
    out = new_console()
    counts = ", ".join(f"{count} {state}" for state, count in study["counts"].items() if count)
    if study["best"] is None:
        note(out, f"no trial has a result: {counts}; `rekindle trials {study['study']}` says why")
        return FAILED
    out.print(tables.best_table(study, searched))
    spared = f"; racing spared {study['spared']} of {study['trials_total'] * study['seeds']} trainings"
    note(out, f"{study['trials_total']} trials: {counts}{spared if study['spared'] else ''}\n")
    storage = shlex.quote(url)
    shown = "the first of these trials" if len(study["objectives"]) > 1 else "the best trial"
    for command, what in (
        (f"rekindle show {study['best']['uid'][:8]} --storage {storage}", f"{shown}, from its first start on"),
        (f"rekindle trials {shlex.quote(study['study'])} --storage {storage}", "all trials, rung by rung"),
        (f"optuna-dashboard {storage}", "the same study in Optuna's dashboard"),
    ):
        out.print(f"[bright_black]# {what}[/]\n[cyan]{command}[/]", soft_wrap=True)
    return 0


def worker(arguments: argparse.Namespace) -> int:
    """Works on a study until it is complete or until it is asked to stop."""
    import optuna

    from ...workers.worker import run_worker

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with existing_store(arguments) as store:
        store.study(arguments.study)
        if not arguments.quiet:
            note(
                new_console(stderr=True),
                f"works on study {arguments.study} in {store.url} until it is complete; Ctrl-C saves and stops",
            )
        return run_worker(
            store,
            arguments.study,
            workers=arguments.workers,
            use_previous=arguments.use_previous,
            with_parent=arguments.with_parent,
            env_processes=arguments.env_processes,
            say=(lambda text: None) if arguments.quiet else partial(note, new_console(stderr=True)),
        )


def train(arguments: argparse.Namespace) -> int:
    """Trains one task, from its last checkpoint if there is one."""
    from ....tasks import load
    from ...workers.training import TaskStorage
    from .warm_start import check_start, is_given, warm_start

    check_start(arguments)
    algorithm = load(arguments.task)
    low, epochs, _ = parse_epochs(arguments.epochs)
    if low != epochs:
        raise ValueError(f"train takes the epochs in all, such as --epochs {epochs}, but got {arguments.epochs}")
    until = _until(arguments.no_better)
    env, values = _env(arguments.env), _values(algorithm, arguments)
    what: dict[str, Any] = {"seed": arguments.seed, "snapshots": arguments.snapshots}
    algorithm(env, **what).init(**values)  # what is wrong with them is said before a database is made
    errors = new_console(stderr=True)
    with open_store(arguments) as store:
        storage = TaskStorage(store, arguments.use_previous)
        if is_given(arguments):
            values["start"] = warm_start(store, algorithm(env, **what), values, arguments, partial(note, errors))
        task = algorithm(env, storage=storage, env_processes=arguments.env_processes, **what).init(**values)
        try:
            result = fit_task(task, epochs, errors, until)
        finally:
            task.release()
    if arguments.json:
        return print_json(result)
    out = new_console()
    shown = {name: result[name] for name in ("uid", "epochs", "return", "digest")}
    out.print(tables.pairs_table(str(task), {**shown, **result["hyperparameters"]}))
    out.print(f"[cyan]rekindle show {task.uid[:8]} --storage {shlex.quote(store.url)}[/]", soft_wrap=True)
    return 0


def _until(text: str | None) -> NoImprovement | None:
    """When --no-better ends a training."""
    from ....tasks.runtime.observers import NoImprovement

    if text is None:
        return None
    metric, _, number = text.rpartition(":")
    if not metric or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"--no-better must be METRIC:N with N epochs, such as episode_return:20, but got {text!r}")
    return NoImprovement(metric, int(number))


def fit_task(task: Task, epochs: int, errors: Console, until: NoImprovement | None = None) -> dict[str, Any]:
    if task.epochs > epochs:
        raise ValueError(
            f"training only goes forward, but {task} has done {task.epochs} epochs and {epochs} were asked for; "
            "ask for more, or use another --storage"
        )
    begins = f"carries on after epoch {task.epochs}" if task.resumed else "starts"
    note(errors, f"{task} {begins}; {epochs} epochs in all")

    def at_epoch_end(event: EpochEvent) -> None:
        if event.epoch == epochs and report.RETURN not in event.metrics:
            event.metrics[report.RETURN] = event.task.evaluate()
        shown = (name for name in ("env_steps", "episode_return", report.RETURN) if name in event.metrics)
        note(
            errors, f"epoch {event.epoch}/{epochs}  " + "  ".join(f"{name} {event.metrics[name]:.5g}" for name in shown)
        )

    metrics = task.fit(epochs, at_epoch_end, until)
    if until is not None and task.epochs < epochs:
        note(errors, f"{until.metric} has not risen for {until.epochs} epochs: ends after epoch {task.epochs}")
    if metrics.get("updates") == 0:
        note(
            errors,
            f"nothing was learned: no gradient step came due in {task.epochs} epochs; train for more, or wait "
            "for less (min_rollouts, min_steps)",
        )
    return {
        "format": report.FORMAT,
        "uid": task.uid,
        "task": task.name,
        "env": task.env.to_json(),
        "seed": task.seed,
        "epochs": task.epochs,
        "return": metrics[report.RETURN] if report.RETURN in metrics else task.evaluate(),
        "digest": task.digest,
        "resumed": task.resumed,
        "hyperparameters": task.identity["hyperparameters"],
        "metrics": metrics,
    }


def status(arguments: argparse.Namespace) -> int:
    """All studies of a storage."""
    with existing_store(arguments) as store:
        result = report.status_json(store)
    if arguments.json:
        return print_json(result)
    out = new_console()
    if result["studies"]:
        out.print(tables.status_table(result))
    else:
        note(out, f"{result['storage']}: no study yet")
    working = ", ".join(f"{worker['pid']} on {worker['host']}" for worker in result["workers"])
    note(out, f"{result['tasks']} tasks; processes that train them now: {working or 'none'}")
    return 0


def trials(arguments: argparse.Namespace) -> int:
    """The trials of a study."""
    with existing_store(arguments) as store:
        study = report.study_json(store, arguments.study)
    if arguments.json:
        return print_json(study)
    out = new_console()
    out.print(tables.trials_table(study))
    for trial in study["trials"]:
        if trial["error"]:
            note(out, f"trial {trial['number']} failed: {trial['error'].strip().splitlines()[-1]}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Everything that is stored of one task."""
    with existing_store(arguments) as store:
        task = report.task_json(store, whole_uid(store, arguments.uid))
    if arguments.json:
        return print_json(task)
    out = new_console()
    head = {name: task[name] for name in ("uid", "seed", "epochs", "return", "digest")}
    head["trained by"] = _process(task["owner"]) if task["owner"] else "nobody at the moment"
    head |= {f"in {trial['study']}": f"trial {trial['number']}, {trial['state']}" for trial in task["trials"]}
    out.print(tables.pairs_table(f"{task['task']} on {(task['env'] or {}).get('id')}", head))
    if len(task["lineage"]) > 1:
        out.print(tables.rows_table("lineage", task["lineage"], ("uid", "until")))
    out.print(tables.pairs_table("hyperparameters", task["hyperparameters"]))
    names = [name for name in LEARNING_CURVE if any(name in row for row in task["metrics"])]
    out.print(tables.rows_table("metrics", task["metrics"], names))
    out.print(tables.rows_table("checkpoints", task["checkpoints"], ("epochs", "bytes", "kept", "digest")))
    events = [_event(event) for event in task["events"]]
    out.print(tables.rows_table("events", events, ("time", "kind", "epochs", "process", "more")))
    for trial in task["trials"]:
        if trial["error"]:
            note(out, f"trial {trial['number']} of study {trial['study']} failed:\n{trial['error'].strip()}")
    return 0


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as a row for people."""
    row: dict[str, Any] = {"time": f"{datetime.fromtimestamp(event['time']).astimezone():%Y-%m-%d %H:%M:%S}"}
    row |= {name: event[name] for name in ("kind", "epochs") if name in event}
    more = {name: event[name] for name in event if name not in ("time", "kind", "epochs", "owner", "token")}
    if "owner" in event:
        row["process"] = _process(event["owner"])
    if "previous" in more:
        more["previous"] = _process(more["previous"])
    return row | {"more": ", ".join(f"{name} {str(value)[:24]}" for name, value in more.items())}


def _process(owner: str) -> str:
    parsed = Owner.parse(owner)
    return f"{parsed.pid} on {parsed.host}"


def _env(text: str) -> Any:
    """A Gymnasium id, or an EnvSpec's JSON."""
    return json.loads(text) if text.lstrip().startswith("{") else text


def _values(algorithm: type[Task], arguments: argparse.Namespace) -> dict[str, Any]:
    """The nested values of --set, checked, and what --demonstrations decides."""
    from .warm_start import counted

    return counted(algorithm.learner.hyperparameters.parse(*arguments.set), arguments)
