"""Suggestions of hyperparameters for new trials.

An Optuna study is rebuilt from rows in memory for each call, and every trial gets a freshly seeded sampler. A
suggestion is thus a function of the configuration, the trial's number and the rows that the scheduler lets it see.

The study has all earlier trials, whether or not a sampler drew them. Those without a result yet, and those that were
planned together, are running trials: exhaustive samplers do not repeat them, TPE and GP keep their distance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from ...spaces import Space, SpaceError, flatten, unflatten
from ...spaces.drivers.to_optuna import distributions, from_params, params
from ...spaces.drivers.to_optuna import suggest as suggest_values
from ...tasks.runtime.warning_filters import changed_filters
from ..errors import BadConfig
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.objectives import constraints_of, excesses, objectives_of, point, ranks_by_score, violation
from ..study.plan import Plan, ScoreHistory
from .draw import constrained
from .learned import OWN, choose, follows
from .nsga import BRACKET
from .registry import LEARNED, make_sampler

ATTEMPTS = 100  # at a valid combination of values
OptunaParams = dict[int, dict[str, Any]]  # by trial: its hyperparameters with Optuna's names, which never change


def suggest(
    config: Config,
    trials: Iterable[Trial],
    plan: Plan,
    check: Callable[[Mapping[str, Any]], object] = lambda values: None,
    segments: Iterable[Segment] = (),
    optuna_params: OptunaParams | None = None,
    enqueued: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return nested hyperparameters for each trial that the plan asks for.

    The values are from the searched space, in the plan's order. A study's first trials take the known configurations,
    or else one trial takes the defaults (not in a grid). Some trials are chosen by the results of earlier studies. The
    first of every `config.cohort` trials is free; the others share its structure, unless the sampler enumerates
    structures or nothing else is searched.

    Args:
        config: the study's configuration.
        trials: trials on which the suggestions may depend.
        plan: the plan that asks for trials.
        check: raises ValueError for an invalid combination of values; others are then drawn.
        segments: rows with the values of several objectives and of constraints.
        optuna_params: cache of hyperparameters with Optuna's names, kept between calls for the same study.
        enqueued: hyperparameters that the user enqueued, by dotted name, by trial number.

    Raises:
        BadConfig: 100 draws for a trial were invalid.
    """
    assert plan.ask is not None
    sampler = config.sampling
    cohort, learned = config.cohort if sampler.structures else 1, bool(config.options.get(LEARNED))
    trials = [trial for trial in trials if trial.number < plan.ask.start] if sampler.learns or learned else []
    suggestions: list[dict[str, Any]] = []
    with quiet(optuna.logging.ERROR):
        study = optuna.create_study(directions=["maximize"] * len(objectives_of(config)))
        if sampler.learns:
            study.add_trials(history(config, trials, plan.seen, segments, optuna_params))
        first_trials, first = config.first_trials, OWN[1] if learned else 0
        before = {trial.number: flatten(trial.params) for trial in trials if learned}
        measured = _measured(config, segments) if learned else {}
        last = ((n, scores[-1][0]) for n, scores in plan.seen.items() if scores)
        violations = {key[0]: violation(constraints_of(config), measured[key]) for key in last if key in measured}
        results = sum(bool(scores) for scores in plan.seen.values())
        for index, number in enumerate(plan.ask):
            wanted = first_trials[number] if number < len(first_trials) else enqueued.get(number)
            values = None if wanted is None else unflatten(wanted)
            if values is None and number == first and sampler.defaults:
                values = _defaults(config.searched, check)
            if values is None and follows(config, number, results):
                values = choose(config, number, before, plan.seen, check, violations)
            if values is None:
                leader = suggestions[index - index % cohort] if index % cohort else None
                values = _draw(config, study, plan.bracket, number, leader, check)
            elif sampler.learns:
                _tell(config, study, values)
            suggestions.append(values)
            before[number] = flatten(values)
    return suggestions


