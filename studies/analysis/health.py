"""Checks of a study's health, each with a cure.

A check reports a defect only if the rows show it beyond chance. Its docstring says what that takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...spaces.choices import Ordinal
from ...spaces.dimension import Dimension, Maybe
from ...spaces.ranges import Integer, NearOne, Range, Real
from ...tasks.errors import ADVICE, INEXACT, LOWER_RATES, ProgramError, ProgramFailed
from ..engine.confirmation_views import complete_confirmation
from ..engine.probes import GOES_ON, probe_view
from ..engine.ranking import rank
from ..engine.study_views import study_view
from ..engine.views import Probe, View
from ..failures import FAILED, one_line
from ..schedulers.adaptive import differ_later
from ..schedulers.registry import without_excluded
from ..schedulers.seeds import collapse, is_racing, seeds_of
from ..statistics.rank_correlation import spearman
from ..statistics.tails import f_normal
from ..storage.rows import Event, Segment, Trial, score_of
from ..study.config import Config
from ..study.environments import is_across
from ..study.number_text import counted
from ..study.objectives import MINIMIZE, objectives_of, ranks_by_score
from .cures import Finding, less_misled
from .importance import (
    CLEAR,
    ImportancesView,
    MarginalView,
    Measurements,
    PairView,
    ShareView,
    importances,
    measurements,
)
from .rising import drawn_return, is_early, is_rewarded, risen, too_short
from .unlearned import (
    EPISODE_RETURN,
    RETURN_EPISODES,
    Curve,
    Signs,
    bar_of,
    confirmed_bar,
    is_ahead,
    learned_nothing,
    measured_best,
    not_judged,
    nothing_learned,
    together_above,
)

if TYPE_CHECKING:
    from ..storage.store import Store

EDGE = 0.1  # fraction of a range, at each end
MATTERS = 0.02  # share of the variance
NO_EFFECT = 0.05
FEWEST_TRIALS = 16
FEWEST_PROMOTED = 6
FAILURES = 0.2  # fraction of the trials that ended
ONE_KIND = 0.6  # fraction of the failures
IDLE = 0.5
WASTE = 0.75
MISLEADS = 0.3  # rank correlation
UPPER = 1.2816  # the 90% quantile of a normal variable
WAITLESS = "asha"  # scheduler with which no worker waits
STARTS = ("start", "resume", "takeover")


@dataclass(frozen=True)
class Rows:
    """Rows and results that the checks read, without excluded trials.

    Attributes:
        config: configuration of the study.
        trials: one row for each configuration, over all of its seeds.
        segments: their segments.
        replicates: trials with one seed each.
        runs: their segments.
        results: those of the configurations.
        order: numbers of the configurations with results, best in the first objective first, as in the tables.
        curves: metrics of all tasks by uid.
        probe: probe of the environment.
        bar: score above which a result is learned, see `bar_of`.
        learned: configurations that have learned, whatever their results.
        explained: what hyperparameters explain; empty if nothing is learned, since it would be noise.
        events: events of all tasks, including those of excluded trials, oldest first.
        saved: time at which each lease stored its last checkpoint, by uid and fencing token.
    """

    config: Config
    trials: Sequence[Trial]
    segments: Sequence[Segment]
    replicates: Sequence[Trial]
    runs: Sequence[Segment]
    results: Measurements
    order: Sequence[int]
    curves: Mapping[str, Curve]
    probe: Probe
    bar: float | None
    learned: Collection[int]
    explained: ImportancesView
    events: Sequence[Event]
    saved: Mapping[tuple[str, int], float]

    @property
    def unlearned(self) -> bool:
        """True if nothing is learned."""
        return learned_nothing(self.results, self.bar, self.learned)

    @property
    def shares(self) -> dict[str, ShareView]:
        """Shares of the variance by hyperparameter, the largest first."""
        return {share.name: share for share in self.explained.importances}

    @property
    def pairs(self) -> Sequence[PairView]:
        """Shares of the variance that pairs of hyperparameters explain."""
        return self.explained.pairs

    @property
    def last(self) -> list[int]:
        """Configurations with a result on the last rung, best first."""
        numbers = self.results.numbers[self.results.rungs == len(self.config.rungs) - 1]
        return [number for number in self.order if number in numbers]


class DiagnosisView(View):
    """Importances of a study's hyperparameters, and its defects."""

    study: Annotated[str, "name"]
    objective: Annotated[str, "name of the objective"]
    results: Annotated[int, "number of results"]
    configurations: Annotated[int, "number of configurations with results"]
    unlearned: Annotated[bool, "whether no result beats untrained policies; then there are no importances"]
    importances: Annotated[Sequence[ShareView], "shares of the variance, the largest first"]
    marginals: Annotated[Sequence[MarginalView], "effects of values"]
    pairs: Annotated[Sequence[PairView], "shares of the variance that pairs explain, the largest first"]
    findings: Annotated[Sequence[Finding], "defects"]


