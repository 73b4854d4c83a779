"""Content of a report on a study.

The content depends on the rows only, not on the time, the machine or a random number.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from ...spaces.choices import Ordinal
from ...spaces.dimension import Dimension, Maybe
from ...tasks import load
from ...tasks.explanations import explanation
from ..analysis.health import diagnose
from ..engine.confirmation_views import complete_confirmation, confirmation_view
from ..engine.ranking import ranked
from ..engine.study_views import study_view
from ..engine.views import StudyView, TrialView
from ..methods import scheduling
from ..schedulers.confirming import estimates, estimating_rows, lost_seeds
from ..schedulers.registry import remembered
from ..statistics.estimates import FEWEST
from ..statistics.intervals import mean_interval
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.environments import as_objective, is_across, scale_of, scaled_score
from ..study.objectives import MINIMIZE, RETURN, Bounds, bounds_by_name, bounds_of, measured, objectives_of
from .analysis import rank_correlations
from .content import BandView, CurvesView, DimensionView, ReportView
from .summary import checklist, summary
from .timeline import timeline

if TYPE_CHECKING:
    from ..storage.store import Store

EPISODE_RETURN = "episode_return"  # training metric, reported at each epoch
OF_BEHAVIOURS = (f"{EPISODE_RETURN}.", "elo.")  # prefixes of those of each behaviour
Curves = Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]


def report_view(store: Store, name: str) -> ReportView:
    """Return everything that a report shows about a study.

    Raises:
        UnknownStudy: the study does not exist.
    """
    store = cast("Store", _Once(store))
    config = Config.from_json(store.study(name).config, name)
    study = study_view(store, name)
    last = confirmation_view(store, name, study.trials)
    # A further confirmation has no answer while it runs; then the one before it holds.
    confirmation = complete_confirmation(store, name, study.trials) or last
    objective, direction = next(iter(objectives_of(config).items()))
    best_first = ranked(study)
    included = [trial for trial in study.trials if not trial.excluded]
    health = diagnose(store, name)
    segments, events = store.segments(name), store.events_of_study(name)
    values = [(trial, trial.result(objective)) for trial in best_first]
    reached, rows = _reached(segments), store.trials(name)
    parts = [] if is_across(config) else _names_of_behaviours(store, rows)
    curves, fresh = _measured(store, name, (objective, EPISODE_RETURN, *parts)), _fresh(config, segments)
    metric = _curve_metric(curves, objective)
    report = ReportView(
        study=study,
        title=config.title,
        objective=objective,
        direction=direction,
        storage=store.url,
        ranked=[trial.number for trial in best_first],
        results={trial.number: value for trial, value in values if value is not None},
        confirmation=confirmation,
        unfinished=last if last != confirmation else None,
        fresh=fresh,
        of_seeds=_of_seeds(config, study, segments),
        epochs=_epochs_trained(segments, rows),
        dimensions=_dimensions(config, study.trials),
        importances=health.importances,
        marginals=health.marginals,
        pairs=health.pairs,
        findings=health.findings,
        correlations=rank_correlations(included, study.rungs, objective),
        timeline=timeline(rows, events, store.saved_last(name), {row.uid: reached.get(row.number, 0) for row in rows}),
        failures=dict(sorted(Counter(_decision(event.data) for event in events if event.kind == "failed").items())),
        curves=_curves(store, study, curves, metric),
        of_behaviours=[_curves(store, study, curves, part) for part in parts if part != metric],
        band=None,
        verdict=[],
        checklist=[],
    )
    starts = [event.data for event in events if event.kind == "init"]
    return report.replace(
        band=_band(store, report, curves), verdict=summary(config, report), checklist=checklist(config, report, starts)
    )


def _fresh(config: Config, segments: Iterable[Segment]) -> dict[int, list[float]] | None:
    """Return the results that estimate each candidate of a confirmation, or None.

    In several environments, a result is no measurement of the objective, and there are none.
    """
    if not config.scheduling.confirms:
        return None
    groups: dict[int, list[Segment]] = {}
    for row in segments if not is_across(config) else ():
        groups.setdefault(row.configuration, []).append(row)
    estimating = ((number, estimating_rows(config, group) or ()) for number, group in sorted(groups.items()))
    return {
        number: [measured(config, row) for row in rows if row.state == "done"] for number, rows in estimating if rows
    }


def _of_seeds(config: Config, study: StudyView, segments: Iterable[Segment]) -> dict[int, list[float]]:
    """Return each trial's results by seed, at its last rung.

    In several environments, a result is no measurement of the objective, and there are none.
    """
    if study.seeds < FEWEST or config.scheduling.confirms or is_across(config):
        return {}
    last = {trial.number: trial.epochs for trial in study.trials}
    results: dict[int, list[float]] = {}
    for row in sorted(segments, key=lambda row: row.number):
        if row.state == "done" and row.epochs == last.get(row.configuration):
            results.setdefault(row.configuration, []).append(measured(config, row))
    return results


class _Once:
    """Proxy of a store that caches the result of each call."""

    def __init__(self, store: Store):
        self._store = store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        kept = cache(value) if callable(value) else value
        setattr(self, name, kept)
        return kept


def _decision(note: Mapping[str, Any]) -> str:
    return f"{note.get('kind')}, {'retried' if note.get('retry') else 'for good'}"


def _epochs_trained(segments: Iterable[Segment], trials: Sequence[Trial]) -> int:
    """Return the number of epochs trained, counting a branch from its start."""
    inherited = {trial.number: trial.inherited for trial in trials}
    return sum(epochs - inherited.get(number, 0) for number, epochs in _reached(segments).items())


def _reached(segments: Iterable[Segment]) -> dict[int, int]:
    """Return the epochs of each trial's last finished segment."""
    reached: dict[int, int] = {}
    for row in segments:
        if row.state == "done":
            reached[row.number] = max(row.epochs, reached.get(row.number, 0))
    return reached


