"""Results of confirmations: candidates on fresh seeds, and comparisons."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ...spaces import flatten
from ..schedulers.confirming import Confirmation, Standing, by_seed, fresh_rows, fresh_scores, standing
from ..statistics.estimates import ENOUGH_TO_HOLD, FEWEST, Interval
from ..storage.rows import Segment
from ..study.config import Config
from ..study.environments import is_across, labels
from ..study.objectives import Bounds, bounds_by_name, measured, objectives_of, value_of
from .confirmations import BOUNDS, Size, confirmations_of, turned
from .ranking import distinct, rank
from .study_views import study_view
from .views import (
    EMPTY,
    CandidateView,
    ChangesView,
    ConfirmationView,
    ConstraintView,
    CostView,
    EstimateView,
    MeanView,
    RaceView,
    TrialView,
)

if TYPE_CHECKING:
    from ..storage.store import Store

SURE = 0.99  # confidence of what is said about constraints, since few seeds show little of a skewed distribution


def confirmation_view(
    store: Store, study: str, trials: Sequence[TrialView] | None = None, name: str | None = None
) -> ConfirmationView | None:
    """Return the results of a study's confirmation; None if there is none.

    Args:
        store: store of the study.
        study: name of the study.
        trials: the trials of its `study_view`, if the caller has them.
        name: name of the confirmation; by default the last one.
    """
    if not (confirmations := confirmations_of(store, study)):
        return None
    name = name or list(confirmations)[-1]
    earlier, config = [*takewhile(lambda other: other != name, confirmations)], confirmations[name]
    original = Config.from_json(store.study(study).config, study)
    confirmation, rows = Confirmation.of(config), store.segments(name)
    trials = study_view(store, study).trials if trials is None else trials
    claimed = {trial.number for trial in trials if _reached(trial, config.rungs[0])}
    pairs = by_seed(config, rows)
    now = standing(confirmation, pairs)
    ((objective, direction),) = objectives_of(config).items()
    candidates = [_candidate(config, rows, pairs, now, n, claimed) for n in range(confirmation.candidates)]
    done, failed = ([row for row in rows if row.state == state] for state in ("done", "failed"))
    return ConfirmationView(
        study=study,
        confirmation=name,
        state="complete" if now.over else "running",
        objective=objective,
        direction=direction,
        across=config.options["aggregate"] if is_across(config) else None,
        epochs=config.rungs[0],
        seeds=confirmation.seeds,
        race_seeds=confirmation.race_seeds,
        eval_episodes=config.eval_episodes if config.eval_episodes != original.eval_episodes else None,
        candidates=candidates,
        **_answer(candidates, now, pairs, confirmation),
        cost=CostView(trainings=len(done), epochs=len(done) * config.rungs[0], failed=len(failed)),
        since=_changes(original, config, trials, now.finalists),
        lengthened=original.rungs[-1] > config.rungs[0],
        earlier=earlier,
    )


def _candidate(
    config: Config,
    rows: Sequence[Segment],
    pairs: Mapping[tuple[int, int], Segment],
    now: Standing,
    candidate: int,
    claimed: Collection[int],
) -> CandidateView:
    """Return the results of a candidate.

    Args:
        config: configuration of the confirmation.
        rows: its segments.
        pairs: these by candidate and seed, see `by_seed`.
        now: how far it is.
        candidate: number of the candidate.
        claimed: numbers of the study's trials that still have a result after as many epochs.
    """
    confirmation, estimate, environments, constraints = Confirmation.of(config), None, None, None
    if now.over and candidate in now.estimated and (estimate := _estimate(config, pairs, candidate)) is not None:
        environments = _in_each(config, rows, candidate)
        constraints = constraint_views(config, pairs, candidate) if confirmation.constraints else None
    number, claim = confirmation.trials[candidate], confirmation.claims[candidate]
    return CandidateView(
        trial=number,
        defaults=candidate == confirmation.defaults,
        hyperparameters=dict(config.first_trials[candidate]),
        claim=turned(config, claim) if claim is not None and number in claimed else None,
        race=_race(config, pairs, candidate),
        estimate=estimate,
        environments=environments if is_across(config) else EMPTY,
        constraints=constraints,
    )


def complete_confirmation(
    store: Store, study: str, trials: Sequence[TrialView] | None = None
) -> ConfirmationView | None:
    """Return the results of a study's last complete confirmation, or None.

    `trials` are the trials of its `study_view`, if the caller has them.
    """
    views = (confirmation_view(store, study, trials, name) for name in reversed(confirmations_of(store, study)))
    return next((view for view in views if view is not None and view.state == "complete"), None)


def _reached(trial: TrialView, epochs: int) -> bool:
    """Return whether a trial has a result at this number of epochs."""
    return any(row.epochs == epochs and row.state == "done" for row in trial.rungs)


def _changes(
    original: Config, config: Config, trials: Sequence[TrialView], finalists: Sequence[int]
) -> ChangesView | None:
    """Return what has changed since the confirmation began; None if nothing has.

    Args:
        original: configuration of the study.
        config: configuration of the confirmation.
        trials: trials of the study.
        finalists: candidates, see `Standing`.
    """
    ranked = [trial for trial in rank(trials, objectives_of(original)) if trial.epochs >= original.rungs[-1]]
    stored = [] if original.rungs[-1] > config.rungs[0] else config.first_trials
    excluded = {trial.number for trial in trials if trial.excluded}
    best = distinct(ranked)[: Size.of(config).top]
    changes = ChangesView(
        best=[trial.number for trial in best if dict(flatten(trial.hyperparameters)) not in stored],
        excluded=bool(finalists) and Confirmation.of(config).trials[finalists[0]] in excluded,
    )
    return changes if changes.best or changes.excluded else None


def _race(config: Config, rows: Mapping[tuple[int, int], Segment], candidate: int) -> RaceView:
    """Return a candidate's results in the race."""
    seeds = range(Confirmation.of(config).race_seeds)
    results = [turned(config, score) for score in fresh_scores(rows, candidate, seeds)]
    failed = sum((candidate, s) in rows and rows[candidate, s].state == "failed" for s in seeds)
    return RaceView(seeds=len(results), mean=statistics.fmean(results) if results else None, failed=failed)