def diagnose(store: Store, name: str) -> DiagnosisView:
    """Return a study's importances and defects.

    Args:
        store: store that holds the study.
        name: name of the study.
    """
    rows = _rows(store, name)
    checks = [check for check in CHECKS if not (rows.unlearned and check in OF_RESULTS)]
    return DiagnosisView(
        study=name,
        objective=next(iter(objectives_of(rows.config))),
        results=len(rows.results.scores),
        configurations=len(np.unique(rows.results.numbers)),
        unlearned=rows.unlearned,
        importances=rows.explained.importances,
        marginals=rows.explained.marginals,
        pairs=rows.pairs,
        findings=[finding for check in checks for finding in check(rows)],
    )


def _rows(store: Store, name: str) -> Rows:
    """Return a study's rows, and what is known of its results."""
    config = Config.from_json(store.study(name).config, name)
    replicates, runs = without_excluded(store.trials(name), store.segments(name))
    trials, segments = collapse(config, replicates, runs)
    results, probe = measurements(config, trials, segments), probe_view(store.commands(name))
    objective, direction = next(iter(objectives_of(config).items()))
    curves = store.curves(name, (objective, EPISODE_RETURN, RETURN_EPISODES))
    trained = study_view(store, name).trials
    bar = bar_of(config, probe, len(results.scores), *measured_best(replicates, runs, curves))
    bar = confirmed_bar(complete_confirmation(store, name, trained), bar, probe)
    learned = set() if bar is None else risen(probe, replicates, curves) | together_above(probe, results)
    sign = -1 if direction == MINIMIZE else 1
    return Rows(
        config=config,
        trials=trials,
        segments=segments,
        replicates=replicates,
        runs=runs,
        results=results,
        order=[trial.number for trial in rank(trained, {objective: direction})],
        curves=curves,
        probe=probe,
        bar=bar,
        learned=learned,
        explained=ImportancesView() if learned_nothing(results, bar, learned) else importances(results, sign),
        events=store.events_of_study(name),
        saved=store.saved_last(name),
    )


def none_learned(rows: Rows) -> Iterator[Finding]:
    """Find studies of which no trial, one, or all alike have learned.

    See `unlearned.nothing_learned`, and `unlearned.not_judged` for studies of which that is not known.
    """
    signs = Signs(rows.learned, drawn=drawn_return(rows.replicates, rows.curves), rewarded=is_rewarded(rows.curves))
    if rows.unlearned:
        measured = measured_best(rows.replicates, rows.runs, rows.curves)
        early = is_early(rows.config, rows.replicates, rows.last, rows.curves)
        scores = rows.results.scores
        ahead = is_ahead(rows.probe, float(scores.max()), len(scores), *measured)
        signs = replace(signs, early=early, ahead=ahead)
    findings = [*nothing_learned(rows.config, rows.results, rows.bar, rows.probe, signs)]
    yield from findings or not_judged(rows.config, rows.results, rows.probe)


def still_rise(rows: Rows) -> Iterator[Finding]:
    """Find studies whose returns still rise when training ends.

    See `rising.too_short`.
    """
    if not is_across(rows.config):
        yield from too_short(rows.config, rows.replicates, rows.last, rows.curves)


