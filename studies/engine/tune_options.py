"""Configurations of new studies, from the options of `rekindle tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from ...spaces import flatten, unflatten
from ..errors import BadConfig
from ..methods import POPULATION, sampling, scheduling
from ..options.option import Group, with_keywords
from ..options.study_options import DEFAULTS, MEMBERS, STUDY, StudyOptions, entries_of
from ..samplers.registry import sampler_name
from ..schedulers.seeds import seed_options
from ..storage.rows import is_epoch_steps
from ..study.config import (
    EVAL_STEPS,
    GENERATION,
    GOOD,
    OPENS,
    SIZED,
    WIDENS,
    Config,
    check_epochs,
    choose,
    default_epochs,
    default_scheduler,
    parse_epochs,
)
from ..study.environments import TOGETHER, across_options, check_alike, is_across, races
from ..study.objectives import DEFAULT, objective_options, own_objective, ranks_by_score
from ..study.portfolio import FEWEST, portfolio_option
from ..study.repeats import default_repeats, repeats_option
from ..study.searched import defaults_except, known_values, open_space, with_preset
from .checked_config import make_config, make_population
from .evaluating import eval_steps_of
from .sizing import Sized, sizes

if TYPE_CHECKING:
    from ...tasks.task import Task

PORTFOLIO = ("auto", "off")  # values of --portfolio
OPENING = ("adaptive", "halving", "none")  # schedulers whose first bracket may be a portfolio


@with_keywords(StudyOptions)
def study_config(
    algorithm: type[Task],
    env: Any,
    *,
    epochs: int | str | Sequence[int] | None = None,
    fixed: Mapping[str, Any] | None = None,
    priors: Mapping[str, str] | None = None,
    known: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    sized: Sized | None = None,
    **options: Unpack[StudyOptions],
) -> Config:
    """Return the configuration of a study from the options of `rekindle tune`.

    Args:
        algorithm: task class.
        env: see `Task`; or a list of several environments, with `across`.
        epochs: see `parse_epochs`; None for 1 up to `default_epochs`.
        fixed: hyperparameters that are not searched, nested.
        priors: see `open_space`.
        known: hyperparameters of the first trials, nested or by dotted name.
        sized: what the size of a study follows from whose budget alone is given, see `sizing`.
        options: see `StudyOptions`. The text of an option has the form that the command line takes, such as 2h.

    Raises:
        BadConfig: the options contradict each other, or do not suit the task.
        ValueError: the task or its space does not allow a value.
    """
    options = {**DEFAULTS, **options}
    fixed, priors, known = fixed or {}, priors or {}, [known] if isinstance(known, Mapping) else known
    environments = list(env) if isinstance(env, list | tuple) and env else [env]
    several = _as_json(algorithm, environments, fixed) if len(environments) > 1 or options["across"] is not None else []
    search = listed(options["search"])
    is_searched_by_name = bool(search or {*priors} - {"algorithm"})  # each algorithm searches what it does

    # What is searched, and where it begins.
    if sized is not None:
        trials, epoch_steps = sizes(sized)
        options["trials"] = max(trials, options["trials"] or 0)
        if "algorithm" not in fixed:
            priors = {**priors, "algorithm": f"choices({[*epoch_steps]})"}
        fixed = unflatten({**{f"{name}.epoch_steps": count for name, count in epoch_steps.items()}, **flatten(fixed)})
    racing = options["racing"] or (
        not options["constraint"] and races(len(several), options["seeds"], options["scheduler"])
    )
    scheduler = options["scheduler"] or default_scheduler(racing)
    _check_options_of_populations(scheduler, options)
    if options["preset"] is not None:
        fixed, first = with_preset(algorithm, environments[0], options["preset"], fixed, priors, search, scheduler)
        known = [first, *known]
    rungs = _rungs(algorithm, environments, epochs, scheduler)
    if search:
        fixed = _fix_others(algorithm, environments[0], search, fixed, priors)

    # The configuration, without what follows from it.
    stored = _stored_options(algorithm, options, several, scheduler, racing, sized)
    common: dict[str, Any] = {"seed": options["seed"], "fixed": fixed, "priors": priors, "scheduler": scheduler}
    if scheduling(scheduler).population:
        config = _population(algorithm, environments[0], rungs[1], options, stored, common)
    else:
        config = _search(algorithm, environments[0], rungs, options, stored, common, bool(several))
        _check_spaces_alike(config, algorithm, priors, fixed)

    choose("portfolio", options["portfolio"] or PORTFOLIO[0], PORTFOLIO)
    config = _with_known(config, algorithm, known)
    # Whether all hyperparameters are searched, from the defaults on:
    whole = config.sampling.defaults and not (is_searched_by_name or several)
    opens = whole and not known and options["portfolio"] != "off" and not racing and config.scheduler in OPENING
    return _with_consequences(config, algorithm, options["repeats"], whole, opens)


def _with_consequences(config: Config, algorithm: type[Task], repeats: int | None, whole: bool, opens: bool) -> Config:
    """Return a configuration with what follows from the rest of it.

    These are the first trials, wider ranges, repeats, and last, as they depend on how many trials reach each rung, the
    steps of evaluations.

    Args:
        config: configuration without them.
        algorithm: task class.
        repeats: number of trials that repeat others; None for the default.
        whole: whether all is searched, from the defaults on.
        opens: whether the first trials may be a portfolio.
    """
    if config.env and whole and not config.scheduling.population:
        config = _with(config, {WIDENS: True})
    no_repeats = _no_repeats(config)
    last = default_repeats(config, no_repeats) if repeats is None else repeats
    portfolio = portfolio_option(config, algorithm, last) if opens else {}
    config = _with(config, portfolio) if portfolio else _with_starts(config, algorithm)
    if opens and WIDENS in config.options and "known" not in config.options and config.trials[0] >= FEWEST:
        config = _with(config, {OPENS: True})
    config = _with(config, repeats_option(config, repeats, no_repeats))
    steps = eval_steps_of(config, algorithm)
    return config if steps is None else _with(config, {EVAL_STEPS: steps})


def _no_repeats(config: Config) -> str | None:
    """Return why no trial can repeat the best ones, or None."""
    if not config.scheduling.adapts:
        return f"only the scheduler adaptive waits for them, and not {config.scheduler}"
    if config.options.get("seeds", 1) > 1 or is_across(config):
        return "all trials have several trainings already (--seeds, or several environments)"
    if not ranks_by_score(config):
        return "means over seeds rank by one objective without constraints"
    if config.sampling.enumerates:
        return f"the sampler {config.sampler} tries each point once"
    if SIZED in config.options:
        return "the confirmation of a study that is given time alone trains them again"
    return None


def _stored_options(
    algorithm: type[Task],
    options: StudyOptions,
    several: Sequence[Mapping[str, Any]],
    scheduler: str,
    racing: bool,
    sized: Sized | None,
) -> dict[str, Any]:
    """Return what a configuration stores of the options."""
    if several:
        stored = across_options(several, options["across"], options["aggregate"], options["seeds"], racing)
    else:
        stored = seed_options(options["seeds"], options["aggregate"], racing)
    stored |= objective_options(listed(options["objective"]), own_objective(algorithm)) | entries_of(options)
    is_single = len(stored.get("objectives", DEFAULT)) == 1
    good = scheduling(scheduler).good
    if is_single and good and sampling(sampler_name(options["sampler"] or "tpe")).pruned:
        stored[GOOD] = good
    if sized is not None:
        stored[SIZED] = sized.to_json()
        stored.pop("budget", None)  # it gave the size; a study that it ended would have no answer
    check_bounds(stored, scheduler, algorithm)
    return stored


def _population(
    algorithm: type[Task],
    env: Any,
    epochs: int,
    options: StudyOptions,
    stored: Mapping[str, Any],
    common: Mapping[str, Any],
) -> Config:
    """Return the configuration of a population."""
    members: dict[str, Any] = {
        name: options[name]
        for name in ("population", "interval", "exploit", "explore", "sampler")
        if options[name] is not None
    }
    members["perturb"] = listed(options["perturb"])
    return make_population(algorithm, env, epochs=epochs, **members, **common, **stored)


def _search(
    algorithm: type[Task],
    env: Any,
    rungs: Sequence[int],
    options: StudyOptions,
    stored: Mapping[str, Any],
    common: Mapping[str, Any],
    several: bool,
) -> Config:
    """Return the configuration of a study that is no population."""
    generation = options["generation"]
    if generation is None:
        generation = scheduling(common["scheduler"]).generation or (TOGETHER if several else GENERATION)
    # Members of a cohort share their structure, and so an algorithm that is chosen.
    cohort = min(2, options["cohort"]) if algorithm.starts(env) else options["cohort"]
    size: dict[str, Any] = {"trials": options["trials"], "generation": generation, "cohort": cohort}
    return make_config(
        algorithm, env, epochs=rungs, sampler=options["sampler"] or "tpe", options=stored, **size, **common
    )


def _with(config: Config, options: Mapping[str, Any]) -> Config:
    """Return the configuration with further options."""
    return replace(config, options={**config.options, **options})


def _as_json(algorithm: type[Task], environments: Sequence[Any], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [algorithm(env, **fixed).env.to_json() for env in environments]


def _rungs(
    algorithm: type[Task], environments: Sequence[Any], epochs: int | str | Sequence[int] | None, scheduler: str
) -> list[int]:
    """Return [low, high, base] for the option --epochs, or for its default."""
    if epochs is None:
        return check_epochs(sorted({1, default_epochs(algorithm, environments)}), scheduler)
    rungs = parse_epochs(epochs, scheduler)
    if scheduling(scheduler).population and rungs[0] != rungs[1]:
        raise BadConfig(
            f"all members of a population train for the same number of epochs, but --epochs is {rungs[0]}:{rungs[1]}; "
            f"use --epochs {rungs[1]}, and --interval for the epochs between comparisons"
        )
    return rungs


def _fix_others(
    algorithm: type[Task], env: Any, search: Sequence[str], fixed: Mapping[str, Any], priors: Mapping[str, str]
) -> dict[str, Any]:
    """Return `fixed` and the defaults of what is not searched."""
    from ...tasks.envs import EnvSpec  # imports gymnasium

    if twice := sorted({name for name in search if search.count(name) > 1}):
        raise BadConfig(f"--search names {twice[0]} twice; leave one out")
    if both := sorted({*search} & {*flatten(fixed)}):
        raise BadConfig(
            f"a hyperparameter is fixed or searched, but {both[0]} is both; leave out --set {both[0]} or "
            f"--search {both[0]}"
        )
    defaults = defaults_except(open_space(algorithm, EnvSpec.of(env), fixed, priors), [*search, *priors])
    return dict(unflatten(flatten(defaults) | flatten(fixed)))


def _check_spaces_alike(
    config: Config, algorithm: type[Task], priors: Mapping[str, str], fixed: Mapping[str, Any]
) -> None:
    """Raise BadConfig if the searched space differs between the environments."""
    from ...tasks.envs import EnvSpec  # imports gymnasium

    if len(config.environments) > 1:
        check_alike(config, [open_space(algorithm, EnvSpec.of(env), fixed, priors) for env in config.environments])


def listed(names: str | Sequence[str]) -> Sequence[str]:
    """Return names as a sequence; a string is a single name."""
    return [names] if isinstance(names, str) else names


def check_bounds(options: Mapping[str, Any], scheduler: str, algorithm: type[Task]) -> None:
    """Raise BadConfig if a study cannot have its bounds.

    Args:
        options: options of the study.
        scheduler: its scheduler.
        algorithm: task class.
    """
    objective = own_objective(algorithm)
    objectives = options.get("objectives", objective)
    if "steps" in options.get("budget", {}) and not any(map(is_epoch_steps, algorithm.learner.hyperparameters.flat())):
        raise BadConfig(f"--budget counts steps of an epoch, but {algorithm.name} names none; write 200epochs")
    if "goal" in options and (objective != DEFAULT or objectives != DEFAULT):
        raise BadConfig(
            f"a goal is a return, which fresh episodes confirm, but the objective is {', '.join(objectives)}; leave "
            "--goal out"
        )
    if "goal" in options and algorithm.learner.needs_env is False:
        raise BadConfig(
            f"a goal is a return, which fresh episodes confirm, but {algorithm.name} plays none, since it learns "
            "without an environment; leave --goal out"
        )
    if "plateau" not in options:
        return
    population = scheduling(scheduler).population
    if population or len(objectives) > 1:
        reason = "the members of a population depend on each other" if population else "a Pareto front has no best"
        raise BadConfig(f"a plateau counts trials since the best one, but {reason}; leave --plateau out")


def _check_options_of_populations(scheduler: str, options: Mapping[str, object]) -> None:
    """Raise BadConfig for sizes and population options without effect."""
    if scheduling(scheduler).population:
        trials = options["trials"]
        population = MEMBERS if options["population"] is None else options["population"]
        for name in ("generation", "cohort"):
            if options[name] not in (STUDY[name].default, population):
                raise BadConfig(
                    f"the members of a population, {population}, are suggested and trained together, but --{name} is "
                    f"{options[name]}; leave it out"
                )
        if trials not in (None, population):
            raise BadConfig(
                f"--trials is {trials}, but a population trains its members, {population}; use --population {trials}, "
                "or leave --trials out"
            )
        return
    of_populations = {name: option for name, option in STUDY.items() if option.group is Group.POPULATION}
    misplaced = [name for name, option in of_populations.items() if options[name] not in (option.default, [])]
    if names := " and ".join(f"--{name}" for name in misplaced):
        raise BadConfig(
            f"only --scheduler {POPULATION} takes {names}, but the scheduler is {scheduler}; add --scheduler "
            f"{POPULATION}, or leave out what is for populations"
        )


def _with_starts(config: Config, algorithm: type[Task]) -> Config:
    """Return the configuration with the task's first trials, after known ones.

    They are left out where they do not fit the study.
    """
    starts = list(config.options.get("known", []))
    if not config.sampling.defaults or config.scheduling.population:
        return config
    for start in algorithm.starts(config.env):
        with suppress(BadConfig):
            values = known_values(config, algorithm, start)
            if values not in starts and len(starts) < config.trials[0]:
                starts.append(values)
    return _with(config, {"known": starts}) if starts else config


def _with_known(config: Config, algorithm: type[Task], starts: Sequence[Mapping[str, Any]]) -> Config:
    """Return the configuration with known hyperparameters for its first trials.

    Raises:
        BadConfig: they are outside the searched space, or more than there are trials.
    """
    if not starts:
        return config
    if not config.sampling.defaults or len(starts) > config.trials[0]:
        rule = "each takes one trial" if config.sampling.defaults else "a grid tries its own points only"
        raise BadConfig(
            f"{rule}, but {len(starts)} known configurations are given for {config.trials[0]} trials; leave some out"
        )
    first = [known_values(config, algorithm, flatten(values)) for values in starts]
    return _with(config, {"known": first})
