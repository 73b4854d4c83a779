"""Confirmations: candidates of a study, trained on fresh seeds.

A confirmation is a study of its own, next to the one that it confirms, with the scheduler `confirm`. It is therefore
trained, killed and resumed like any other.

A study that gets other candidates after its confirmation is complete, because it was extended or trials were excluded,
gets a further confirmation: STUDY:confirmation-2 follows STUDY:confirmation. Its seeds are none of the earlier ones.
Whoever has seen results of a confirmation may have extended the study or excluded its winner because of them; then
these seeds have taken part in a choice, and a result on them says too little about further ones.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ...spaces.errors import SpaceError
from ...tasks.runtime import EVALUATION_EPISODES
from ..errors import BadConfig, StudyMismatch
from ..methods import CONFIRM
from ..options.entries import check_count
from ..options.study_options import entries_of
from ..schedulers.confirming import (
    FIRST,
    USED,
    Confirmation,
    Standing,
    by_seed,
    first_seed,
    first_unused,
    fresh_rows,
    fresh_scores,
    standing,
)
from ..schedulers.registry import remembered, without_finalist
from ..shell import begin_again, command_line
from ..statistics.estimates import ENOUGH_TO_HOLD, FEWEST, Interval
from ..storage.rows import Segment
from ..study import FRESH_SEEDS, TOP
from ..study.code import FILES
from ..study.config import RESUMES, Config
from ..study.environments import SCALE, as_objective, is_across, labels, scale_of
from ..study.number_text import counted
from ..study.objectives import CONSTRAINT, MINIMIZE, Bounds, bounds_of, measured, objectives_of, value_of
from ..study.stored_form import MOST_SEEDS
from .json_views import rank, study_view
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

BOUNDS = "bounds"  # key in a confirmation's options: least and greatest possible result, None where it is not known
SURE = 0.99  # confidence of what is said about constraints, since few seeds show little of a skewed distribution
# Options that a confirmation has from its study.
KEPT = ("objectives", CONSTRAINT, "warm_start", "environments", "eval_episodes", FILES, RESUMES)


def confirmation_name(study: str, number: int = 1) -> str:
    """Return the name of a confirmation: the first, or a further one."""
    return f"{study}:confirmation" + (f"-{number}" if number > 1 else "")


def confirmations_of(store: Store, study: str) -> dict[str, Config]:
    """Return the confirmations of a study by name, the first one first.

    Those of an earlier study of this name are left out.
    """
    of = Config.from_json(store.study(study).config, study)
    identity = (of.task, of.environments, of.seed, of.fixed)
    earlier = [
        (name, Config.from_json(store.study(name).config, name))
        for name in (row.name for row in store.studies())
        if re.fullmatch(re.escape(confirmation_name(study)) + r"(-\d+)?", name)
    ]
    confirmations = [
        (name, config)
        for name, config in earlier
        if config.scheduling.confirms and (config.task, config.environments, config.seed, config.fixed) == identity
    ]
    return dict(sorted(confirmations, key=lambda item: first_seed(item[1])))


def confirmation_config(
    store: Store, study: str, top: int = TOP, seeds: int = FRESH_SEEDS, eval_episodes: int | None = None
) -> Config:
    """Return the configuration of the study that confirms another.

    Args:
        store: store of the study.
        study: name of the study to confirm.
        top: number of its best configurations, besides the defaults.
        seeds: seeds per estimate; a race of several candidates uses half as many in addition, and at least three.
        eval_episodes: episodes of each evaluation; None for as many as in the study.

    Raises:
        BadConfig: the study cannot be confirmed, or a number is too small.
    """
    from .checked_config import load_task  # imports all schedulers and samplers

    config = Config.from_json(store.study(study).config, study)
    check_confirmable(config, study, top, seeds)
    best = _finished_best(store, study, config)[:top]
    values = [dict(flatten(trial.hyperparameters)) for trial in best]
    defaults = _defaults(config)
    if defaults is not None and defaults not in values:
        values.append(defaults)
    added = [None] * (len(values) - len(best))  # the defaults are no trial of the study, and claim nothing
    (bounds,) = (bounds_of(name, load_task(config), config.environments) for name in objectives_of(config))
    claims = [_claim(config, trial) for trial in best]
    options: dict[str, Any] = {
        "seeds": (max(FEWEST, seeds // 2) + seeds) * len(config.environments),
        "aggregate": config.options["aggregate"] if is_across(config) else "mean",
        "known": values,
        "confirms": {
            "study": study,
            "seeds": seeds,
            "trials": [*(trial.number for trial in best), *added],
            "claims": [*claims, *added],
            "claims_race": True,
            "defaults": values.index(defaults) if defaults in values else None,
            **({BOUNDS: list(bounds)} if any(bound is not None for bound in bounds) else {}),
        },
    }
    options |= {name: config.options[name] for name in KEPT if name in config.options}
    options |= entries_of({"eval_episodes": eval_episodes})
    if is_across(config):
        results = remembered(store.trials(study), store.segments(study))[1]
        options[SCALE] = [*map(list, scale_of(config, results))]
    return Config(
        task=config.task,
        task_version=config.task_version,
        env=config.env,
        seed=config.seed,
        space={},
        fixed=config.fixed,
        epochs=[config.rungs[-1], *config.epochs[1:]],
        trials=[len(values)],
        generation=len(values),
        cohort=1,
        sampler="random",
        scheduler=CONFIRM,
        options=options,
    )


def _finished_best(store: Store, study: str, config: Config) -> list[TrialView]:
    """Return a study's trials with different hyperparameters, best first.

    Raises:
        BadConfig: none has a result at the top rung.
    """
    view = study_view(store, study)
    ranked = rank(view.trials, objectives_of(config))
    if ranked and ranked[0].epochs >= config.rungs[-1]:
        return _different(ranked)
    cure = f"`{command_line('worker', study)}` trains it to its end"
    if view.state == "complete" and view.counts["failed"] == sum(view.counts.values()):
        cure = f"all of its trials failed. {begin_again(study)}"
    elif view.state == "complete":
        cure = f"`{command_line('extend', study, '--trials N')}` gives it more trials"
    raise BadConfig(
        f"a confirmation needs a result at the top rung, {config.rungs[-1]} epochs, but {study} has none; {cure}"
    )


def _claim(config: Config, trial: TrialView) -> float | None:
    """Return a trial's score over its seeds; None before the top rung."""
    ((name, _),) = objectives_of(config).items()
    if trial.epochs != config.rungs[-1]:
        return None
    return _turned(config, value_of(trial.ranked_by(), name))


