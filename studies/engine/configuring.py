"""Configurations of new studies, and checks of stored ones on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...spaces import Space, SpaceError, flatten, unflatten, with_priors
from ...spaces.choices import Fixed
from ...spaces.dimension import Maybe
from ...spaces.errors import near
from ...spaces.space import ENABLED
from ...spaces.values import REQUIRED, Nested, Value
from ...tasks.checkpoint.retention import keep_of
from ..errors import StoreError, StudyMismatch
from ..samplers.registry import GOOD, KNOWN, OWN_GOOD, check_sampler, grid_size, sampler_name
from ..schedulers.pb2 import check_pb2
from ..schedulers.pbt import EXPLOITS, EXPLORES
from ..schedulers.racing import check_racing
from ..schedulers.seeds import seed_options
from ..study.config import (
    GENERATION,
    MOST_AT_ONCE,
    OWN_GENERATION,
    SCHEDULERS,
    BadConfig,
    Config,
    check_at_once,
    check_count,
    check_epochs,
    choose,
    default_scheduler,
    parse_budget,
    parse_epochs,
    parse_goal,
    parse_weight,
)
from ..study.durations import parse_duration
from ..study.environments import TOGETHER, across_options, check_across, check_alike, races
from ..study.objectives import (
    ALWAYS,
    DEFAULT,
    EVALUATED,
    known_objectives,
    objective_options,
    objectives_of,
    own_objective,
)
from ..study.presets import preset_values

if TYPE_CHECKING:
    from ...tasks.envs import EnvSpec
    from ...tasks.task import Task

TRIALS = 16
INTERVAL = 3  # epochs per generation of a population


def study_config(
    algorithm: type[Task],
    env: Any,
    *,
    epochs: int | str | Sequence[int],
    fixed: Mapping[str, Any] | None = None,
    search: Sequence[str] = (),
    priors: Mapping[str, str] | None = None,
    trials: int | None = None,
    seed: int = 0,
    scheduler: str | None = None,
    sampler: str | None = None,
    generation: int | None = None,
    cohort: int = 4,
    objective: Sequence[str] = (),
    seeds: int = 1,
    aggregate: str = "mean",
    across: str | None = None,
    racing: bool = False,
    grid_points: int | None = None,
    snapshots: str | None = None,
    budget: str | None = None,
    goal: str | None = None,
    plateau: int | None = None,
    trial_time: float | str | None = None,
    weight: float | str | None = None,
    known: Sequence[Mapping[str, Any]] = (),
    preset: str | None = None,
    population: int = 8,
    interval: int | None = None,
    exploit: str = EXPLOITS[0],
    explore: str = EXPLORES[0],
    perturb: Sequence[str] = (),
) -> Config:
    """Return the configuration of a study from the options of `rekindle tune`.

    Args:
        algorithm: the class of its tasks.
        env: see `Task`; or a list of several, with `across`.
        epochs: as text, see `parse_epochs`, or numbers, see `check_epochs`.
        fixed: hyperparameters that are not searched, nested.
        search: dotted names of those that are searched alone; empty for all that are open.
        priors: see `open_space`.
        trials: see `make_config`.
        seed: of all trainings and suggestions.
        scheduler: one of SCHEDULERS; None for the first, or halving where seeds race.
        sampler: its name; None for tpe, or random where a population starts.
        generation: see `Config`; None for what suits the scheduler.
        cohort: see `Config`.
        objective: see `objective_options`.
        seeds: per configuration, see `seed_options`.
        aggregate: of the seeds' returns.
        across: the aggregate of results in several environments on one scale, see `study.environments`.
        racing: whether seeds race; several environments do where the scheduler can.
        grid_points: of each range, for the sampler grid.
        snapshots: which checkpoints are kept, see `Task`.
        budget: of the whole study, such as 200epochs, 5e6steps or 2h; a rerun with more continues.
        goal: such as return:475, at which the study stops once fresh episodes confirm it, see `workers.goals`.
        plateau: number of trials without a better one, after which the study stops, see `engine.bounds`.
        trial_time: seconds, or text such as 2h, after which a trial fails; its share of a cohort's time counts.
        weight: of the study among others that the same workers train, 1 unless given; see `workers.sharing`.
        known: hyperparameters that the first trials take, nested or by dotted name.
        preset: known-good values that the first trial takes, see `study.presets`; what is not searched keeps them.
        population: see `make_population`, like interval, exploit, explore and perturb; all for scheduler pbt.
        interval: epochs of a generation; None for INTERVAL, or all of fewer epochs.
        exploit: one of EXPLOITS.
        explore: one of EXPLORES.
        perturb: dotted names of what explore may change.

    Raises:
        BadConfig: the study makes no sense.
        ValueError: the task or its space does not allow a value.
    """
    fixed, priors = fixed or {}, priors or {}
    env, *others = env if isinstance(env, list | tuple) and env else [env]
    several = [] if not others and across is None else [algorithm(e, **fixed).env.to_json() for e in (env, *others)]
    racing = racing or races(len(several), seeds, scheduler)
    scheduler = scheduler or default_scheduler(racing)
    if preset is not None:
        fixed, first = _with_preset(algorithm, env, preset, fixed, priors, search, scheduler)
        known = [first, *known]
    if generation is None:
        generation = OWN_GENERATION.get(scheduler, TOGETHER if several else GENERATION)
    numbers = [epochs] if isinstance(epochs, int) else epochs
    rungs = parse_epochs(numbers, scheduler) if isinstance(numbers, str) else check_epochs(numbers, scheduler)
    if twice := sorted({name for name in search if list(search).count(name) > 1}):
        raise BadConfig(f"a hyperparameter is searched once, but {twice[0]} is named twice; leave one out")
    if search:
        from ...tasks.envs import EnvSpec  # imports gymnasium

        space = open_space(algorithm, EnvSpec.of(env), fixed, priors)
        fixed = dict(unflatten(flatten(defaults_except(space, [*search, *priors])) | flatten(fixed)))
    if snapshots is not None and (keep := keep_of(snapshots)) is not None and not keep.replay:
        raise ValueError(
            f"a study's trials resume with the same bits from one rung to the next, but snapshots {snapshots} leaves "
            "replay memories out; leave no-replay out, which is for rekindle train"
        )
    given: dict[str, Any] = {"grid_points": grid_points, "snapshots": snapshots}
    given["budget"] = parse_budget(budget) if budget else None
    given["goal"] = parse_goal(goal) if goal else None
    given["plateau"] = plateau
    given["weight"] = None if weight is None else parse_weight(str(weight))
    given["trial_time"] = None if trial_time is None else _seconds(trial_time)
    options = seed_options(seeds, aggregate, racing and not several)
    if several:
        options = across_options(several, across, aggregate, seeds, racing)
    options |= objective_options(objective, own_objective(algorithm))
    options |= {name: value for name, value in given.items() if value is not None}
    single = len(options.get("objectives", DEFAULT)) == 1
    if single and scheduler in OWN_GOOD and sampler_name(sampler or "tpe") == "tpe":
        options[GOOD] = OWN_GOOD[scheduler]
    check_bounds(options, scheduler, algorithm)
    common: dict[str, Any] = {"seed": seed, "fixed": fixed, "priors": priors}
    if scheduler == "pbt":
        common |= {"population": population, "interval": interval, "exploit": exploit, "explore": explore}
        common |= {"perturb": perturb, "sampler": sampler}
        made = make_population(algorithm, env, epochs=rungs[1], **common, **options)
        return _with_known(made, algorithm, known)
    common |= {"scheduler": scheduler, "sampler": sampler or "tpe", "generation": generation, "cohort": cohort}
    made = make_config(algorithm, env, trials=trials, epochs=rungs, options=options, **common)
    if several:
        from ...tasks.envs import EnvSpec  # imports gymnasium

        check_alike(made, [open_space(algorithm, EnvSpec.of(each), fixed, priors) for each in made.environments])
    return _with_known(made, algorithm, known)


def check_bounds(options: Mapping[str, Any], scheduler: str, algorithm: type[Task]) -> None:
    """Raise BadConfig if a study cannot have its bounds.

    Args:
        options: of the study.
        scheduler: of the study.
        algorithm: the class of its tasks.
    """
    own = own_objective(algorithm)
    objectives = options.get("objectives", own)
    if "steps" in options.get("budget", {}) and "epoch_steps" not in algorithm.learner.hyperparameters.flat():
        raise BadConfig(f"--budget counts steps of an epoch, but {algorithm.name} names none; write 200epochs")
    if "goal" in options and (own != DEFAULT or objectives != DEFAULT):
        raise BadConfig(
            f"a goal is a return, which fresh episodes confirm, but this study seeks {', '.join(objectives)}; leave "
            "--goal out"
        )
    if "plateau" not in options:
        return
    check_count("plateau", options["plateau"])
    if scheduler == "pbt" or len(objectives) > 1:
        what = "the members of a population are no trials of their own" if scheduler == "pbt" else "a front has no best"
        raise BadConfig(f"a plateau counts trials since the best one, but {what}; leave --plateau out")


def _seconds(trial_time: float | str) -> float:
    """Return the seconds of a trial time."""
    try:
        return parse_duration(trial_time if isinstance(trial_time, str) else f"{trial_time:f}")
    except ValueError as error:
        raise BadConfig(f"--trial-time {error}") from None


def _with_preset(
    algorithm: type[Task],
    env: Any,
    preset: str,
    fixed: Mapping[str, Any],
    priors: Mapping[str, str],
    search: Sequence[str],
    scheduler: str,
) -> tuple[Nested, dict[str, Any]]:
    """Return what a preset fixes, and its trial of the search.

    What the study does not search, or not over the preset's value, is fixed to that.
    """
    from ...spaces.drivers.to_optuna import params  # imports optuna
    from ...tasks.envs import EnvSpec  # imports gymnasium

    own = flatten(fixed)
    values = {name: value for name, value in preset_values(algorithm.name, preset).items() if name not in own}
    space, first = open_space(algorithm, EnvSpec.of(env), fixed, priors), dict[str, Any]()
    for name, value in values.items():
        dimension = space.flat().get(name)
        if dimension is None or isinstance(dimension, Fixed) or (search and name not in [*search, *priors]):
            continue
        if scheduler == "pbt" and dimension.structural:
            continue
        try:
            params(space, {name: value})
        except SpaceError:
            if name in search or name in priors:
                raise
            continue
        first[name] = value
    return unflatten(own | {name: value for name, value in values.items() if name not in first}), first


def _with_known(config: Config, algorithm: type[Task], known: Sequence[Mapping[str, Any]]) -> Config:
    """Return the configuration whose first trials take known hyperparameters.

    Raises:
        BadConfig: they are not in the searched space, or more than there are trials.
    """
    if not known:
        return config
    if not KNOWN[config.sampler].defaults or len(known) > config.trials[0]:
        law = "each takes one trial" if KNOWN[config.sampler].defaults else "a grid has its own trials"
        raise BadConfig(
            f"{law}, but {len(known)} known configurations are to be tried in {config.trials[0]}; leave some out"
        )
    first = [known_values(config, algorithm, flatten(each)) for each in known]
    return replace(config, options={**config.options, "known": first})


def known_values(config: Config, algorithm: type[Task], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the searched values of a known configuration, by dotted name."""
    from ...spaces.drivers.to_optuna import params  # imports optuna

    space, own = config.searched, {name: given[name] for name in config.open if name in given}
    try:
        values = flatten(space.decide(lambda path, dimension: own.get(path, dimension.default)))
        params(space, values)
    except SpaceError as error:
        raise BadConfig(f"a known configuration is in the searched space, but {error}") from None
    complete = flatten(config.identity(algorithm, {**config.fixed, **values}).hyperparameters)
    for name, value in given.items():
        if name not in complete and name not in (known := config.space_in(algorithm).flat()):
            raise BadConfig(
                f"a known configuration names hyperparameters of {config.task}, but {name} is none{near(name, known)}"
            )
        if name not in complete or complete[name] != value:
            raise BadConfig(
                f"a known configuration has what the study fixes, but its {name} is {value!r} and the study's is "
                f"{complete.get(name)!r}; --set {name}={value!r}, or search it"
            )
    return values


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
        algorithm: the class of its tasks.
        env: see `Task`.
        trials: None for TRIALS, or all points of a grid.
        epochs: see `check_epochs`.
        seed: of all trainings and suggestions.
        fixed: hyperparameters that are not searched, nested.
        priors: see `open_space`.
        options: other fields of `Config`.

    Raises:
        BadConfig: the study makes no sense.
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
        epochs=check_epochs(epochs),
        trials=[TRIALS if trials is None else trials],
        **options,
    )
    for name in ("generation", "cohort"):
        check_count(name, getattr(config, name))
    for each in config.environments:
        most = config.most_epochs(algorithm, each)
        if most is not None and config.epochs[1] > most:
            raise BadConfig(f"{each['id']} has {most} epochs, but --epochs ends at {config.epochs[1]}; end at {most}")
    check_count("trials", config.trials[0])
    config = replace(config, sampler=sampler_name(config.sampler))
    if config.sampler == "grid" and trials is None:
        config = replace(config, trials=[grid_size(config)])
    check_at_once(config)
    choose("scheduler", config.scheduler, SCHEDULERS)
    check_sampler(config)
    check_objectives(config, algorithm)
    check_racing(config)
    check_across(config)
    if config.scheduler == "hyperband" and len(config.rungs) == 1:
        raise BadConfig(
            f"hyperband starts brackets on different rungs, but epochs {config.epochs[1]} make only one; "
            f"write low:high, such as 1:{max(3, config.epochs[1])}, or use --scheduler none"
        )
    if config.scheduler == "none":
        return replace(config, epochs=[config.epochs[1], *config.epochs[1:]])
    return config


