"""``rekindle tune`` and ``confirm``: studies run by new workers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any

from rich.console import Console

from ....spaces import flatten, unflatten
from ....tasks import load
from ...analysis.learning import located as located_source
from ...creation import create_study
from ...curves.beside import MIRROR_AFTER, MIRRORED, Copier, copied
from ...curves.sinks import located
from ...engine.checked_config import remarks
from ...engine.confirmation_views import confirmation_view
from ...engine.confirmations import check_confirmable
from ...engine.optuna_mirror import mirror
from ...engine.probes import lines_of, probe_view
from ...engine.sizing import SEEDS, Sized, candidates_of, is_given_time_alone
from ...engine.snapshots import look
from ...engine.study_views import study_view
from ...engine.tune_options import study_config
from ...errors import BadConfig, StudyMismatch
from ...options.study_options import STUDY
from ...report.verdicts import verdict
from ...samplers.registry import size_of
from ...shell import command_line
from ...storage.store import Store
from ...study import TOP
from ...study.config import Config, check_name, title
from ...workers.supervisor import stoppable
from ..output import tables
from ..output.terminal import new_console, note, patience, print_json
from . import options, warm_start
from .crews import Run, check_engine, crew_for, device_here
from .outcome import is_estimated, outcome_of, show
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
        config.probe(algorithm, device_here(arguments))
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


@stoppable()
def tune(arguments: argparse.Namespace) -> int:
    """Run the study to its end, and print its best trials."""
    check_engine(arguments)
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
        crew = stack.enter_context(crew_for(arguments, config))  # forks before threads start; ends if an error follows
        make = _maker(arguments, config, errors, check)
        store = stack.enter_context(open_store(arguments))
        name, config = make(store)
        run = Run(arguments, store, errors, crew)
        _search(run, name, config, logs)
        confirmation = _confirm_answer(run, name, config)
        outcome = outcome_of(arguments, store, name, confirmation)
    return show(arguments, outcome, store, errors)


def _search(run: Run, name: str, config: Config, logs: Sequence[Sequence[str]]) -> None:
    """Run a study's trials to their end, beside copies of them."""
    store, url = run.store, run.arguments.url
    copiers: Sequence[Copier] = ()
    if look(store, name).complete:
        run.say(f"study {name} is complete{_how_to_extend(config)}")
    else:
        with (
            copied(url, name, [MIRRORED], run.say, MIRROR_AFTER, run.crew) as copiers,
            copied(url, name, logs, run.say, crew=run.crew),
        ):
            run.work(name)
    if not any(copier.wrote_all for copier in copiers):
        mirror(store, name, run.say)


def _confirm_answer(run: Run, name: str, config: Config) -> str | None:
    """Run the confirmation that --confirm asks for; return its name, or None."""
    arguments = run.arguments
    if arguments.confirm is None or not look(run.store, name).complete:
        return None
    try:
        return run.confirm(name, arguments.top or candidates_of(config), arguments.confirm)
    except (BadConfig, StudyMismatch) as error:  # the search has ended well, and its results follow
        run.say(f"study {name} is not confirmed: {error}")
        return None


@stoppable()
def confirm(arguments: argparse.Namespace) -> int:
    """Train a study's best configurations on fresh seeds, and print estimates."""
    check_engine(arguments)
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        config = Config.from_json(store.study(arguments.study).config, arguments.study)
    with crew_for(arguments, config) as crew, existing_store(arguments) as store:
        name = Run(arguments, store, errors, crew).confirm(arguments.study, arguments.top, arguments.seeds)
        result = confirmation_view(store, arguments.study, name=name)
        probe = probe_view(store.commands(arguments.study))
    assert result is not None
    status = 0 if is_estimated(result) else options.FAILED
    if arguments.json:
        if status:
            note(errors, verdict(result))
        return print_json(result, status)
    out = new_console()
    tables.print_confirmation(out, result, probe)
    for line in lines_of(probe, objectives=[result.objective]):
        note(out, line)
    return status


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


def _how_to_extend(config: Config) -> str:
    """Return how to extend a complete study, or ""."""
    trials = config.trials[-1]
    if config.scheduling.population or (config.sampling.enumerates and size_of(config, most=trials + 1) == trials):
        return ""
    return f"; rerun with more --trials than {trials} to extend it"