def _estimate(config: Config, rows: Mapping[tuple[int, int], Segment], candidate: int) -> EstimateView | None:
    confirmation = Confirmation.of(config)
    scores = [turned(config, score) for score in fresh_scores(rows, candidate, confirmation.estimating)]
    every = range(confirmation.race_seeds + confirmation.seeds)
    others = [fresh_scores(rows, n, every) for n in range(confirmation.candidates) if n != candidate]
    bounds = (None, None) if is_across(config) else _bounds(config)  # known where results are as measured
    if (mean := _mean(scores, others, bounds)) is None:
        return None
    failed = confirmation.seeds - len(scores)
    return EstimateView(**vars(mean), seeds=len(scores), failed=failed, results=scores)


def constraint_views(
    config: Config, rows: Mapping[tuple[int, int], Segment], candidate: int
) -> dict[str, ConstraintView]:
    """Return what each constraint bounds, on a candidate's fresh seeds.

    A constraint holds if the whole 99% interval of the mean satisfies it, and if it still would where the worst of the
    candidate's trainings came as often as these seeds allow (`greatest_mean`). Fewer than ENOUGH_TO_HOLD seeds say
    nothing, since they show too little of what happens in one training of five. If the mean in truth violates one of
    several constraints, all hold at most as often as that one does: at most in a twentieth of all cases for results
    that are normal, as skewed as lognormal ones with a sigma of 1, or accidents in a fifth of the trainings or more.
    """
    from ..statistics.intervals import greatest_mean, mean_interval  # slow to import (NumPy)

    confirmation, views = Confirmation.of(config), dict[str, ConstraintView]()
    fresh = fresh_rows(rows, candidate, confirmation.estimating)
    for constraint in confirmation.constraints if len(fresh) >= FEWEST else ():
        results = [value_of(row.objectives, constraint.name) for row in fresh]
        every = fresh_rows(rows, candidate, range(confirmation.estimating.stop))
        ends = mean_interval(results, confidence=SURE)
        sign = 1 if constraint.relation == "<=" else -1
        worst = max(sign * value_of(row.objectives, constraint.name) for row in every)
        far = sign * greatest_mean([sign * result for result in results], worst)
        ends = ends._replace(low=min(ends.low, far), high=max(ends.high, far))
        value, low, high = ends.within(*bounds_by_name(constraint.name, config.environments), results)
        excesses = [constraint.excess(end) for end in (low, high)]
        holds = True if max(excesses) <= 0 else False if min(excesses) > 0 else None
        if holds and len(fresh) < ENOUGH_TO_HOLD:
            holds = None
        views[str(constraint)] = ConstraintView(value=value, low=low, high=high, holds=holds)
    return views