def check_objectives(config: Config, algorithm: type[Task]) -> None:
    """Raise BadConfig if the study cannot have its objectives.

    A task names its metrics only in its first epoch, so one epoch is trained if an objective is a metric of the task.
    """
    objectives = objectives_of(config)
    if len(objectives) > 1 and not KNOWN[config.sampler].objectives:
        several = ", ".join(name for name, sampler in KNOWN.items() if sampler.objectives)
        raise BadConfig(f"sampler {config.sampler} takes one objective, but got {len(objectives)}; use {several}")
    info = [f"{evaluated}info.{name}" for evaluated in ("", EVALUATED) for name in config.env.get("info", {})]
    directed = known_objectives(own_objective(algorithm))
    always = [*ALWAYS, *info] if own_objective(algorithm) == DEFAULT else []
    own = objectives.keys() - {*directed, *always}
    if own:
        known = [*directed, *always, *config.make_task(algorithm, config.fixed, None).fit(1)]
        for name in sorted(own):
            if name.removeprefix(EVALUATED).startswith("info."):
                entry = name.removeprefix(EVALUATED).removeprefix("info.")
                raise BadConfig(f"objective {name} must be an entry of info that is reported; add --info {entry}")
            choose("an objective", name, list(dict.fromkeys(known)))


def open_space(algorithm: type[Task], env: EnvSpec, fixed: Mapping[str, Any], priors: Mapping[str, str]) -> Space:
    """Return the space of all open dimensions and those with a prior."""
    for name in algorithm.learner.without_effect(env, flatten(fixed)):
        if name in priors:
            raise BadConfig(f"{algorithm.name}: {name} changes nothing in {env.id}, but has a prior; leave it out")
    open = with_priors(algorithm.learner.open_space(env, fixed), priors)
    searched = open.searched()
    for row in open.rows:
        if row.path in priors and row.path not in searched.flat():
            raise BadConfig(
                f"the prior of {row.path} needs {' and '.join(map(str, row.conditions))}, which is not so; "
                "set that, or search it too"
            )
    return searched


