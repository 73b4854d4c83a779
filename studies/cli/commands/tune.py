"""``rekindle tune`` and ``confirm``: studies run by new workers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from ....spaces import flatten, unflatten
from ....tasks import load
from ....tasks.compiled.loading import kernels
from ...analysis.cures import Finding
from ...analysis.health import diagnose
from ...analysis.learning import located as located_source
from ...analysis.unlearned import AFTER_TUNE
from ...creation import create_study
from ...curves.beside import MIRROR_AFTER, MIRRORED, Copier, copied
from ...curves.sinks import located
from ...engine.checked_config import load_task, remarks
from ...engine.confirmation_views import confirmation_view
from ...engine.confirmations import check_confirmable, confirmation_config, confirmations_of, start_confirmation
from ...engine.json_views import study_view
from ...engine.optuna_mirror import mirror
from ...engine.probes import lines_of, probe_view
from ...engine.sizing import SEEDS, Sized, candidates_of, is_given_time_alone
from ...engine.snapshots import look
from ...engine.tune_options import study_config
from ...engine.views import ConfirmationView, ConfirmedStudyView, StudyView
from ...errors import BadConfig, StudyMismatch
from ...failures import one_line
from ...garbage import importing
from ...options.option import words
from ...options.study_options import STUDY
from ...options.worker_options import WORKER
from ...redact import printable
from ...report.answer import answer
from ...report.verdicts import verdict
from ...samplers.registry import size_of
from ...shell import begin_again, command_line
from ...storage.commands import cure_of, hold_of
from ...storage.locks.owner import cores
from ...storage.store import Store
from ...study import TOP
from ...study.config import SIZED, Config, check_name, title
from ...study.number_text import counted
from ...workers.forked import Crew, can_fork
from ...workers.supervisor import Supervisor, WorkerHandle, WorkerProcess, stoppable
from ..output import tables
from ..output.live_progress import Progress
from ..output.terminal import new_console, note, patience, print_json
from . import options, warm_start
from .storage import existing_store, hides_password, open_store, repeated


def create(arguments: argparse.Namespace) -> int:
    """Create the study, and print how workers join it."""
    _locate_sources(arguments)
    make = _maker(arguments, _config(arguments), new_console(stderr=True))
    with open_store(arguments) as store:
        name, _ = make(store)
        if arguments.json:
            return print_json(study_view(store, name))
        device = "" if arguments.device == "cpu" else f" --device {arguments.device}"
        command = command_line("worker", name, f"--storage {repeated(store)}{device}")
        note(new_console(), f"study {name} waits for workers:\n{command}")
        if hides_password(store):
            note(new_console(), "# it takes the password from PGPASSWORD or ~/.pgpass")
    return 0


def _device_here(arguments: argparse.Namespace) -> str:
    """Return the device that this machine needs to have."""
    return "cpu" if arguments.engine == "ray" or arguments.command == "create" else arguments.device


def _locate_sources(arguments: argparse.Namespace) -> None:
    """Complete the paths of --learn-from.

    An environment may change the working directory later.
    """
    arguments.learn_from = [*map(located_source, arguments.learn_from)]


def _maker(
    arguments: argparse.Namespace, config: Config, errors: Console, check: Callable[[Config, str], None] | None = None
) -> Callable[[Store], tuple[str, Config]]:
    """Return a function that creates the study in a store.

    Errors, including those of `check`, are reported before a database is created.
    """
    algorithm = load(arguments.task)
    name = check_name(config.default_name if arguments.study is None else arguments.study)
    subject = title(config.task, *config.environments)
    with patience(
        errors, f"builds {subject} once, to see that it can be trained here; what JAX compiles takes a while"
    ):
        config.probe(algorithm, _device_here(arguments))
    if check is not None:
        check(config, name)
    options.save_config(arguments, config.options.get("environments", config.env), config.fixed)

    def remake(settings: Mapping[str, Any], sized: Sized | None, decided: Mapping[str, Any]) -> Config:
        return _config(argparse.Namespace(**settings), sized, decided)

    def make(store: Store) -> tuple[str, Config]:
        say = partial(note, errors)
        start = None
        if warm_start.is_given(arguments):
            start = partial(warm_start.start_all, store, name, algorithm, arguments, say)
        stored = create_study(
            store,
            name,
            algorithm,
            config,
            remake,
            vars(arguments),
            priors=options.priors_of(arguments.prior),
            given_options={option for option in STUDY if getattr(arguments, option) not in (STUDY[option].default, [])},
            sources=arguments.learn_from,
            start=start,
            say=say,
        )
        for text in remarks(stored):
            say(text)
        return name, stored

    return make


class _Outcome(NamedTuple):
    """Results of a study that its workers have left."""

    study: StudyView
    confirmation: ConfirmationView | None
    is_confirmed: bool  # as --confirm asks
    config: Config  # which its probe may have changed
    findings: Sequence[Finding]
    answer: str | None


def tune(arguments: argparse.Namespace) -> int:
    """Run the study to its end, and print its best trials."""
    _check_backend(arguments)
    _locate_sources(arguments)
    logs = [["--to", located(text)] for text in arguments.log]
    errors, config = new_console(stderr=True), _config(arguments)  # reports errors before slow imports
    size = arguments.trials, arguments.epochs, arguments.env_steps
    if arguments.confirm is None and is_given_time_alone(config, load(arguments.task), *size):
        arguments.confirm = SEEDS
    if arguments.top and not arguments.confirm:
        raise ValueError(f"--top {arguments.top} is how many configurations --confirm takes, which is missing; add it")
    top = arguments.top or TOP
    check = partial(check_confirmable, top=top, seeds=arguments.confirm) if arguments.confirm else None
    with ExitStack() as stack:
        crew = stack.enter_context(_crew(arguments, config))  # forks before threads start; ends if an error follows
        make = _maker(arguments, config, errors, check)
        stack.enter_context(stoppable())
        store = stack.enter_context(open_store(arguments))
        name, config = make(store)
        _search(arguments, store, name, config, logs, errors, crew)
        confirmation = _confirm_answer(arguments, store, name, config, errors, crew)
        outcome = _outcome(arguments, store, name, confirmation)
    return _show(arguments, outcome, store, errors)


def _search(
    arguments: argparse.Namespace,
    store: Store,
    name: str,
    config: Config,
    logs: Sequence[Sequence[str]],
    errors: Console,
    crew: Crew,
) -> None:
    """Run a study's trials to their end, beside copies of them."""
    copiers: Sequence[Copier] = ()
    if look(store, name).complete:
        note(errors, f"study {name} is complete{_how_to_extend(config)}")
    else:
        url, say = arguments.url, partial(note, errors)
        with copied(url, name, [MIRRORED], say, MIRROR_AFTER, crew) as copiers, copied(url, name, logs, say, crew=crew):
            _work(arguments, store, name, errors, crew)
    if not any(copier.wrote_all for copier in copiers):
        mirror(store, name, partial(note, errors))