def _bounds(config: Config) -> Bounds:
    """Return the least and the greatest possible result of a confirmation."""
    least, greatest = config.options["confirms"].get(BOUNDS, (None, None))
    return least, greatest


def _mean(fresh: Sequence[float], others: Sequence[Sequence[float]], bounds: Bounds) -> MeanView | None:
    """Return the mean of fresh results and its interval, if enough.

    Too few fresh results have no interval: None.

    Args:
        fresh: results of the candidate.
        others: results of each other candidate.
        bounds: least and greatest possible result.
    """
    if len(fresh) < FEWEST:
        return None
    from ..statistics.intervals import mean_interval  # slow to import (NumPy)

    value, low, high = mean_interval(fresh, others).within(*bounds, fresh)
    return MeanView(value=value, low=low, high=high)


def _in_each(config: Config, rows: Sequence[Segment], candidate: int) -> dict[str, MeanView | None]:
    """Return a candidate's mean result and its interval in each environment.

    Only fresh seeds count, in the unit in which they were measured; None if there are too few.
    """
    several, confirmation = len(config.environments), Confirmation.of(config)
    done = [row for row in rows if row.state == "done"]
    means: dict[str, MeanView | None] = {}
    for index, env in enumerate(labels(config.environments)):
        rows_of_env = [row for row in done if row.replicate % several == index]
        rows_of_candidate = [row for row in rows_of_env if row.configuration == candidate]
        fresh = [
            measured(config, row) for row in rows_of_candidate if row.replicate // several in confirmation.estimating
        ]
        others = (n for n in range(confirmation.candidates) if n != candidate)
        alike = [[measured(config, row) for row in rows_of_env if row.configuration == n] for n in others]
        means[env] = _mean(fresh, alike, _bounds(config))
    return means


def _answer(
    candidates: Sequence[CandidateView],
    now: Standing,
    rows: Mapping[tuple[int, int], Segment],
    confirmation: Confirmation,
) -> dict[str, Any]:
    """Return the winner, and how it compares with the other estimates."""
    winner, runner_up, *_ = (*now.finalists, None, None)
    answer = dict.fromkeys(("over_defaults", "over_runner_up", "optimism")) | {"winner": winner, "runner_up": runner_up}
    if winner is None or (estimate := candidates[winner].estimate) is None:
        return answer
    if (claim := candidates[winner].claim) is not None:
        answer |= {"optimism": claim - estimate.value}
    fresh = fresh_scores(rows, winner, confirmation.estimating)
    for name, other in (("over_defaults", confirmation.defaults), ("over_runner_up", runner_up)):
        if other not in (None, winner) and candidates[other].estimate is not None:
            answer[name] = _improvement(fresh, fresh_scores(rows, other, confirmation.estimating))
    return answer


def _improvement(scores: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the probability that one training beats one of the others."""
    from ..statistics.intervals import improvement_interval  # slow to import (NumPy)

    return improvement_interval([[x] for x in scores], [[x] for x in others])