def _different(trials: Sequence[TrialView]) -> list[TrialView]:
    """Return the first trial of each set of hyperparameters."""
    first: dict[str, TrialView] = {}
    for trial in trials:
        first.setdefault(repr(sorted(trial.hyperparameters.items())), trial)
    return list(first.values())


def start_confirmation(store: Store, study: str, config: Config) -> str:
    """Return the name of a study's confirmation; create it if needed.

    An earlier confirmation with the same candidates and number of seeds is the answer, unless the study has changed
    before a later one, or it failed as a whole with other code. So is an unfinished one with the same numbers, which
    keeps its candidates. Otherwise a new confirmation begins, with seeds that no earlier one has used, deleted ones
    included.

    Raises:
        StudyMismatch: an unfinished confirmation has other numbers.
    """
    earlier = confirmations_of(store, study)
    for name, confirmation in reversed(earlier.items()):
        if _content(confirmation) == _content(config):
            if confirmation.options.get(FILES) != config.options.get(FILES) and _failed(store, name, confirmation):
                break  # by code that has been mended since
            return name
        top, seeds, _, episodes = _numbers(confirmation)
        if _content(confirmation) != _content(confirmation_config(store, study, top, seeds, episodes)):
            break  # answers of earlier ones may be why the study has changed, and are no unbiased ones any more
    if earlier:
        name, last = list(earlier.items())[-1]
        if not standing(Confirmation.of(last), by_seed(last, store.segments(name))).over:
            if _numbers(last) == _numbers(config):
                return name
            resume = command_line("worker", name)
            raise StudyMismatch(
                f"a confirmation keeps its numbers until it is complete, but {name} has {_text(last)}, and would now "
                f"have {_text(config)}; `{resume}` completes it, and `{command_line('delete', name)}` removes it, so "
                f"that {study} can be confirmed again"
            )
    from .runner import start_study  # imports all that trains

    deleted = Config.from_json(store.study(study).config, study).options.get(USED, 0)
    used = max([deleted, *map(first_unused, earlier.values())])
    form = {**config.options["confirms"], **({FIRST: used} if used else {})}
    names = {row.name for row in store.studies()}
    name = next(name for n in count(1) if (name := confirmation_name(study, n)) not in names)
    start_study(store, name, replace(config, options={**config.options, "confirms": form}))
    return name