def _confirm_answer(
    arguments: argparse.Namespace, store: Store, name: str, config: Config, errors: Console, crew: Crew
) -> str | None:
    """Run the confirmation that --confirm asks for; return its name, or None."""
    if arguments.confirm is None or not look(store, name).complete:
        return None
    top = arguments.top or candidates_of(config)
    try:
        return _confirm(arguments, store, name, top, arguments.confirm, errors, crew)
    except (BadConfig, StudyMismatch) as error:  # the search has ended well, and its results follow
        note(errors, f"study {name} is not confirmed: {error}")
        return None


def _outcome(arguments: argparse.Namespace, store: Store, name: str, confirmation: str | None) -> _Outcome:
    """Return a study's results, and write its agent.

    Only a confirmed study that was given time alone has one.
    """
    study = study_view(store, name)
    config = Config.from_json(store.study(name).config, name)
    result = confirmation_view(store, name, study.trials, confirmation)
    is_confirmed = confirmation is not None and _is_estimated(result)
    if arguments.json:
        return _Outcome(study, result, is_confirmed, config, [], None)
    findings, agent = diagnose(store, name).findings, None
    if SIZED in config.options and result is not None and study.best is not None:
        agent = answer(store, name, Path(f"{name}.safetensors"))  # written even if nobody reads
    return _Outcome(study, result, is_confirmed, config, findings, agent)