def _dimensions(config: Config, trials: Sequence[TrialView]) -> list[DimensionView]:
    """Return the searched hyperparameters with priors, explanations and kinds of axes."""
    dimensions, declared = list[DimensionView](), dict[str, Dimension]()
    with suppress(ValueError):  # the task may be of a package that is not installed here
        declared = load(config.task).learner.hyperparameters.flat()
    for name, dimension in config.searched.unfixed().items():
        values = [value for trial in trials if (value := trial.hyperparameters.get(name)) is not None]
        dimension = dimension.dimension if isinstance(dimension, Maybe) else dimension
        numeric = bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        log = numeric and bool(getattr(dimension, "log", False)) and min(values) > 0
        near_one = numeric and type(dimension).__name__ == "NearOne" and max(values) < 1
        ordered = isinstance(dimension, Ordinal)
        axis = "near one" if near_one else "log" if log else "linear" if numeric and not ordered else "choice"
        help_text = declared[name].help if name in declared else explanation(name)
        dimensions.append(DimensionView(name=name, prior=str(config.priors[name]), axis=axis, help=help_text))
    return dimensions


def _names_of_behaviours(store: Store, rows: Sequence[Trial]) -> list[str]:
    """Return the metrics of each behaviour, as the first trial reported them."""
    reported = (store.metrics(row.uid) for row in rows)
    names = ({name for _, values in history for name in values} for history in reported)
    return sorted(name for name in next(filter(None, names), ()) if name.startswith(OF_BEHAVIOURS))


def _curves(store: Store, study: StudyView, curves: Curves, metric: str) -> CurvesView:
    """Return each trial's curve of a metric, averaged over its seeds.

    Of a confirmation's candidate, those of its estimate count.
    """
    means = {}
    for trial in study.trials:
        uids = [training.uid for training in trial.trainings]
        if scheduling(study.scheduler).confirms:
            uids = _estimating_uids(store, study.study, trial.number)
        last = max((rung.epochs for rung in trial.rungs), default=0)  # another study may train it further
        by_epoch = _by_epoch(curves, uids, metric).items()
        points = [(epoch, statistics.fmean(of)) for epoch, of in by_epoch if epoch <= last]
        if points:
            means[trial.number] = points
    return CurvesView(metric=metric, trials=means)