def _failed(store: Store, name: str, config: Config) -> bool:
    """Return whether a confirmation is over without any estimate."""
    pairs = by_seed(config, store.segments(name))
    now = standing(Confirmation.of(config), pairs)
    return now.over and not any(_estimate(config, pairs, n) for n in now.estimated)


def _content(config: Config) -> tuple[Any, ...]:
    """Return all in which confirmations may differ, except their seeds."""
    form = Confirmation.of(config)
    parts = (form.trials, form.claims, form.seeds, form.defaults, config.first_trials)
    scale = [list(map(float, ends)) for ends in config.options.get(SCALE, ())]
    return (*parts, scale, config.options["seeds"], config.rungs, config.task_version, config.eval_episodes)


def _numbers(config: Config) -> tuple[int, int, int, int]:
    """Return the numbers of candidates, seeds, epochs and episodes."""
    form = Confirmation.of(config)
    return sum(number is not None for number in form.trials), form.seeds, config.rungs[-1], config.eval_episodes


def _text(config: Config) -> str:
    """Return a confirmation's numbers as text."""
    top, seeds, epochs, episodes = _numbers(config)
    more = "" if episodes == EVALUATION_EPISODES else f", --eval-episodes {episodes}"
    return f"--top {top}, --seeds {seeds}{more} and {counted(epochs, 'epoch')}"