def _show(arguments: argparse.Namespace, outcome: _Outcome, store: Store, errors: Console) -> int:
    """Print a study's results; return the exit status."""
    study, confirmation = outcome.study, outcome.confirmation
    tables.print_labels(errors, study)
    all_failed = study.best is None or _all_failed(study)
    unconfirmed = arguments.confirm is not None and study.state == "complete" and not outcome.is_confirmed
    status = options.FAILED if all_failed or unconfirmed else 0
    if arguments.json:
        if all_failed:
            note(errors, _without_results(study))
        elif confirmation is not None and unconfirmed:
            note(errors, verdict(confirmation))
        return print_json(ConfirmedStudyView(**vars(study), confirmation=confirmation), status)
    _print_study(study, confirmation, outcome.config, store, outcome.findings)
    if outcome.answer is not None:
        note(new_console(), outcome.answer)
    return status


def confirm(arguments: argparse.Namespace) -> int:
    """Train a study's best configurations on fresh seeds, and print estimates."""
    _check_backend(arguments)
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        config = Config.from_json(store.study(arguments.study).config, arguments.study)
    with _crew(arguments, config) as crew, stoppable(), existing_store(arguments) as store:
        name = _confirm(arguments, store, arguments.study, arguments.top, arguments.seeds, errors, crew)
        result = confirmation_view(store, arguments.study, name=name)
        probe = probe_view(store.commands(arguments.study))
    assert result is not None
    status = 0 if _is_estimated(result) else options.FAILED
    if arguments.json:
        if status:
            note(errors, verdict(result))
        return print_json(result, status)
    out = new_console()
    tables.print_confirmation(out, result, probe)
    for line in lines_of(probe, objectives=[result.objective]):
        note(out, line)
    return status


def _is_estimated(result: ConfirmationView | None) -> bool:
    """Return whether the winner has an estimate.

    It has none if too many trainings failed.
    """
    return result is not None and result.winner is not None and result.candidates[result.winner].estimate is not None


def _confirm(
    arguments: argparse.Namespace, store: Store, study: str, top: int, seeds: int, errors: Console, crew: Crew
) -> str:
    """Run the confirmation of a study to its end; return its name."""
    config = confirmation_config(store, study, top, seeds, arguments.eval_episodes)
    config.probe(load_task(config), _device_here(arguments))
    before = list(confirmations_of(store, study))
    name = start_confirmation(store, study, config)
    if before and name not in before:
        note(errors, f"{name} trains on seeds that {before[-1]} has not used")
    elif before and name != before[-1]:
        note(errors, f"{name} has these candidates and seeds already; the last confirmation is {before[-1]}")
    if not look(store, name).complete:
        _work(arguments, store, name, errors, crew)
    return name


def _crew(arguments: argparse.Namespace, config: Config) -> Crew:
    """Import the modules of workers and copiers, and fork processes for them.

    Kernels are loaded once, before the forks, if the study's tasks use them. No process is forked for CUDA, which does
    not work in a fork of a process that has used it.
    """
    with importing(arguments.own_process):
        for module in (".worker", ".curves", "...samplers.suggest"):
            import_module(module, __package__)
        forks = arguments.engine != "ray" and arguments.device == "cpu" and arguments.own_process and can_fork()
        if forks and config.uses_kernels(load(config.task)):
            kernels()
    rounds = 2 if getattr(arguments, "confirm", None) else 1  # of workers: of the search, and of its confirmation
    return Crew(rounds * (arguments.workers or cores()) + 1 + len(getattr(arguments, "log", ())) if forks else 0)