def _measured(store: Store, name: str, metrics: Sequence[str]) -> Curves:
    """Return the metrics of a study's tasks by uid.

    Metrics from several environments are put on one scale.
    """
    config = Config.from_json(store.study(name).config, name)
    if not is_across(config):
        return store.curves(name, metrics)
    ((objective, direction),) = objectives_of(config).items()
    kept = metrics if objective == RETURN else (objective,)  # the scale applies to the objective only
    rows = store.trials(name)
    curves, scale = store.curves(name, kept), scale_of(config, remembered(rows, store.segments(name))[1])
    sign, scaled = -1 if direction == MINIMIZE else 1, {}
    for trial in rows:
        score = partial(scaled_score, scale, trial.replicate)
        scaled[trial.uid] = [
            (epoch, {key: as_objective(config, score(sign * value))[objective] for key, value in values.items()})
            for epoch, values in curves.get(trial.uid, ())
        ]
    return scaled


def _curve_metric(curves: Curves, objective: str) -> str:
    """Return the objective, or the training return if it has more points.

    It is that of a behaviour whose return is the objective.
    """
    counts = Counter(name for rows in curves.values() for _, values in rows for name in values)
    names = (f"episode_{objective}", EPISODE_RETURN)
    training = next((name for name in names if counts[name]), EPISODE_RETURN)
    return training if counts[training] > counts[objective] else objective


def _by_epoch(curves: Curves, uids: Iterable[str], metric: str) -> dict[int, list[float]]:
    by_epoch: dict[int, list[float]] = {}
    for uid in uids:
        for epoch, values in curves.get(uid, ()):
            if metric in values:
                by_epoch.setdefault(epoch, []).append(values[metric])
    return dict(sorted(by_epoch.items()))


def _band(store: Store, report: ReportView, curves: Curves) -> BandView | None:
    """Return the best configuration's curve with its 95% interval.

    A confirmed study, and a confirmation, have the curve of the winner on the seeds that estimate it.
    """
    metric, confirmation = report.curves.metric, report.confirmation
    if confirmation and confirmation.best and confirmation.winner is not None:
        name, winner = confirmation.confirmation, confirmation.winner
        label, curves = confirmation.best.name, _measured(store, name, (metric,))
        uids = _estimating_uids(store, name, winner)
    elif report.ranked:
        best = report.trials[report.ranked[0]]
        uids, label = [seed.uid for seed in best.seeds or ()], f"trial {best.number}"
        if report.fresh is not None:
            uids = _estimating_uids(store, report.study.study, best.number)
    else:
        return None
    bounds = _bounds(Config.from_json(store.study(report.study.study).config, report.study.study), metric)
    several, of_seeds = len(report.study.environments or [report.study.env]), dict[int, list[float]]()
    seeds = [uids[start : start + several] for start in range(0, len(uids), several)]
    for seed in seeds:
        for epoch, values in _by_epoch(curves, seed, metric).items():
            if len(values) == several:  # in each environment
                of_seeds.setdefault(epoch, []).append(statistics.fmean(values))
    points = []
    for epoch, values in sorted(of_seeds.items()):
        if len(values) >= FEWEST:
            mean, low, high = map(float, mean_interval(values, repetitions=400).within(*bounds, values))
            points.append((epoch, mean, low, high))
    return BandView(label=label, seeds=len(seeds), points=points) if points else None


def _bounds(config: Config, metric: str) -> Bounds:
    """Return the least and the greatest possible value of a metric."""
    with suppress(ValueError):  # the task may be of a package that is not installed here
        return bounds_of(metric, load(config.task), config.environments)
    return bounds_by_name(metric, config.environments)


def _estimating_uids(store: Store, name: str, candidate: int) -> list[str]:
    """Return the uids of the trainings that estimate a candidate."""
    config = Config.from_json(store.study(name).config, name)
    replicates = {trial.replicate: trial for trial in store.trials(name) if trial.configuration == candidate}
    lost = lost_seeds(config, {replicate: trial.state for replicate, trial in replicates.items()})
    fresh = {n: trial.uid for n, trial in replicates.items() if estimates(config, n)}
    return [uid for n, uid in fresh.items() if n // len(config.environments) not in lost]