def defaults_except(space: Space, search: Sequence[str]) -> Nested:
    """Return the defaults of all hyperparameters but `search`, where they apply.

    Raises:
        SpaceError: a name of `search` is not in the space, has one value, or applies only to other values than the
            defaults.
    """
    flat = space.flat()
    for name in search:
        if name not in flat:
            raise SpaceError(f"search: {name!r} is not a hyperparameter that is open{near(name, flat)}")
        if isinstance(flat[name], Fixed):
            raise SpaceError(
                f"search: {name} has one value here, {flat[name].expects}; leave it out, or give it a prior"
            )
    values: dict[str, Value] = {}
    for row in space.rows:
        decided = [condition for condition in row.conditions if condition.path not in search]
        if not (applies := all(condition.holds(values) for condition in decided)) and row.path in search:
            raise SpaceError(
                f"search: {row.path} applies only when {' and '.join(map(str, row.conditions))}, which is "
                "not the default; fix that, or search it too"
            )
        if applies and row.path not in search and (default := row.dimension.default) is not REQUIRED:
            values[row.path] = default
    return unflatten(values)


def make_population(
    algorithm: type[Task],
    env: Any,
    *,
    epochs: int,
    interval: int | None = None,
    population: int = 8,
    seed: int = 0,
    fixed: Mapping[str, Any] | None = None,
    exploit: str = EXPLOITS[0],
    explore: str = EXPLORES[0],
    perturb: Sequence[str] = (),
    sampler: str | None = None,
    priors: Mapping[str, str] | None = None,
    **options: Any,
) -> Config:
    """Return the configuration of a study by population based training.

    A structural hyperparameter cannot change while a member trains. It is fixed, to its default unless `fixed` sets it,
    so that the whole population trains as one cohort.

    Args:
        algorithm: the class of its tasks.
        env: see `Task`.
        epochs: of the whole training.
        interval: epochs per generation; None for INTERVAL, or all of fewer epochs.
        population: number of members.
        seed: of all trainings and suggestions.
        fixed: hyperparameters that are not searched, nested.
        exploit: one of EXPLOITS.
        explore: one of EXPLORES.
        perturb: dotted names of what explore may change; empty for all that is searched. Other searched
            hyperparameters differ between members from the start, and are copied unchanged.
        sampler: None or "random".
        priors: see `open_space`.
        options: those of `seed_options`; a population maximizes the return.
    """
    from ...tasks.envs import EnvSpec  # imports gymnasium

    check_count("population", population, MOST_AT_ONCE)
    if population < 2:
        raise BadConfig("the members of a population copy each other, but --population is 1; give it at least 2")
    interval = min(INTERVAL, epochs) if interval is None else interval
    if interval > epochs:
        raise BadConfig(
            f"a population copies after each interval, but --interval {interval} is above the {epochs} epochs in all; "
            "lower it"
        )
    if options.get("objectives", own_objective(algorithm)) != own_objective(algorithm):
        raise BadConfig(
            "the members of a population copy those with the best return, but --objective asks for "
            f"{', '.join(options['objectives'])}; use another --scheduler"
        )
    if "racing" in options:
        raise BadConfig(
            "--racing stops configurations that cannot win, but a population trains all its members to the end; "
            "leave it out, or use another --scheduler"
        )
    if sampler not in (None, "random"):
        raise BadConfig(f"a population starts with hyperparameters drawn at random, but --sampler is {sampler}")
    space, priors = algorithm.learner.space_in(EnvSpec.of(env)), priors or {}
    for name in {**dict.fromkeys(perturb), **priors}:
        if name in space.flat() and space.flat()[name].structural:
            raise BadConfig(
                f"a population changes hyperparameters while it trains, but {name} is structural: it decides shapes or "
                f"loop counts; set one value for all (--set {name}=...), or search it by halving"
            )
    structure = space.structure(algorithm(env, seed=seed).init(**(fixed or {})).hyperparameters or {})
    decided = {name: value for name, value in structure.items() if not name.endswith(ENABLED)}
    decided |= {name: None for name in space.flat() if structure.get(name + ENABLED) is False and name not in priors}
    options |= {"exploit": choose("exploit", exploit, EXPLOITS), "explore": choose("explore", explore, EXPLORES)}
    config = make_config(
        algorithm,
        env,
        trials=population,
        epochs=[interval, epochs],
        seed=seed,
        fixed=unflatten({**flatten(fixed or {}), **decided}),
        priors=priors,
        sampler="random",
        scheduler="pbt",
        generation=population,
        cohort=population,
        options=options,
    )
    maybes = [name for name, dimension in config.searched.flat().items() if isinstance(dimension, Maybe)]
    searched = config.searched.fix({name + ENABLED: True for name in maybes})
    config = replace(config, space=searched.priors(), epochs=[interval, epochs, 1])
    for name in perturb:
        choose("what is perturbed", name, config.open)
    if not config.open:
        raise BadConfig("a population needs something to explore, but every hyperparameter is fixed; leave one open")
    config = replace(config, options={**options, "perturb": list(perturb) or config.open})
    check_pb2(config)
    return config


def load_task(config: Config) -> type[Task]:
    """Return the algorithm of a stored study.

    Raises:
        StudyMismatch: another version of the algorithm is installed.
        StoreError: a package that the study needs is not installed.
    """
    from ...tasks import load

    algorithm = load(config.task)
    if algorithm.version != config.task_version:
        raise StudyMismatch(
            f"a study resumes with the version of its task that it started with, {config.task} "
            f"{config.task_version}, but {algorithm.version} is installed; use the Rekindle that made the "
            "study, or another name for a new one"
        )
    try:
        check_pb2(config)
        check_sampler(replace(config, sampler=sampler_name(config.sampler)))
    except BadConfig as error:
        raise StoreError(f"a study resumes with what it started with, but {error}") from None
    return algorithm