def _work(arguments: argparse.Namespace, store: Store, name: str, errors: Console, crew: Crew) -> None:
    """Run the study to its end, and report if it was stopped."""
    with Progress(errors, name, store.url) as display, _worker_pool(arguments, name, crew) as (count, start_worker):
        Supervisor(store, name, count, start_worker, display, arguments.grace).run()
    if look(store, name).complete:
        return
    command = hold_of(store.commands(name))
    stopped = f"had the {command}; {cure_of(name, command)}" if command else "is not complete; rerun to resume"
    note(errors, f"study {name} {stopped}")


def _config(
    arguments: argparse.Namespace, sized: Sized | None = None, decided: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """Return the configuration of the study that the options describe.

    Args:
        arguments: arguments of the command.
        sized: see `study_config`.
        decided: values by dotted name that a warm start decides.
    """
    warm_start.check_options(arguments)
    algorithm = load(arguments.task)
    priors = options.priors_of(arguments.prior)
    assignments = options.expand_files(arguments.set, {*arguments.search, *priors})
    fixed = options.space(arguments, algorithm).parse(*assignments)
    fixed = warm_start.with_demonstrated_steps(fixed, arguments)
    fixed = unflatten({**decided, **flatten(fixed)})
    environments = [options.trained_env(arguments, text) for text in (arguments.env, *arguments.others)]
    epochs = options.epochs_of(arguments, algorithm, fixed)
    tried = [options.read_hyperparameters(text, "--try") for text in getattr(arguments, "try")]
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in STUDY}
    how: dict[str, Any] = {"epochs": epochs, "fixed": fixed, "priors": priors, "known": tried, "sized": sized}
    return study_config(algorithm, environments, **how, **settings)


def _check_backend(arguments: argparse.Namespace) -> None:
    """Raise ValueError if workers cannot run with this --engine."""
    if arguments.engine == "ray":
        _check_gpus(arguments)
        try:
            from ...workers.ray_workers import reachable
        except ImportError as error:
            raise ValueError(f"--engine ray needs Ray: pip install 'rekindle-rl[ray]' ({error})") from error
        reachable(arguments.url, arguments.address)
        return
    only_with_ray = ("address", "cpus_per_worker", "gpus_per_worker")
    names = [f"--{name.replace('_', '-')}" for name in only_with_ray if getattr(arguments, name) is not None]
    if names:
        raise ValueError(f"only --engine ray takes options of Ray, but got {' and '.join(names)}; add --engine ray")


def _check_gpus(arguments: argparse.Namespace) -> None:
    """Raise ValueError unless workers use exactly the GPUs that Ray reserves."""
    gpus, device = arguments.gpus_per_worker, arguments.device
    if gpus and device in ("cpu", "mps"):
        raise ValueError(
            f"Ray reserves GPUs for workers that train on them, but --gpus-per-worker is {gpus:g} and --device is "
            f"{device}; add --device cuda"
        )
    if not gpus and device.startswith("cuda"):
        raise ValueError(
            f"a worker on Ray has only the GPUs that it reserves, but --device is {device}; add --gpus-per-worker 1"
        )
    if device.startswith("cuda:"):
        raise ValueError(f"a worker on Ray sees only its own GPUs, but --device is {device}; write --device cuda")


@contextmanager
def _worker_pool(
    arguments: argparse.Namespace, study: str, crew: Crew
) -> Iterator[tuple[int, Callable[[], WorkerHandle]]]:
    """Yield the number of workers, and a function that starts one."""
    extra = words(WORKER, vars(arguments))
    url, workers = arguments.url, arguments.workers
    if arguments.engine == "ray":
        from ...workers.ray_workers import cluster

        cpus, gpus = arguments.cpus_per_worker or 1.0, arguments.gpus_per_worker or 0.0
        with cluster(url, study, workers=workers, address=arguments.address, cpus=cpus, gpus=gpus, extra=extra) as pool:
            yield pool
        return
    workers = workers or cores()
    yield workers, lambda: WorkerProcess(url, study, workers, extra, crew)