@contextmanager
def quiet(verbosity: int) -> Iterator[None]:
    """Silence Optuna below a log level, and its experimental warnings."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(verbosity)
    try:
        with changed_filters():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def history(
    config: Config,
    trials: Iterable[Trial],
    score_history: ScoreHistory,
    segments: Iterable[Segment] = (),
    optuna_params: OptunaParams | None = None,
) -> list[FrozenTrial]:
    """Return trials in Optuna's form.

    A trial without a score has failed, or runs if it is absent from the scores. With TPE and one objective, a trial
    below the top rung is pruned. All others are complete. After a change of the space, bruteforce is not told of trials
    that are no points of the new one.

    Args:
        config: the study's configuration.
        trials: trials to convert.
        score_history: (epochs, score) pairs on each trial's rungs.
        segments: rows with the values of several objectives and of constraints.
        optuna_params: cache, see `suggest`.
    """
    space = config.searched
    objectives = objectives_of(config)
    several = len(objectives) > 1
    measured, constraints = _measured(config, segments), constraints_of(config)
    searched = space.flat().keys()
    spread = distributions(space)
    optuna_params = {} if optuna_params is None else optuna_params
    frozen = []
    for trial in trials:
        scores = score_history.get(trial.number, [])
        if trial.number not in optuna_params:
            in_space = {name: trial.params[name] for name in trial.params.keys() & searched}
            optuna_params[trial.number] = _as_params(config, in_space, spread)
        names = optuna_params[trial.number]
        if config.sampling.points and not _is_point(space, names):
            continue
        # Samplers other than TPE learn from complete trials only, and TPE too if there are several objectives.
        complete = bool(scores) and (not config.sampling.pruned or several or scores[-1][0] == config.rungs[-1])
        values = [score for _, score in scores[-1:]]
        last = measured.get((trial.number, scores[-1][0]), {}) if scores else {}
        if complete and several:
            values = point(objectives, last)
        runs = trial.number not in score_history and trial.state == "running"
        without = TrialState.RUNNING if runs else TrialState.FAIL
        state = TrialState.COMPLETE if complete else TrialState.PRUNED if scores else without
        frozen.append(
            create_trial(
                state=state,
                values=values if complete else None,
                params=names,
                distributions={name: spread[name] for name in names},
                intermediate_values={} if several else dict(scores),
                user_attrs={BRACKET: trial.bracket},
                system_attrs=constrained(excesses(constraints, last)) if scores else {},
            )
        )
    return frozen


def _measured(config: Config, segments: Iterable[Segment]) -> dict[tuple[int, int], Mapping[str, float]]:
    """Return metrics by (trial, epochs), if scores alone do not rank results."""
    rows = [] if ranks_by_score(config) else segments
    return {(row.number, row.epochs): row.objectives for row in rows if row.objectives}


def _tell(config: Config, study: optuna.Study, values: Mapping[str, Any]) -> None:
    """Add a planned trial that the sampler did not draw."""
    spread, searched = distributions(config.searched), config.searched.flat()
    names = _as_params(config, {name: value for name, value in flatten(values).items() if name in searched}, spread)
    if not config.sampling.points or _is_point(config.searched, names):
        of_names = {name: spread[name] for name in names}
        study.add_trial(create_trial(state=TrialState.RUNNING, params=names, distributions=of_names))


def _as_params(config: Config, values: Mapping[str, Any], spread: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return hyperparameters with Optuna's names, in the order of suggestion.

    If the space has changed, those that fit no longer are left out.
    """
    fitting: dict[str, Any] = {}
    if "spaces" not in config.options:
        fitting = params(config.searched, values)
    else:
        for path, value in values.items():
            with suppress(SpaceError, ValueError):
                internal = params(config.searched, {path: value})
                if all(
                    spread[name]._contains(spread[name].to_internal_repr(value)) for name, value in internal.items()
                ):
                    fitting |= internal
    return {name: fitting[name] for name in spread if name in fitting}


def _is_point(space: Space, names: Mapping[str, Any]) -> bool:
    """Return whether these are all hyperparameters of a point of the space."""
    try:
        from_params(space, names)
    except SpaceError:
        return False
    return True


def _draw(
    config: Config,
    study: optuna.Study,
    bracket: int,
    number: int,
    leader: Mapping[str, Any] | None,
    check: Callable[[Mapping[str, Any]], object],
) -> dict[str, Any]:
    space = config.searched
    shared: dict[str, Any] = {}
    # Where nothing may differ within a cohort, trials that share a structure would be one and the same.
    if leader is not None and not space.dynamic(leader).keys().isdisjoint(config.open):
        shared = space.structure(leader)
    for attempt in range(ATTEMPTS):
        study.sampler = make_sampler(config, number, attempt, bracket)
        trial = study.ask()  # stays running, so later suggestions keep their distance from it
        values = suggest_values(space, trial, fixed=shared)
        try:
            check(values)
        except ValueError as error:
            refusal = error
            study.tell(trial, state=TrialState.FAIL)
            continue
        return values
    raise BadConfig(f"trial {number} needs valid hyperparameters, but {ATTEMPTS} draws were refused: {refusal}")


def _defaults(space: Space, check: Callable[[Mapping[str, Any]], object]) -> dict[str, Any] | None:
    """Return the defaults, None if the space or the check refuses them."""
    try:
        values = space.defaults()
        params(space, flatten(values))
        check(values)
    except (SpaceError, ValueError):
        return None
    return values