def check_confirmable(config: Config, study: str, top: int = TOP, seeds: int = FRESH_SEEDS) -> None:
    """Raise BadConfig if a study with this configuration cannot be confirmed."""
    if isinstance(top, int) and top < 1:
        raise BadConfig(f"--top must be at least 1, the best configuration alone, but got {top}")
    check_count("top", top)
    check_count("seeds", seeds, MOST_SEEDS // 2)
    if seeds < FEWEST:
        raise BadConfig(f"an interval needs at least {FEWEST} seeds, but got {seeds}; take more")
    if config.scheduling.confirms:
        raise BadConfig(f"{study} is a confirmation itself; confirm {Confirmation.of(config).study}")
    if config.scheduling.population:
        raise BadConfig(
            f"a confirmation trains fixed hyperparameters, but those of {study} change while it trains "
            f"({config.scheduler}); `rekindle schedule UID` trains a member's schedule of them on fresh seeds"
        )
    if (why := without_finalist(config)) is not None:
        raise BadConfig(f"a confirmation takes trials that have trained to the end, but {why}")
    if len(objectives := objectives_of(config)) > 1:
        raise BadConfig(
            f"a confirmation ranks by one objective, but {study} has {', '.join(objectives)}; choose a trial of its "
            "front, and train it with other seeds (rekindle train --seed)"
        )


def _defaults(config: Config) -> dict[str, Any] | None:
    """Return the defaults combined with the fixed values, None if they contradict."""
    from .checked_config import load_task

    try:
        algorithm = load_task(config)
        if algorithm.starts(config.env):
            return None  # each algorithm has its own
        identity = config.identity(algorithm, unflatten(config.fixed))
        return algorithm.named(identity.algorithm, identity.values)
    except (SpaceError, ValueError):
        return None


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
    of = Config.from_json(store.study(study).config, study)
    confirmation, rows = Confirmation.of(config), store.segments(name)
    trials = study_view(store, study).trials if trials is None else trials
    claimed = {trial.number for trial in trials if _reached(trial, config.rungs[0])}
    pairs = by_seed(config, rows)
    now = standing(confirmation, pairs)
    ((objective, direction),) = objectives_of(config).items()
    candidates = []
    for n, (number, claim) in enumerate(zip(confirmation.trials, confirmation.claims, strict=True)):
        estimate = _estimate(config, pairs, n) if now.over and n in now.estimated else None
        environments = _in_each(config, rows, n) if estimate else None
        candidate = CandidateView(
            trial=number,
            defaults=n == confirmation.defaults,
            hyperparameters=dict(config.first_trials[n]),
            claim=_turned(config, claim) if claim is not None and number in claimed else None,
            race=_race(config, pairs, n),
            estimate=estimate,
            environments=environments if is_across(config) else EMPTY,
            constraints=constraint_views(config, pairs, n) if estimate and confirmation.constraints else None,
        )
        candidates.append(candidate)
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
        candidates=candidates,
        **_answer(candidates, now, pairs, confirmation),
        cost=CostView(trainings=len(done), epochs=len(done) * config.rungs[0], failed=len(failed)),
        since=_changes(of, config, trials, now.finalists),
        earlier=earlier,
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


def _changes(of: Config, config: Config, trials: Sequence[TrialView], finalists: Sequence[int]) -> ChangesView | None:
    """Return what has changed since the confirmation began; None if nothing has.

    Args:
        of: configuration of the study.
        config: configuration of the confirmation.
        trials: trials of the study.
        finalists: candidates, see `Standing`.
    """
    top, *_ = _numbers(config)
    ranked = [trial for trial in rank(trials, objectives_of(of)) if trial.epochs >= of.rungs[-1]]
    stored = [] if of.rungs[-1] > config.rungs[0] else config.first_trials
    excluded = {trial.number for trial in trials if trial.excluded}
    changes = ChangesView(
        best=[trial.number for trial in _different(ranked)[:top] if dict(flatten(trial.hyperparameters)) not in stored],
        excluded=bool(finalists) and Confirmation.of(config).trials[finalists[0]] in excluded,
    )
    return changes if changes.best or changes.excluded else None


def _turned(config: Config, value: float) -> float:
    """Return the objective of a score, or the score of an objective.

    The same function does both. In several environments, either is on their scale.
    """
    ((name, direction),) = objectives_of(config).items()
    if is_across(config):
        return as_objective(config, value)[name]
    return -value if direction == MINIMIZE else value


def _race(config: Config, rows: Mapping[tuple[int, int], Segment], candidate: int) -> RaceView:
    """Return a candidate's results in the race."""
    seeds = range(Confirmation.of(config).race_seeds)
    results = [_turned(config, score) for score in fresh_scores(rows, candidate, seeds)]
    failed = sum((candidate, s) in rows and rows[candidate, s].state == "failed" for s in seeds)
    return RaceView(seeds=len(results), mean=statistics.fmean(results) if results else None, failed=failed)


def _estimate(config: Config, rows: Mapping[tuple[int, int], Segment], candidate: int) -> EstimateView | None:
    confirmation = Confirmation.of(config)
    scores = [_turned(config, score) for score in fresh_scores(rows, candidate, confirmation.estimating)]
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
        value, low, high = ends.estimate, min(ends.low, far), max(ends.high, far)
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