def best_at_edge(rows: Rows) -> Iterator[Finding]:
    """Find ranges and ordinals whose best values are at an end.

    The best configuration lies in the outer tenth of the range, and the median of the best quarter in the outer fifth
    at the same end. The hyperparameter explains more than 2% of the variance.
    """
    numbers = rows.order
    if len(numbers) < FEWEST_TRIALS:
        return
    params = {trial.number: trial.params for trial in rows.trials}
    for name, dimension in rows.config.searched.flat().items():
        ends = _ends(dimension)
        if ends is None or name not in rows.shares or rows.shares[name].low < MATTERS:
            continue
        values = [params[n].get(name) for n in numbers]
        if values[0] is None:  # the best configuration does without it
            continue
        places = [_fraction(dimension, value) for value in values if value is not None]
        best, middle = places[0], float(np.median(places[: max(3, len(places) // 4)]))
        low, high = best < EDGE and middle < 2 * EDGE, best > 1 - EDGE and middle > 1 - 2 * EDGE
        if low or high:
            end, other = ends if low else ends[::-1]
            yield Finding(
                "edge",
                f"the best values of {name} are at the {'lower' if end < other else 'upper'} end of its range, {end:g}",
                f"search beyond it (--prior {name}=..., with a wider range), or if nothing beyond is allowed, fix it "
                f"there (--set {name}={int(end) if float(end).is_integer() else end!r})",
            )


def _ends(dimension: Dimension) -> tuple[float, float] | None:
    """Return the lowest and highest value; None if they have no order."""
    match dimension:
        case Maybe(dimension=inner):
            return _ends(inner)
        case Range(low=low, high=high):
            return low, high
        case Ordinal(values=values) if len(values) > 1 and {*map(type, values)} <= {int, float}:
            return float(str(values[0])), float(str(values[-1]))
    return None


def _fraction(dimension: Dimension, value: Any) -> float:
    """Return where in its range a value lies, 0 to 1."""
    match dimension:
        case Maybe(dimension=inner):
            return _fraction(inner, value)
        case NearOne(distance=distance):
            return 1 - _fraction(distance, 1 - value)
        case Ordinal(values=values):
            nearest = min(range(len(values)), key=lambda index: abs(float(str(values[index])) - value))
            return nearest / (len(values) - 1)
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    value = min(max(value, low), high)  # the range may have changed since
    if isinstance(dimension, Integer | Real) and dimension.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))


def without_effect(rows: Rows) -> Iterator[Finding]:
    """Find hyperparameters whose share of the variance is below 5%, interval included.

    One that clearly acts together with another is not among them.
    """
    if len(np.unique(rows.results.numbers)) < FEWEST_TRIALS or len(rows.shares) < 2:
        return
    together = {name for pair in rows.pairs if pair.low >= CLEAR for name in pair.names}
    for name, share in rows.shares.items():
        if share.high < NO_EFFECT and name not in together:
            yield Finding(
                "no effect",
                f"{name} explains less than {NO_EFFECT:.0%} of how results vary (at most {share.high:.1%})",
                f"fix it (--set {name}=...), which leaves fewer dimensions to search",
            )


def seeds_vary(rows: Rows) -> Iterator[Finding]:
    """Find studies whose seeds vary more than their configurations do.

    The variance within configurations exceeds the variance between them, after what the seeds add to the latter is
    subtracted. The F test rejects at 10% that the two are equal.
    """
    if seeds_of(rows.config) < 2 or is_across(rows.config):  # environments differ far more than seeds do
        return
    if rows.config.scheduling.confirms:  # its candidates are the best of a search, and so alike
        return
    groups: dict[int, list[float]] = {}
    for row in rows.runs:
        if row.state == "done" and row.rung == 0:
            groups.setdefault(row.configuration, []).append(score_of(row))
    whole = [group for group in groups.values() if len(group) > 1]
    if len(whole) < 4:
        return
    within = float(np.mean([np.var(group, ddof=1) for group in whole]))
    if not within:
        return
    total = float(np.var([np.mean(group) for group in whole], ddof=1))
    noise = float(np.mean([1 / len(group) for group in whole]))
    # If both variances were equal, the means would have a variance of (1 + noise) * within.
    freedom = len(whole) - 1, sum(len(group) - 1 for group in whole)
    if f_normal(total / within / (1 + noise), *freedom) < -UPPER:
        # A confirmation trains fixed hyperparameters, and ranks by one objective.
        confirmable = not rows.config.scheduling.population and len(objectives_of(rows.config)) == 1
        confirm = ", or confirm the best (rekindle confirm)" if confirmable else ""
        yield Finding(
            "seeds",
            f"seeds vary more (standard deviation {math.sqrt(within):.3g}) than configurations do "
            f"({math.sqrt(max(0.0, total - noise * within)):.3g})",
            f"compare by more seeds (--seeds {4 * seeds_of(rows.config)}){confirm}",
        )


def first_rung_misleads(rows: Rows) -> Iterator[Finding]:
    """Find studies whose first rung says little about a later one.

    The later rung is the last one that at least six configurations reached. Spearman's correlation with it, plus one
    standard error, is below 0.3 after Thorndike's correction for the range that promotion restricts. So it is not
    enough that the few promoted ones, which hardly differ on the first rung, show no correlation. A first rung on which
    all are equal says nothing about later results that differ, however few. Members of a population change between
    rungs, so theirs are not compared.
    """
    if rows.config.scheduling.population:
        return
    first = {row.number: score_of(row) for row in rows.segments if row.state == "done" and row.rung == 0}
    equal = len({*first.values()}) == 1 and ranks_by_score(rows.config)
    if equal and len(first) >= FEWEST_PROMOTED:
        continued = [row for row in rows.segments if row.state == "done" and row.rung > 0]
        pruned = len(first) > len({row.number for row in continued})
        if pruned and differ_later([row for row in rows.segments if row.number in first and row.rung == 0], continued):
            text = f"all results at epoch {rows.config.rungs[0]} are equal, but later ones differ"
            yield _rung_finding(rows.config, text)
        return
    for rung in range(len(rows.config.rungs) - 1, 0, -1):
        later = {row.number: score_of(row) for row in rows.segments if row.state == "done" and row.rung == rung}
        both = [number for number in later if number in first]
        if len(both) < FEWEST_PROMOTED:
            continue
        early, late = [first[n] for n in both], [later[n] for n in both]
        if (correlation := spearman(early, late)) is None:
            return
        wider = float(np.std([*first.values()]) / max(float(np.std(early)), 1e-12))
        error = 1 / math.sqrt(max(1, len(both) - 3))
        above = math.tanh(math.atanh(max(-0.999, min(0.999, correlation))) + error)
        corrected, most = (r * wider / math.sqrt(1 + r**2 * (wider**2 - 1)) for r in (correlation, above))
        if most < MISLEADS:
            epochs = rows.config.rungs
            yield _rung_finding(
                rows.config,
                f"results at epoch {epochs[0]} say little about those at epoch {epochs[rung]} (rank correlation "
                f"{corrected:.2f})",
            )
        return


def _rung_finding(config: Config, text: str) -> Finding:
    """Return a finding about the first rung, with a cure."""
    return Finding("first rung", text, less_misled(config, *config.rungs[:2]))


CURES = {
    "diverged": "lower the learning rates' upper ends (--prior), or clip gradients",
    "memory": "train fewer trials at once (--workers, --cohort), or smaller networks",
    "environment": f"fix the environment (`rekindle show UID` has its traceback); {GOES_ON}",
    "program": "mend the program; `rekindle show UID` has the last lines of its output",
    "killed": "find out what kills workers, often too little memory; fewer --workers may help",
}


def failures_of_one_kind(rows: Rows) -> Iterator[Finding]:
    """Find studies in which many trials fail for the same reason.

    Trainings that a race spared have not been tried, and do not count.
    """
    begun = {row.number for row in rows.runs}
    spared = {trial.number for trial in rows.replicates if trial.state == "pruned" and trial.number not in begun}
    ended = [trial for trial in rows.replicates if trial.state != "running" and trial.number not in spared]
    failed = [trial for trial in ended if trial.state == "failed"]
    if len(failed) < 2 or len(failed) < FAILURES * len(ended):
        return
    kinds = {event.uid: event.data.get("kind") for event in rows.events if event.kind == FAILED}
    causes = [str(kinds.get(trial.uid) or "unknown") for trial in failed]
    cause, count = Counter(causes).most_common(1)[0]
    if count >= ONE_KIND * len(failed):
        noun = "trainings" if seeds_of(rows.config) > 1 else "trials"
        description = failed[causes.index(cause)].error
        last_line = one_line(description) if description else ""
        if last_line.partition(":")[0] in (ProgramFailed.__name__, ProgramError.__name__):
            cause = "program"
        error, _, cure = last_line.rpartition("; ")
        if cause != "diverged" or cure == LOWER_RATES or not error:  # else it is the environment's fault
            cure = CURES.get(cause, "`rekindle show UID` has the traceback; fix or leave out the values that cause it")
        yield Finding(
            "failures",
            f"{count} of {len(ended)} {noun} failed in one way: {cause}" + (f" ({last_line})" if last_line else ""),
            cure,
        )


def workers_idle(rows: Rows) -> Iterator[Finding]:
    """Find studies whose workers waited more than half of the time.

    A worker is busy from a task's start or resume to the last checkpoint that it wrote. The number of workers is the
    largest number that were ever busy at once. Time during which nobody was busy does not count.
    """
    busy: dict[str, list[tuple[float, float]]] = {}
    for event in rows.events:
        end = rows.saved.get((event.uid, event.data.get("token", -1)))
        if event.kind in STARTS and end is not None and end > event.created:
            busy.setdefault(str(event.data.get("owner")), []).append((event.created, end))
    spans = [span for intervals in busy.values() for span in _union(intervals)]
    together = sum(end - start for start, end in _union(spans))
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = max(np.cumsum([step for _, step in steps]).tolist(), default=0)
    if most < 2 or together <= 0:
        return
    idle = 1 - sum(end - start for start, end in spans) / (most * together)
    if idle > IDLE:
        yield Finding("idle", f"workers waited {idle:.0%} of the time, while others trained", _less_idle(rows.config))


def _less_idle(config: Config) -> str:
    """Return how workers wait less, by what the study may have."""
    facts = config.scheduling
    if facts.confirms or facts.population:
        return "use fewer --workers"
    if config.scheduler == WAITLESS or is_across(config) or is_racing(config):
        return "use a larger --generation, or fewer --workers"
    return f"use --scheduler {WAITLESS}, a larger --generation, or fewer --workers"


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of time intervals, as intervals that do not overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def spent_on_pruned(rows: Rows) -> Iterator[Finding]:
    """Find studies that spent most of their epochs on pruned trials.

    The check skips the adaptive scheduler, which decides from the study's own rungs how many trials to prune, and
    populations, in which another member continues from each one that is replaced. On a single rung, only a race prunes,
    which spares seeds.
    """
    if rows.config.scheduling.adapts or rows.config.scheduling.population or len(rows.config.rungs) < 2:
        return
    trained: dict[int, int] = {}
    for row in rows.runs:
        if row.state == "done":
            trained[row.number] = max(trained.get(row.number, 0), row.epochs)
    pruned = sum(trained.get(trial.number, 0) for trial in rows.replicates if trial.state == "pruned")
    total = sum(trained.values())
    if total and any(trial.state == "complete" for trial in rows.replicates) and pruned > WASTE * total:
        low, *between, high = rows.config.rungs
        base = min(max(9, rows.config.epochs[2] ** 2), high)
        fewer = f"fewer rungs (a larger base, such as --epochs {low}:{high}:{base}), or " if between else ""
        yield Finding(
            "pruned",
            f"{pruned / total:.0%} of all epochs went into trials that were pruned",
            f"use {fewer}smaller brackets (--generation)",
        )


def not_exact(rows: Rows) -> Iterator[Finding]:
    """Find trainings that are not bit-exact, and advice about environments."""
    for category in (INEXACT, ADVICE):
        texts = Counter(text for event in rows.events if event.kind == category for text in event.data[category])
        for text, count in sorted(texts.items()):
            statement, _, cure = text.rpartition("; ")
            of = f"{counted(count, 'training')} not bit-exact: " if category == INEXACT else ""
            yield Finding("exactness" if category == INEXACT else "environment", f"{of}{statement or cure}", cure)


Check = Callable[[Rows], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    none_learned,
    best_at_edge,
    without_effect,
    seeds_vary,
    first_rung_misleads,
    failures_of_one_kind,
    workers_idle,
    spent_on_pruned,
    not_exact,
    still_rise,
)
# These say nothing where results are those of untrained policies.
OF_RESULTS: tuple[Check, ...] = (best_at_edge, without_effect, seeds_vary, first_rung_misleads, still_rise)
