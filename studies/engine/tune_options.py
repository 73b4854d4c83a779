"""Configurations of new studies, from the options of `rekindle tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ...tasks.checkpoint.retention import keep_of
from ..samplers.registry import GOOD, KNOWN, OWN_GOOD, sampler_name
from ..schedulers.pbt import EXPLOITS, EXPLORES
from ..schedulers.seeds import seed_options
from ..study.config import (
    GENERATION,
    OWN_GENERATION,
    BadConfig,
    Config,
    check_count,
    check_epochs,
    default_epochs,
    default_scheduler,
    parse_budget,
    parse_epochs,
    parse_goal,
    parse_weight,
)
from ..study.durations import parse_duration
from ..study.environments import TOGETHER, across_options, check_alike, races
from ..study.objectives import DEFAULT, objective_options, own_objective
from ..study.searched import defaults_except, known_values, open_space, with_preset
from .checked_config import MEMBERS, make_config, make_population

if TYPE_CHECKING:
    from ...tasks.task import Task


def study_config(
    algorithm: type[Task],
    env: Any,
    *,
    epochs: int | str | Sequence[int] | None = None,
    fixed: Mapping[str, Any] | None = None,
    search: str | Sequence[str] = (),
    priors: Mapping[str, str] | None = None,
    trials: int | None = None,
    seed: int = 0,
    scheduler: str | None = None,
    sampler: str | None = None,
    generation: int | None = None,
    cohort: int = 4,
    objective: str | Sequence[str] = (),
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
    known: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    preset: str | None = None,
    population: int = MEMBERS,
    interval: int | None = None,
    exploit: str = EXPLOITS[0],
    explore: str = EXPLORES[0],
    perturb: str | Sequence[str] = (),
) -> Config:
    """Return the configuration of a study from the options of `rekindle tune`.

    Args:
        algorithm: task class.
        env: see `Task`; or a list of several environments, with `across`.
        epochs: text, see `parse_epochs`, or numbers, see `check_epochs`; None for 1 up to `default_epochs`.
        fixed: hyperparameters that are not searched, nested.
        search: dotted names of the only hyperparameters to search; empty for all open ones.
        priors: see `open_space`.
        trials: see `make_config`.
        seed: seed of all trainings and suggestions.
        scheduler: one of SCHEDULERS; None for `default_scheduler`.
        sampler: its name; None for tpe, or for random in a population.
        generation: see `Config`; None for what suits the scheduler.
        cohort: see `Config`.
        objective: see `objective_options`.
        seeds: seeds per configuration, see `seed_options`.
        aggregate: how the seeds' returns are aggregated.
        across: how results in several environments are aggregated on one scale, see `study.environments`.
        racing: whether seeds race; with several environments they race if the scheduler can.
        grid_points: points per range, for the sampler grid.
        snapshots: which checkpoints are kept, see `Task`.
        budget: budget of the whole study, such as 200epochs, 5e6steps or 2h; a rerun with more continues.
        goal: such as return:475; the study stops once fresh episodes confirm it, see `workers.goals`.
        plateau: number of trials without an improvement after which the study stops, see `engine.bounds`.
        trial_time: seconds, or text such as 2h, after which a trial fails; its share of a cohort's time counts.
        weight: share of the workers that train several studies, 1 unless given; see `workers.sharing`.
        known: hyperparameters of the first trials, nested or by dotted name.
        preset: name of known-good values for the first trial, see `study.presets`; hyperparameters that are not
            searched keep them.
        population: see `make_population`, like interval, exploit, explore and perturb; for scheduler pbt only.
        interval: see `make_population`.
        exploit: one of EXPLOITS.
        explore: one of EXPLORES.
        perturb: dotted names that explore may change.

    Raises:
        BadConfig: the options contradict each other, or do not suit the task.
        ValueError: the task or its space does not allow a value.
    """
    fixed, priors, known = fixed or {}, priors or {}, [known] if isinstance(known, Mapping) else known
    search, objective, perturb = listed(search), listed(objective), listed(perturb)
    environments = list(env) if isinstance(env, list | tuple) and env else [env]
    first_env = environments[0]
    several = _as_json(algorithm, environments, fixed) if len(environments) > 1 or across is not None else []
    racing = racing or races(len(several), seeds, scheduler)
    scheduler = scheduler or default_scheduler(racing)
    _check_population(scheduler, trials, population, interval, exploit, explore, perturb)
    if preset is not None:
        fixed, first = with_preset(algorithm, first_env, preset, fixed, priors, search, scheduler)
        known = [first, *known]
    rungs = _rungs(algorithm, environments, epochs, scheduler)
    if search:
        fixed = _fix_others(algorithm, first_env, search, fixed, priors)
    _check_snapshots(snapshots)
    if several:
        options = across_options(several, across, aggregate, seeds, racing)
    else:
        options = seed_options(seeds, aggregate, racing)
    options |= objective_options(objective, own_objective(algorithm))
    options |= _optional(grid_points, snapshots, budget, goal, plateau, weight, trial_time)
    is_single = len(options.get("objectives", DEFAULT)) == 1
    if is_single and scheduler in OWN_GOOD and sampler_name(sampler or "tpe") == "tpe":
        options[GOOD] = OWN_GOOD[scheduler]
    check_bounds(options, scheduler, algorithm)
    common: dict[str, Any] = {"seed": seed, "fixed": fixed, "priors": priors}
    if scheduler == "pbt":
        common |= {"population": population, "interval": interval, "exploit": exploit, "explore": explore}
        common |= {"perturb": perturb, "sampler": sampler}
        made = make_population(algorithm, first_env, epochs=rungs[1], **common, **options)
    else:
        if generation is None:
            generation = OWN_GENERATION.get(scheduler, TOGETHER if several else GENERATION)
        common |= {"scheduler": scheduler, "sampler": sampler or "tpe", "generation": generation, "cohort": cohort}
        made = make_config(algorithm, first_env, trials=trials, epochs=rungs, options=options, **common)
        _check_spaces_alike(made, algorithm, priors, fixed)
    return _with_known(made, algorithm, known)


def _as_json(algorithm: type[Task], environments: Sequence[Any], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [algorithm(env, **fixed).env.to_json() for env in environments]


def _optional(
    grid_points: int | None,
    snapshots: str | None,
    budget: str | None,
    goal: str | None,
    plateau: int | None,
    weight: float | str | None,
    trial_time: float | str | None,
) -> dict[str, Any]:
    """Return those options of the configuration that were given, parsed."""
    options = {
        "grid_points": grid_points,
        "snapshots": snapshots,
        "budget": parse_budget(budget) if budget else None,
        "goal": parse_goal(goal) if goal else None,
        "plateau": plateau,
        "weight": None if weight is None else parse_weight(str(weight)),
        "trial_time": None if trial_time is None else _seconds(trial_time),
    }
    return {name: value for name, value in options.items() if value is not None}


def _rungs(
    algorithm: type[Task], environments: Sequence[Any], epochs: int | str | Sequence[int] | None, scheduler: str
) -> list[int]:
    """Return [low, high, base] for the option --epochs, or for its default."""
    if epochs is None:
        return check_epochs(sorted({1, default_epochs(algorithm, environments)}), scheduler)
    numbers = [epochs] if isinstance(epochs, int) else epochs
    rungs = parse_epochs(numbers, scheduler) if isinstance(numbers, str) else check_epochs(numbers, scheduler)
    if scheduler == "pbt" and rungs[0] != rungs[1]:
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


def _check_snapshots(snapshots: str | None) -> None:
    """Raise ValueError if checkpoints would lack the replay buffer."""
    if snapshots is not None and (keep := keep_of(snapshots)) is not None and not keep.replay:
        raise ValueError(
            f"a study's trials resume with the same bits from one rung to the next, but --snapshots {snapshots} leaves "
            "replay buffers out; leave no-replay out, which only `rekindle train` takes"
        )


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
    own = own_objective(algorithm)
    objectives = options.get("objectives", own)
    if "steps" in options.get("budget", {}) and "epoch_steps" not in algorithm.learner.hyperparameters.flat():
        raise BadConfig(f"--budget counts steps of an epoch, but {algorithm.name} names none; write 200epochs")
    if "goal" in options and (own != DEFAULT or objectives != DEFAULT):
        raise BadConfig(
            f"a goal is a return, which fresh episodes confirm, but the objective is {', '.join(objectives)}; leave "
            "--goal out"
        )
    if "plateau" not in options:
        return
    check_count("plateau", options["plateau"])
    if scheduler == "pbt" or len(objectives) > 1:
        what = (
            "the members of a population depend on each other" if scheduler == "pbt" else "a Pareto front has no best"
        )
        raise BadConfig(f"a plateau counts trials since the best one, but {what}; leave --plateau out")


def _check_population(
    scheduler: str,
    trials: int | None,
    population: int,
    interval: int | None,
    exploit: str,
    explore: str,
    perturb: Sequence[str],
) -> None:
    """Raise BadConfig for population options or trials that would have no effect."""
    if scheduler == "pbt":
        if trials not in (None, population):
            raise BadConfig(
                f"--trials is {trials}, but a population trains its members, {population}; use --population {trials}, "
                "or leave --trials out"
            )
        return
    is_given = {
        "population": population != MEMBERS,
        "interval": interval is not None,
        "perturb": bool(perturb),
        "exploit": exploit != EXPLOITS[0],
        "explore": explore != EXPLORES[0],
    }
    if names := " and ".join(f"--{name}" for name in is_given if is_given[name]):
        raise BadConfig(
            f"only --scheduler pbt takes {names}, but the scheduler is {scheduler}; add --scheduler pbt, or leave out "
            "what is for populations"
        )


def _seconds(trial_time: float | str) -> float:
    """Return a trial time in seconds."""
    try:
        return parse_duration(trial_time if isinstance(trial_time, str) else f"{trial_time:f}")
    except ValueError as error:
        raise BadConfig(f"--trial-time {error}") from None


def _with_known(config: Config, algorithm: type[Task], known: Sequence[Mapping[str, Any]]) -> Config:
    """Return the configuration with known hyperparameters for its first trials.

    Raises:
        BadConfig: they are outside the searched space, or more than there are trials.
    """
    if not known:
        return config
    if not KNOWN[config.sampler].defaults or len(known) > config.trials[0]:
        rule = "each takes one trial" if KNOWN[config.sampler].defaults else "a grid tries its own points only"
        raise BadConfig(
            f"{rule}, but {len(known)} known configurations are given for {config.trials[0]} trials; leave some out"
        )
    first = [known_values(config, algorithm, flatten(each)) for each in known]
    return replace(config, options={**config.options, "known": first})
