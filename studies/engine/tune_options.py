"""Configurations of new studies, from the options of `rekindle tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from ...spaces import flatten, unflatten
from ..errors import BadConfig
from ..methods import POPULATION, sampling, scheduling
from ..options.entries import check_count
from ..options.option import Group, with_keywords
from ..options.study_options import DEFAULTS, STUDY, StudyOptions, entries_of
from ..samplers.registry import sampler_name
from ..schedulers.seeds import seed_options
from ..storage.rows import is_epoch_steps
from ..study.config import (
    EVAL_STEPS,
    GENERATION,
    GOOD,
    SIZED,
    WIDENS,
    Config,
    check_epochs,
    choose,
    default_epochs,
    default_scheduler,
    parse_epochs,
)
from ..study.environments import TOGETHER, across_options, check_alike, races
from ..study.objectives import DEFAULT, objective_options, own_objective
from ..study.portfolio import portfolio_option
from ..study.searched import defaults_except, known_values, open_space, with_preset
from .checked_config import make_config, make_population
from .evaluating import eval_steps_of
from .sizing import sizes

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
    sized: Mapping[str, Any] | None = None,
    **options: Unpack[StudyOptions],
) -> Config:
    """Return the configuration of a study from the options of `rekindle tune`.

    Args:
        algorithm: task class.
        env: see `Task`; or a list of several environments, with `across`.
        epochs: text, see `parse_epochs`, or numbers, see `check_epochs`; None for 1 up to `default_epochs`.
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
    search, seeds, sampler = listed(options["search"]), options["seeds"], options["sampler"]
    environments = list(env) if isinstance(env, list | tuple) and env else [env]
    first_env = environments[0]
    several = _as_json(algorithm, environments, fixed) if len(environments) > 1 or options["across"] is not None else []
    names_searched = bool(search or priors)
    if sized is not None:
        trials, epoch_steps = sizes(sized)
        options["trials"] = max(trials, options["trials"] or 0)
        if "algorithm" not in fixed:
            priors = {**priors, "algorithm": f"choices({[*epoch_steps]})"}
        fixed = unflatten({**{f"{name}.epoch_steps": count for name, count in epoch_steps.items()}, **flatten(fixed)})
    racing = options["racing"] or (not options["constraint"] and races(len(several), seeds, options["scheduler"]))
    scheduler = options["scheduler"] or default_scheduler(racing)
    _check_options_of_populations(scheduler, options)
    if options["preset"] is not None:
        fixed, first = with_preset(algorithm, first_env, options["preset"], fixed, priors, search, scheduler)
        known = [first, *known]
    rungs = _rungs(algorithm, environments, epochs, scheduler)
    if search:
        fixed = _fix_others(algorithm, first_env, search, fixed, priors)
    if several:
        stored = across_options(several, options["across"], options["aggregate"], seeds, racing)
    else:
        stored = seed_options(seeds, options["aggregate"], racing)
    stored |= objective_options(listed(options["objective"]), own_objective(algorithm)) | entries_of(options)
    is_single = len(stored.get("objectives", DEFAULT)) == 1
    if is_single and (good := scheduling(scheduler).good) and sampling(sampler_name(sampler or "tpe")).pruned:
        stored[GOOD] = good
    if sized is not None:
        stored[SIZED] = dict(sized)
        stored.pop("budget", None)  # it gave the size; a study that it ended would have no answer
    check_bounds(stored, scheduler, algorithm)
    common: dict[str, Any] = {"seed": options["seed"], "fixed": fixed, "priors": priors}
    if scheduling(scheduler).population:
        common |= {name: options[name] for name in ("population", "interval", "exploit", "explore")}
        common |= {"perturb": listed(options["perturb"]), "sampler": sampler, "scheduler": scheduler}
        made = make_population(algorithm, first_env, epochs=rungs[1], **common, **stored)
    else:
        generation = options["generation"]
        if generation is None:
            generation = scheduling(scheduler).generation or (TOGETHER if several else GENERATION)
        common |= {"scheduler": scheduler, "sampler": sampler or "tpe", "generation": generation}
        # Members of a cohort share their structure, and so an algorithm that is chosen.
        cohort = min(2, options["cohort"]) if algorithm.starts(first_env) else options["cohort"]
        common |= {"cohort": cohort, "trials": options["trials"]}
        made = make_config(algorithm, first_env, epochs=rungs, options=stored, **common)
        _check_spaces_alike(made, algorithm, priors, fixed)
    made = _with_starts(_with_known(made, algorithm, known), algorithm)
    choose("portfolio", options["portfolio"], PORTFOLIO)
    decided = options["portfolio"] == "off" or names_searched or several or racing or "known" in made.options
    if made.env and made.sampling.defaults and not (names_searched or several or made.scheduling.population):
        made = replace(made, options={**made.options, WIDENS: True})
    if not decided and made.scheduler in OPENING and made.sampling.defaults:
        made = replace(made, options={**made.options, **portfolio_option(made, algorithm)})
    if (steps := eval_steps_of(made, algorithm)) is not None:  # last: they depend on how many trials reach each rung
        made = replace(made, options={**made.options, EVAL_STEPS: steps})
    return made


def _as_json(algorithm: type[Task], environments: Sequence[Any], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [algorithm(env, **fixed).env.to_json() for env in environments]


def _rungs(
    algorithm: type[Task], environments: Sequence[Any], epochs: int | str | Sequence[int] | None, scheduler: str
) -> list[int]:
    """Return [low, high, base] for the option --epochs, or for its default."""
    if epochs is None:
        return check_epochs(sorted({1, default_epochs(algorithm, environments)}), scheduler)
    numbers = [epochs] if isinstance(epochs, int) else epochs
    rungs = parse_epochs(numbers, scheduler) if isinstance(numbers, str) else check_epochs(numbers, scheduler)
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
    check_count("plateau", options["plateau"])
    population = scheduling(scheduler).population
    if population or len(objectives) > 1:
        what = "the members of a population depend on each other" if population else "a Pareto front has no best"
        raise BadConfig(f"a plateau counts trials since the best one, but {what}; leave --plateau out")


def _check_options_of_populations(scheduler: str, options: Mapping[str, object]) -> None:
    """Raise BadConfig for population options or trials that would have no effect."""
    if scheduling(scheduler).population:
        trials, population = options["trials"], options["population"]
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
    return replace(config, options={**config.options, "known": starts}) if starts else config


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
    return replace(config, options={**config.options, "known": first})