def _all_failed(study: StudyView) -> bool:
    """Return whether all trials failed, with branches of a population."""
    return study.counts["failed"] == max(study.trials_total, sum(study.counts.values()))


def _without_results(study: StudyView) -> str:
    """Return why a study has nothing to show."""
    failed = [trial for trial in study.trials if trial.state == "failed"]
    if not failed:
        return f"study {study.study}: no trial has a result"
    share = f"{len(failed)} of {counted(len(study.trials), 'trial')} failed"
    return f"study {study.study}: {share}; trial {failed[0].number}: {one_line(failed[0].error or '')}"


def _how_to_extend(config: Config) -> str:
    """Return how to extend a complete study, or ""."""
    trials = config.trials[-1]
    if config.scheduling.population or (config.sampling.enumerates and size_of(config, most=trials + 1) == trials):
        return ""
    return f"; rerun with more --trials than {trials} to extend it"


def _print_study(
    study: StudyView, confirmation: ConfirmationView | None, config: Config, store: Store, findings: Sequence[Finding]
) -> None:
    out = new_console()
    counts = ", ".join(f"{count} {state}" for state, count in study.counts.items() if count)
    storage, name = f"--storage {repeated(store)}", study.study
    if study.best is None:
        _print_remarks(out, study, findings)
        reasons = f"`{command_line('trials', name, storage)}` says why"
        advice = begin_again(name, storage) if _all_failed(study) else reasons
        note(out, f"no trial has a result: {counts or 'none is begun'}; {advice}")
        return
    flat = config.searched.flat()
    tables.print_best(out, study, {name: flat[name].default for name in config.open})
    if confirmation is not None:
        tables.print_confirmation(out, confirmation, study.probe)
    spared = f"; racing spared {study.spared} of {study.trials_total * study.seeds} trainings"
    total = counted(sum(study.counts.values()), "trial")
    if config.scheduling.population:
        total += f" of {study.trials_total} members"
    note(out, f"{total}: {counts}{spared if study.spared else ''}\n")
    for rung in study.agreement:
        if rung.misleads:
            note(out, tables.misleading(rung, study.rungs))
    _print_remarks(out, study, findings)
    best = "the first of these trials" if len(study.objectives) > 1 else "the best trial"
    proposed = {f"rekindle show {study.best.uid[:8]} {storage}": f"{best}: all hyperparameters, and the history"}
    if confirmation is None and _can_be_confirmed(study, config):
        proposed[command_line("confirm", name, storage)] = "the best trials and the defaults, estimated on fresh seeds"
    proposed[command_line("trials", name, storage)] = "all trials, rung by rung"
    proposed[command_line("report", name, storage)] = "a page with curves and what mattered"
    for command, text in proposed.items():
        out.print(f"[bright_black]# {text}[/]\n[cyan]{escape(printable(command))}[/]", soft_wrap=True)
    if hides_password(store):
        note(out, "# these take the password from PGPASSWORD or ~/.pgpass")


def _can_be_confirmed(study: StudyView, config: Config) -> bool:
    try:
        check_confirmable(config, study.study)
    except BadConfig:
        return False
    return study.best is not None and study.best.epochs == study.rungs[-1]


def _print_remarks(out: Console, study: StudyView, findings: Sequence[Finding]) -> None:
    """Print what a study's probe tells, and the defects that concern everybody."""
    for line in lines_of(study.probe, objectives=study.objectives):
        note(out, line)
    for finding in findings:
        if finding.check in AFTER_TUNE:
            tables.print_finding(out, finding)
