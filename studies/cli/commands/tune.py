"""``rekindle tune``: run a study to its end with new workers."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..output.terminal import new_console, note, print_json
from . import options
from .storage import open_store

if TYPE_CHECKING:
    from rich.console import Console

    from ....tasks.task import Task
    from ...storage.store import Store
    from ...study.config import Config
    from ...workers.supervisor import WorkerHandle


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = options.add_command(commands, "tune", "search for good hyperparameters; rerun to resume", tune)
    options.add_task(
        parser,
        "low:high[:base], such as 1:27: train every trial for low epochs, the best 1/base of them base times as long, "
        "and so on up to high; base is 3 unless given",
        "1:27",
        "fix a hyperparameter instead of searching it",
    )
    parser.add_argument(
        "--search",
        **options.NAMES,
        help="search this hyperparameter, and leave those that are not named at their defaults; may be repeated "
        "(default: search all that --set does not fix)",
    )
    parser.add_argument(
        "--prior",
        action="append",
        default=[],
        metavar="NAME=PRIOR",
        help="search this hyperparameter over a range of your own, even one that is not searched by default: "
        "uniform(0, 1), loguniform(1e-5, 1e-3), uniform(1, 9, discrete=True), near_one(0.9, 0.999), ordinal(32, 64), "
        "choices('adam', 'sgd'), normal(0, 1), maybe(PRIOR); may be repeated",
    )
    parser.add_argument(
        "--trials",
        **options.COUNT,
        help="number of configurations in all (default: 16; with a grid, all of its points)",
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: TASK-ENV)")
    parser.add_argument(
        "--workers",
        **options.COUNT,
        help="worker processes (default: one per core; with Ray, as many as fit on the cluster)",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="a sampler of Optuna: tpe, random, gp, cmaes, qmc, nsgaii, nsgaiii, bruteforce or grid (default: tpe; "
        "random for a population)",
    )
    parser.add_argument(
        "--grid-points",
        **options.COUNT,
        help="with --sampler grid: points of each range including both ends, evenly spaced or evenly on the range's "
        "log scale; of a list of values, all are used (default: 5)",
    )
    parser.add_argument(
        "--objective",
        **options.NAMES,
        help="return; return_median, return_iqm or return_top_quartile, of the same episodes; model_size, the number "
        "of parameters, minimized; env_steps_per_second, measured on this machine and not reproducible; or a metric "
        "that the task reports with its direction, such as episode_length:minimize; may be repeated, for a Pareto "
        "front (default: return)",
    )
    parser.add_argument(
        "--generation",
        default=8,
        **options.COUNT,
        help="trials suggested at a time; asha keeps this many ready or in training (default: 8)",
    )
    parser.add_argument(
        "--cohort",
        default=4,
        **options.COUNT,
        help="consecutive trials that share their structure, so that they train as one batch (default: 4)",
    )
    parser.add_argument("--seeds", default=1, **options.COUNT, help="seeds per configuration (default: 1)")
    parser.add_argument(
        "--aggregate",
        default="mean",
        metavar="NAME",
        help="aggregate of the seeds' returns: mean, median, iqm or top_quartile (default: mean)",
    )
    parser.add_argument(
        "--racing",
        action="store_true",
        help="race seeds: start each configuration with two of its --seeds, add one at a time, and drop "
        "configurations that a Friedman test rules out",
    )
    _add_schedulers(parser)
    _add_backends(parser)
    options.add_lease(parser)
    options.add_training(parser)


def _add_schedulers(parser: options.Parser) -> None:
    parser.add_argument(
        "--scheduler",
        default="halving",
        metavar="NAME",
        help="halving; hyperband, whose brackets start on different rungs; asha, which promotes a trial as soon as it "
        "is among the best that have finished its rung, so that no worker waits, but promotions depend on timing (each "
        "trial's own result does not); none, which trains every trial to the end; or pbt, which trains a population "
        "to --epochs whose members copy and change each other's hyperparameters (default: halving)",
    )
    population = parser.add_argument_group("with --scheduler pbt")
    population.add_argument("--population", default=8, **options.COUNT, help="members (default: 8)")
    population.add_argument(
        "--interval", type=options.positive, default=3, metavar="EPOCHS", help="epochs per generation (default: 3)"
    )
    population.add_argument(
        "--exploit",
        default="truncation",
        metavar="HOW",
        help="truncation: each member of the worst fifth copies one of the best fifth; tournament: each member copies "
        "a randomly drawn one that is better (default: truncation)",
    )
    population.add_argument(
        "--explore",
        default="perturb",
        metavar="HOW",
        help="perturb: raise or lower copied values by a fifth; resample: draw new values; pb2: choose values by a "
        "bandit with a Gaussian process of score improvements (default: perturb)",
    )
    population.add_argument(
        "--perturb",
        **options.NAMES,
        help="a hyperparameter that is explored; may be repeated (default: all that are searched)",
    )


def _add_backends(parser: options.Parser) -> None:
    parser.add_argument(
        "--engine",
        default="processes",
        choices=("processes", "ray"),
        help="where workers run: as processes on this machine, or with Ray on all machines of a cluster (default: "
        "%(default)s)",
    )
    ray = parser.add_argument_group("with --engine ray")
    ray.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of a Ray cluster, whose machines must reach the storage (default: $RAY_ADDRESS, or a new Ray "
        "instance on this machine)",
    )
    ray.add_argument(
        "--cpus-per-worker", type=options.amount, metavar="N", help="CPUs that Ray reserves for each (default: 1)"
    )
    ray.add_argument(
        "--gpus-per-worker", type=options.amount, metavar="N", help="GPUs that Ray reserves for each (default: none)"
    )


def tune(arguments: argparse.Namespace) -> int:
    """Run the study to its end, and print its best trials."""
    from ....tasks import load
    from ...engine.progress import look
    from ...engine.runner import start_study
    from ...workers.supervisor import Supervisor
    from ..output.json_views import study_json
    from ..output.progress import Progress
    from . import warm_start

    _check_backend(arguments)
    warm_start.check_options(arguments)
    algorithm = load(arguments.task)
    config = _config(arguments, algorithm)
    name = arguments.study or f"{arguments.task}-{config.env['id']}"
    errors = new_console(stderr=True)
    # An environment or network that cannot be built is reported before the study exists.
    config.probe(algorithm)
    with open_store(arguments) as store:
        if warm_start.is_given(arguments):
            config = warm_start.start_all(store, name, config, algorithm, arguments, partial(note, errors))
        config = start_study(store, name, config)
        if look(store, name).complete:
            note(errors, f"study {name} is complete; rerun with more --trials than {config.trials[-1]} to extend it")
        else:
            with Progress(errors, name, store.url) as display, _worker_pool(arguments, name) as (count, start_worker):
                Supervisor(store, name, count, start_worker, display).run()
        _mirror(store, arguments.storage, name, errors)
        result = study_json(store, name)
    return print_json(result) if arguments.json else _print_study(result, config.open, store.url)


def _config(arguments: argparse.Namespace, algorithm: type[Task]) -> Config:
    """Return the configuration of the study that the options ask for."""
    from dataclasses import replace

    from ....spaces import flatten, unflatten
    from ...engine.configuring import defaults_except, make_config, make_population, open_space
    from ...schedulers.seeds import seed_options
    from ...study.config import parse_epochs
    from ...study.objectives import objective_options
    from .warm_start import with_demonstrated_steps

    fixed = algorithm.learner.hyperparameters.parse(*options.expand_files(arguments.set))
    fixed = with_demonstrated_steps(fixed, arguments)
    env, epochs, priors = options.parse_env(arguments.env), parse_epochs(arguments.epochs), _priors(arguments.prior)
    if arguments.search:
        space = open_space(algorithm, fixed, priors)
        others = defaults_except(space, [*arguments.search, *priors])
        fixed = dict(unflatten(flatten(others) | flatten(fixed)))
    chosen = seed_options(arguments.seeds, arguments.aggregate, arguments.racing)
    chosen |= objective_options(arguments.objective)
    chosen |= {} if arguments.grid_points is None else {"grid_points": arguments.grid_points}
    if arguments.scheduler == "pbt":
        names = ("interval", "population", "seed", "exploit", "explore", "perturb", "sampler")
        values = {name: getattr(arguments, name) for name in names} | chosen
        config = make_population(algorithm, env, epochs=epochs[1], fixed=fixed, priors=priors, **values)
    else:
        config = make_config(
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
            options=chosen,
        )
    if arguments.snapshots is None:
        return config
    return replace(config, options={**config.options, "snapshots": arguments.snapshots})


def _priors(assignments: Sequence[str]) -> dict[str, str]:
    """Return the texts of --prior by dotted name."""
    priors: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name or name in priors:
            law = "is given twice" if name in priors else "must be written NAME=PRIOR"
            raise ValueError(f"--prior {assignment!r} {law}, such as --prior optimizer.lr='loguniform(1e-5, 1e-3)'")
        priors[name] = text
    return priors


def _check_backend(arguments: argparse.Namespace) -> None:
    """Raise ValueError if workers cannot run as --engine asks."""
    if arguments.engine == "ray":
        try:
            from ...workers.ray_workers import reachable
        except ImportError as error:
            raise ValueError(f"--engine ray needs Ray: pip install 'rekindle[ray]' ({error})") from error
        reachable(arguments.storage, arguments.address)
        return
    values = {"--address": arguments.address, "--cpus-per-worker": arguments.cpus_per_worker}
    values["--gpus-per-worker"] = arguments.gpus_per_worker
    if names := [name for name, value in values.items() if value is not None]:
        raise ValueError(f"{' and '.join(names)} say what Ray gives a worker; add --engine ray")


@contextmanager
def _worker_pool(arguments: argparse.Namespace, study: str) -> Iterator[tuple[int, Callable[[], WorkerHandle]]]:
    """Yield the number of workers, and a function that starts one."""
    from ...storage.locks.owner import cores
    from ...workers.supervisor import WorkerProcess

    extra = ["--use-previous"] if arguments.use_previous else []
    extra += ["--patience", str(arguments.patience), "--lease", str(arguments.lease)]
    extra += ["--env-processes", str(arguments.env_processes)] if arguments.env_processes else []
    url, workers = arguments.storage, arguments.workers
    if arguments.engine == "ray":
        from ...workers.ray_workers import cluster

        cpus, gpus = arguments.cpus_per_worker or 1.0, arguments.gpus_per_worker or 0.0
        with cluster(url, study, workers=workers, address=arguments.address, cpus=cpus, gpus=gpus, extra=extra) as pool:
            yield pool
        return
    workers = workers or cores()
    yield workers, lambda: WorkerProcess(url, study, workers, extra)


def _mirror(store: Store, url: str, name: str, errors: Console) -> None:
    """Copy the study to Optuna's tables, or report why that failed."""
    from sqlalchemy.exc import SQLAlchemyError

    from ...engine.optuna_mirror import mirror
    from ...errors import StoreError

    try:
        mirror(store, url, name)
    except (StoreError, SQLAlchemyError, RuntimeError) as error:
        note(errors, f"Optuna's tables were left as they are: {' '.join(str(error).split())}")


def _print_study(study: Mapping[str, Any], searched: Sequence[str], url: str) -> int:
    from ..output import tables

    out = new_console()
    counts = ", ".join(f"{count} {state}" for state, count in study["counts"].items() if count)
    if study["best"] is None:
        note(out, f"no trial has a result: {counts}; `rekindle trials {study['study']}` says why")
        return options.FAILED
    out.print(tables.best_table(study, searched))
    spared = f"; racing spared {study['spared']} of {study['trials_total'] * study['seeds']} trainings"
    note(out, f"{study['trials_total']} trials: {counts}{spared if study['spared'] else ''}\n")
    storage = shlex.quote(url)
    best = "the first of these trials" if len(study["objectives"]) > 1 else "the best trial"
    for command, text in (
        (f"rekindle show {study['best']['uid'][:8]} --storage {storage}", f"{best}, with its whole history"),
        (f"rekindle trials {shlex.quote(study['study'])} --storage {storage}", "all trials, rung by rung"),
        (f"optuna-dashboard {storage}", "the same study in Optuna's dashboard"),
    ):
        out.print(f"[bright_black]# {text}[/]\n[cyan]{command}[/]", soft_wrap=True)
    return 0
