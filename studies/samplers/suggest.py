"""Suggestions of hyperparameters for the next trials.

They come from an Optuna study that is rebuilt from rows each time. Optuna is asked and told in memory only, with a
sampler freshly seeded for every trial, so a suggestion is a function of the configuration, the trial's number and the
rows that the schedule lets it see.
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
from ...spaces.drivers.to_optuna import distributions, params
from ...spaces.drivers.to_optuna import suggest as suggest_values
from ...tasks.runtime.warning_filters import changed_filters
from ..storage.rows import Segment, Trial
from ..study.config import BadConfig, Config
from ..study.objectives import objectives_of, point
from ..study.plan import Plan, ScoreHistory
from .learned import OWN, choose, follows
from .nsga import BRACKET
from .registry import KNOWN, LEARNED, make_sampler

ATTEMPTS = 100  # at values that go together
OptunaParams = dict[int, dict[str, Any]]  # by trial: its hyperparameters as Optuna spells them, which do not change


def suggest(
    config: Config,
    trials: Iterable[Trial],
    plan: Plan,
    check: Callable[[Mapping[str, Any]], object] = lambda values: None,
    segments: Iterable[Segment] = (),
    optuna_params: OptunaParams | None = None,
    enqueued: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return nested values for each trial that the plan asks for.

    They are values of the searched space, in the plan's order. The first trials of a study are the configurations that
    are known, or else one takes the defaults, but not in a grid. What earlier studies found chooses some. The first of
    every `config.cohort` is free, the others share its structure, unless the sampler goes through all structures.

    Args:
        config: the study's.
        trials: configurations that the suggestions may depend on.
        plan: asks for trials.
        check: raises ValueError for values that do not go together; others are drawn then.
        segments: of several objectives, results that tell more than the scores.
        optuna_params: hyperparameters in Optuna's names, kept between calls for the same study.
        enqueued: hyperparameters that the user wants, by dotted name, of each number that takes some.
    """
    assert plan.ask is not None
    sampler = KNOWN[config.sampler]
    cohort, learned = config.cohort if sampler.structures else 1, bool(config.options.get(LEARNED))
    trials = list(trials) if sampler.learns or learned else []
    suggestions: list[dict[str, Any]] = []
    with quiet(optuna.logging.ERROR):
        study = optuna.create_study(directions=["maximize"] * len(objectives_of(config)))
        if sampler.learns:
            study.add_trials(history(config, trials, plan.seen, segments, optuna_params))
        known, first = config.options.get("known", []), OWN[1] if learned else 0
        before = {each.number: flatten(each.params) for each in trials if learned and each.number < plan.ask[0]}
        results = sum(bool(scores) for scores in plan.seen.values())
        for index, number in enumerate(plan.ask):
            wanted = known[number] if number < len(known) else enqueued.get(number)
            values = None if wanted is None else unflatten(wanted)
            if values is None and number == first and sampler.defaults:
                values = _defaults(config.searched, check)
            if values is None and follows(config, number, results):
                values = choose(config, number, before, plan.seen, check)
            if values is None:
                leader = suggestions[index - index % cohort] if index % cohort else None
                values = _draw(config, study, plan.bracket, number, leader, check)
            suggestions.append(values)
            before[number] = flatten(values)
    return suggestions


@contextmanager
def quiet(verbosity: int) -> Iterator[None]:
    """Silence Optuna below a level, and about experimental features."""
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
    seen: ScoreHistory,
    segments: Iterable[Segment] = (),
    optuna_params: OptunaParams | None = None,
) -> list[FrozenTrial]:
    """Return trials in Optuna's form.

    A trial is complete at the top rung, pruned below it, and failed without a score.
    """
    space = config.searched
    objectives = objectives_of(config)
    several = len(objectives) > 1
    measured = {(row.number, row.epochs): row.objectives for row in segments if several and row.objectives}
    known = space.flat().keys()
    spread = distributions(space)
    optuna_params = {} if optuna_params is None else optuna_params
    frozen = []
    for trial in trials:
        if trial.number not in seen:
            continue
        scores = seen[trial.number]
        if trial.number not in optuna_params:
            own = {name: trial.params[name] for name in trial.params.keys() & known}
            values_of = _within(space, own, spread) if "spaces" in config.options else params(space, own)
            ordered = {name: values_of[name] for name in spread if name in values_of}  # as they are suggested
            optuna_params[trial.number] = ordered
        names = optuna_params[trial.number]
        # Samplers other than TPE learn from complete trials only, and TPE too if there are several objectives.
        complete = bool(scores) and (config.sampler != "tpe" or several or scores[-1][0] == config.rungs[-1])
        values = [score for _, score in scores[-1:]]
        if complete and several:
            values = point(objectives, measured.get((trial.number, scores[-1][0]), {}))
        state = TrialState.COMPLETE if complete else TrialState.PRUNED if scores else TrialState.FAIL
        frozen.append(
            create_trial(
                state=state,
                values=values if complete else None,
                params=names,
                distributions={name: spread[name] for name in names},
                intermediate_values={} if several else dict(scores),
                user_attrs={BRACKET: trial.attrs.get("bracket")},
            )
        )
    return frozen


def _within(space: Space, values: Mapping[str, Any], spread: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return the hyperparameters, in Optuna's form, that a changed space still has."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        with suppress(SpaceError, ValueError):
            own = params(space, {path: value})
            if all(spread[name]._contains(spread[name].to_internal_repr(each)) for name, each in own.items()):
                found |= own
    return found


def _draw(
    config: Config,
    study: optuna.Study,
    bracket: int,
    number: int,
    leader: Mapping[str, Any] | None,
    check: Callable[[Mapping[str, Any]], object],
) -> dict[str, Any]:
    space = config.searched
    shared = space.structure(leader) if leader else {}
    for attempt in range(ATTEMPTS):
        study.sampler = make_sampler(config, number, attempt, bracket)
        trial = study.ask()  # stays running: those that follow keep their distance from it
        values = suggest_values(space, trial, fixed=shared)
        try:
            check(values)
        except ValueError as error:
            refusal = error
            study.tell(trial, state=TrialState.FAIL)
            continue
        return values
    raise BadConfig(f"trial {number} needs hyperparameters that go together, but {ATTEMPTS} draws did not: {refusal}")


def _defaults(space: Space, check: Callable[[Mapping[str, Any]], object]) -> dict[str, Any] | None:
    """Return the defaults if they are valid, else None.

    Valid defaults are in the searched space and go together.
    """
    try:
        values = space.defaults()
        params(space, flatten(values))
        check(values)
    except (SpaceError, ValueError):
        return None
    return values
