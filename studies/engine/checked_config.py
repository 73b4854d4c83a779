"""Configurations of studies, checked against their task on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ...spaces.dimension import Maybe
from ...spaces.space import ENABLED
from ...tasks.errors import TaskError
from ..errors import BadConfig, MachineMismatch, StoreError, StudyMismatch
from ..methods import POPULATION, SAMPLERS, searches
from ..options.entries import check_count
from ..options.study_options import MEMBERS
from ..samplers.registry import (
    check_exhausted,
    check_sampler,
    check_source,
    sampler_name,
    sampler_remark,
    size_of,
    source_options,
)
from ..schedulers.pb2 import check_pb2
from ..schedulers.pbt import EXPLOITS, EXPLORES
from ..schedulers.racing import check_racing
from ..schedulers.registry import without_finalist
from ..shell import command_line
from ..study.code import FILES, check_files
from ..study.config import RESUMES, Config, check_at_once, check_end, check_epochs, choose
from ..study.environments import check_across
from ..study.objectives import (
    ALWAYS,
    DEFAULT,
    EVALUATED,
    OF_BEHAVIOUR,
    constraints_of,
    known_objectives,
    objectives_of,
    own_objective,
)
from ..study.searched import open_space
from ..study.stored_form import MOST_AT_ONCE

if TYPE_CHECKING:
    from ...tasks.task import Task

TRIALS = 16
INTERVAL = 3  # epochs per generation of a population


def make_config(
    algorithm: type[Task],
    env: Any,
    *,
    trials: int | None,
    epochs: Sequence[int],
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
    priors: Mapping[str, str] | None = None,
    **options: Any,
) -> Config:
    """Return the configuration of a new study.

    Args:
        algorithm: task class.
        env: see `Task`.
        trials: number of configurations; None for TRIALS, for all points of a smaller finite space, or of a grid.
        epochs: see `check_epochs`.
        seed: seed of all trainings and suggestions.
        fixed: hyperparameters that are not searched, nested.
        priors: see `open_space`.
        options: other fields of `Config`.

    Raises:
        BadConfig: the options contradict each other, or do not suit the task.
        ValueError: the task or its space does not allow a value.
    """
    task = algorithm(env, seed=seed, **(fixed or {}))
    config = Config(
        task=algorithm.name,
        task_version=algorithm.version,
        env=task.env.to_json(),
        seed=seed,
        space=open_space(algorithm, task.env, fixed or {}, priors or {}).priors(),
        fixed=task.fixed,
        epochs=check_epochs(epochs, options.get("scheduler", "halving")),
        trials=[TRIALS if trials is None else trials],
        **options,
    )
    for name in ("generation", "cohort"):
        check_count(name, getattr(config, name))
    for environment in config.environments:
        check_end(environment.get("id", ""), config.most_epochs(algorithm, environment), config.epochs[1])
    check_count("trials", config.trials[0])
    sampler = sampler_name(config.sampler)
    files, differs = dict(algorithm.learner.files()), algorithm.learner.resume_differs()
    started = ({FILES: files} if files else {}) | ({} if differs is None else {RESUMES: differs})
    config = replace(config, sampler=sampler, options={**config.options, **source_options(sampler), **started})
    if config.sampling.points:  # they are tried once each, however likely
        config = replace(config, space=config.searched.unweighted().priors())
    choose("scheduler", config.scheduler, searches())
    if config.sampling.enumerates and trials is None:
        config = replace(config, trials=[size_of(config, most=TRIALS)])
    check_at_once(config)
    check_sampler(config)
    check_exhausted(config)
    check_objectives(config, algorithm)
    check_racing(config)
    check_across(config)
    if len(config.rungs) < config.scheduling.least_rungs:
        raise BadConfig(
            f"{config.scheduler} starts brackets on different rungs, but epochs {config.epochs[1]} make only one; "
            f"write low:high, such as 1:{max(3, config.epochs[1])}, or use --scheduler none"
        )
    if not (config.scheduling.promotes or config.scheduling.population):
        return replace(config, epochs=[config.epochs[1], *config.epochs[1:]])
    return config


def remarks(config: Config) -> list[str]:
    """Return warnings about a study that can be run."""
    return [text for text in (without_finalist(config), sampler_remark(config)) if text]


def check_objectives(config: Config, algorithm: type[Task]) -> None:
    """Raise BadConfig if the study cannot have its objectives and constraints.

    If one is a metric of the task, one epoch is trained to see the metrics' names.
    """
    objectives = objectives_of(config)
    if len(objectives) > 1 and not config.sampling.objectives:
        several = ", ".join(name for name, facts in SAMPLERS.items() if facts.objectives)
        raise BadConfig(f"sampler {config.sampler} takes one objective, but got {len(objectives)}; use {several}")
    entries = config.env.get("info", {})
    info = [f"{evaluated}info.{name}" for evaluated in ("", EVALUATED) for name in entries]
    info += [name for name in entries if name.startswith(OF_BEHAVIOUR)]  # parts of a reward that is a vector
    directed = known_objectives(own_objective(algorithm))
    always = [*ALWAYS, *info] if own_objective(algorithm) == DEFAULT else []
    always += config.further_objectives(algorithm)
    roles = dict.fromkeys((constraint.name for constraint in constraints_of(config)), "a constraint")
    roles |= dict.fromkeys(objectives, "an objective")
    further = roles.keys() - {*directed, *always}
    if further:
        measured = [*directed, *always, *config.make_task(algorithm, config.fixed, None).fit(1)]
        for name in sorted(further):
            if name.removeprefix(EVALUATED).startswith("info."):
                entry = name.removeprefix(EVALUATED).removeprefix("info.")
                role = roles[name].split()[-1]
                raise BadConfig(f"{role} {name} must be an entry of info that is reported; add --info {entry}")
            choose(roles[name], name, list(dict.fromkeys(measured)))


def make_population(
    algorithm: type[Task],
    env: Any,
    *,
    epochs: int,
    interval: int | None = None,
    population: int = MEMBERS,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
    exploit: str = EXPLOITS[0],
    explore: str = EXPLORES[0],
    perturb: Sequence[str] = (),
    sampler: str | None = None,
    scheduler: str = POPULATION,
    priors: Mapping[str, str] | None = None,
    **options: Any,
) -> Config:
    """Return the configuration of a study by population-based training.

    Structural hyperparameters cannot change while a member trains. They are fixed, to their defaults unless `fixed`
    sets them, so the whole population trains as one cohort.

    Args:
        algorithm: task class.
        env: see `Task`.
        epochs: epochs of the whole training.
        interval: epochs per generation; None for INTERVAL, or for `epochs` if that is smaller.
        population: number of members.
        seed: seed of all trainings and suggestions.
        fixed: hyperparameters that are not searched, nested.
        exploit: one of EXPLOITS.
        explore: one of EXPLORES.
        perturb: dotted names that explore may change; empty for all searched ones. Other searched hyperparameters
            differ between members from the start and are copied unchanged.
        sampler: None or "random".
        scheduler: name of a scheduler of populations.
        priors: see `open_space`.
        options: options of `seed_options`, and one objective.

    Raises:
        BadConfig: the options contradict each other, or do not suit the task.
    """
    interval = min(INTERVAL, epochs) if interval is None else interval
    fixed, priors = fixed or {}, priors or {}
    _check_members(population, interval, epochs, sampler, options)
    structure = _structure(algorithm, env, seed, fixed, perturb, priors)
    options |= {"exploit": choose("exploit", exploit, EXPLOITS), "explore": choose("explore", explore, EXPLORES)}
    config = make_config(
        algorithm,
        env,
        trials=population,
        epochs=[interval, epochs],
        seed=seed,
        fixed=unflatten({**flatten(fixed), **structure}),
        priors=priors,
        sampler="random",
        scheduler=scheduler,
        generation=population,
        cohort=population,
        options=options,
    )
    maybes = [name for name, dimension in config.searched.flat().items() if isinstance(dimension, Maybe)]
    searched = config.searched.fix({name + ENABLED: True for name in maybes})
    config = replace(config, space=searched.priors(), epochs=[interval, epochs, 1])
    for name in perturb:
        choose("--perturb", name, config.open)
    if not config.open:
        raise BadConfig(
            "a population needs a hyperparameter that may change while it trains, but all of these are fixed; leave "
            "one open"
        )
    config = replace(config, options={**config.options, "perturb": list(perturb) or config.open})
    check_pb2(config)
    return config


def _structure(
    algorithm: type[Task],
    env: Any,
    seed: int,
    fixed: Mapping[str, Any],
    perturb: Sequence[str],
    priors: Mapping[str, str],
) -> dict[str, Any]:
    """Return the structural hyperparameters of a population, by dotted name.

    Args:
        algorithm: task class.
        env: see `Task`.
        seed: seed of all trainings.
        fixed: hyperparameters that are not searched, nested.
        perturb: see `make_population`.
        priors: see `open_space`.

    Raises:
        BadConfig: what is to change is structural, or the task chooses among algorithms.
    """
    from ...tasks.envs import EnvSpec  # imports gymnasium

    space = algorithm.learner.space_in(EnvSpec.of(env))
    dimensions = space.flat()
    for name in {**dict.fromkeys(perturb), **priors}:
        if name in dimensions and dimensions[name].structural:
            raise BadConfig(
                f"a population changes hyperparameters while it trains, but {name} is structural: it decides shapes or "
                f"loop counts; set one value for all (--set {name}=...), or search it by halving"
            )
    chosen, values = algorithm.chosen(env, fixed)
    if chosen is not algorithm and chosen.name not in flatten(fixed).values():
        raise BadConfig(
            "the members of a population copy each other, so they learn by one algorithm, but "
            f"{algorithm.name} chooses among several; fix it (--set algorithm={chosen.name}), or use another scheduler"
        )
    complete = flatten(chosen(env, seed=seed).init(**unflatten(values)).hyperparameters or {})
    structure = space.structure(unflatten(algorithm.named(chosen.name, complete)))
    unused = [name for name in dimensions if structure.get(name + ENABLED) is False and name not in priors]
    return {name: value for name, value in structure.items() if not name.endswith(ENABLED)} | dict.fromkeys(unused)


def _check_members(
    population: int, interval: int, epochs: int, sampler: str | None, options: Mapping[str, Any]
) -> None:
    """Raise BadConfig for arguments of `make_population` that contradict each other."""
    check_count("population", population, MOST_AT_ONCE)
    check_count("interval", interval)
    if population < 2:
        raise BadConfig("the members of a population copy each other, but --population is 1; give it at least 2")
    if interval > epochs:
        raise BadConfig(
            f"a population copies after each interval, but --interval {interval} is above the {epochs} epochs in all; "
            "lower it"
        )
    if len(objectives := options.get("objectives", DEFAULT)) > 1:
        raise BadConfig(
            "the members of a population copy the best ones, which needs one objective, but --objective names "
            f"{', '.join(objectives)}; name one and bound the others (--constraint), or use another --scheduler"
        )
    if "racing" in options:
        raise BadConfig(
            "--racing stops configurations that cannot win, but a population trains all its members to the end; "
            "leave it out, or use another --scheduler"
        )
    if sampler not in (None, "random"):
        raise BadConfig(
            f"a population starts with hyperparameters drawn at random, but --sampler is {sampler}; leave it out"
        )


def check_machine(name: str, config: Config, algorithm: type[Task]) -> None:
    """Raise MachineMismatch unless this machine can train a study as it is."""
    try:
        algorithm.learner.check_machine()
        check_source(config)
    except (TaskError, BadConfig) as error:
        raise MachineMismatch(f"study {name!r} cannot be trained here: {error}") from None
    check_code(name, config.options.get(FILES, {}), algorithm.learner.files())


def check_code(name: str, wanted: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Raise MachineMismatch unless this process has the code of a study."""
    check_files(f"study {name!r}", wanted, present, command_line("extend", name, "--code"))


def load_task(config: Config) -> type[Task]:
    """Return the task class of a stored study.

    Raises:
        StudyMismatch: another version of the algorithm is installed.
        StoreError: a package that the study needs is not installed.
    """
    from ...tasks import load

    algorithm = load(config.task)
    if algorithm.version != config.task_version:
        raise StudyMismatch(
            f"the study was started with {config.task} {config.task_version}, but {algorithm.version} is installed, "
            "which gives other results; use the Rekindle that made the study, or another name for a new one"
        )
    try:
        check_pb2(config)
        check_sampler(replace(config, sampler=sampler_name(config.sampler)))
    except BadConfig as error:
        raise StoreError(f"the study cannot be resumed here: {error}") from None
    return algorithm
