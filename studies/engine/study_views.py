"""Views of studies, read from rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...tasks.catalog import is_resume_label
from ...tasks.errors import ADVICE, INEXACT
from ..schedulers.adaptive import agreements, differ_later
from ..schedulers.confirming import winner_of
from ..schedulers.registry import plan, remembered, without_excluded
from ..schedulers.seeds import collapse, is_racing, seeds_of
from ..statistics.rank_correlation import FEWEST, pool, unrestricted
from ..storage.commands import EXCLUDE, PAUSE, PROBE, STOP, hold_of
from ..storage.rows import Segment, Trial
from ..storage.studies import SEGMENT_STATES
from ..study.config import Config
from ..study.environments import is_across, scale_of
from ..study.number_text import counted
from ..study.objectives import CONSTRAINT, objectives_of, ranks_by_score
from ..study.repeats import unreliable
from .probes import probe_view
from .ranking import front
from .trial_views import RUNNING, STATES, WAITING, origins, over_seeds_of, trial_view, trial_views, with_seeds
from .views import AgreementView, ProgressView, StudyView, SummaryView, TrialView

if TYPE_CHECKING:
    from ..storage.store import Store

Json = dict[str, Any]
MISLEADING = 0.5  # a rung misleads if its whole 95% interval of agreement with the next rung lies below this
HELD = {STOP: "stopped", PAUSE: "paused"}


def study_view(store: Store, name: str) -> StudyView:
    """Return a study with all its trials."""
    study = store.study(name)
    config = Config.from_json(study.config, name)
    rows, replicates = store.segments(name), store.trials(name)
    scale = scale_of(config, remembered(replicates, rows)[1]) if is_across(config) else None
    trials, segments = collapse(config, replicates, rows, scale)
    in_training = store.in_training(name)
    in_configurations = {number // seeds_of(config) for number in in_training}
    configurations = over_seeds_of(trial_views(config, trials, segments, in_configurations), unreliable(trials))
    if seeds_of(config) > 1:
        configurations = with_seeds(config, configurations, replicates, rows, in_training)
    if config.scheduling.confirms:
        candidates = origins(config)
        configurations = [trial.replace(candidate=candidates[trial.number]) for trial in configurations]
    complete = plan(config, replicates, rows).complete
    finished, best = Counter((row.rung, row.state) for row in rows), front(configurations, objectives_of(config))
    if config.scheduling.confirms:
        # Its race has chosen the best; the highest estimate would be partly luck.
        winner = winner_of(config, rows)
        best = [trial for trial in configurations if trial.number == winner and trial.epochs]
    summary = _summary(
        store,
        name,
        complete=complete,
        segments=finished,
        best=best,
        counts={state: sum(trial.state == state for trial in configurations) for state in STATES},
        brackets=max(((trial.bracket or 0) + 1 for trial in trials), default=0),
        eval_steps=sum(row.eval_steps or 0 for row in rows),
        spared=_skipped_trainings(configurations) if is_racing(config) else 0,
        agreement=_agreement(config, trials, segments),
    )
    return StudyView.of(summary, configurations)


def study_json(store: Store, name: str) -> Json:
    """Return the JSON of a study with all its trials."""
    return study_view(store, name).to_json()


def _agreement(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> list[AgreementView]:
    """Return how well each rung's ranking agrees with the next one's.

    A rung on which all results are equal has no correlation. It misleads if later results differ. One after which all
    trials went on has misled nobody.
    """
    if config.scheduling.population:
        return []  # members change between rungs, so their ranks cannot be compared
    trials, segments = without_excluded(trials, segments)
    bracket_of = {trial.number: trial.bracket or 0 for trial in trials}
    brackets: dict[int, list[list[Segment]]] = {}  # results by rung of each, as trials compete only within a bracket
    for row in segments:
        if row.state == "done":
            brackets.setdefault(bracket_of[row.number], [[] for _ in config.rungs])[row.rung].append(row)
    promoted = {(row.number, row.rung) for row in segments}  # also trials that failed there
    by_bracket = [agreements(config, results) for results in brackets.values()]
    views: list[AgreementView] = []
    for rung, parts in enumerate(zip(*by_bracket, strict=True)):
        agreement = pool(parts)
        lower_rows, upper_rows = ([row for rows in brackets.values() for row in rows[at]] for at in (rung, rung + 1))
        equal = len({row.score for row in lower_rows}) == 1 and ranks_by_score(config)
        fields: dict[str, Any]
        pruned = any((row.number, rung + 1) not in promoted for row in lower_rows)
        if equal and pruned and len(lower_rows) >= FEWEST:
            misleads = differ_later(lower_rows, upper_rows)
            fields = {"trials": len(lower_rows), "correlation": None, "interval": None, "misleads": misleads}
        elif agreement.pairs:
            # Only the best are promoted, and a rank correlation is smaller among them than among all trials.
            share = agreement.pairs / len(lower_rows)
            correlation, low, high = (unrestricted(r, share) for r in (agreement.correlation, *agreement.interval))
            misleads, interval = pruned and high < MISLEADING, (low, high)
            fields = {"trials": agreement.pairs, "correlation": correlation, "interval": interval, "misleads": misleads}
        else:
            continue
        views.append(AgreementView(epochs=config.rungs[rung], next=config.rungs[rung + 1], **fields))
    return views


def summary_view(store: Store, name: str) -> SummaryView:
    """Return a study without its trials, reading only the best of them."""
    config = Config.from_json(store.study(name).config, name)
    excluded = any(command.kind == EXCLUDE for command in store.commands(name))
    # The database neither aggregates seeds nor leaves excluded trials out, so all trials must be read.
    if excluded or seeds_of(config) > 1:
        return study_view(store, name).summary()
    totals, objectives, in_training = store.totals(name), objectives_of(config), store.in_training(name)
    counts = {state: totals.trials.get(state, 0) for state in STATES}
    longest = store.longest(name, best=ranks_by_score(config) and not config.repeating)
    failed = unreliable(store.trials(name, of=[*chain(*config.repeating)]) if config.repeating else ())
    best = front(over_seeds_of([trial_view(config, *row, in_training) for row in longest], failed), objectives)
    complete = not counts[RUNNING] and sum(counts.values()) >= config.trials[-1]
    counts[WAITING] = counts[RUNNING] - len(in_training)
    counts[RUNNING] = len(in_training)
    return _summary(
        store,
        name,
        complete=complete,
        segments=totals.segments,
        best=best,
        counts=counts,
        brackets=totals.brackets,
        eval_steps=totals.eval_steps,
    )


def _summary(
    store: Store,
    name: str,
    *,
    complete: bool,
    segments: Mapping[tuple[int, str], int],
    best: Sequence[TrialView],
    counts: Mapping[str, int],
    brackets: int,
    eval_steps: int,
    spared: int = 0,
    agreement: Sequence[AgreementView] | None = None,
) -> SummaryView:
    """Return a summary of a study.

    Args:
        store: store of the study.
        name: name of the study.
        complete: whether nothing is left to train.
        segments: number of trainings by rung and state.
        best: Pareto front.
        counts: number of trials by state.
        brackets: number of brackets begun.
        eval_steps: environment steps of all evaluations.
        spared: number of trainings that racing left out.
        agreement: agreement of each rung with the next, if it is known.
    """
    config, steering, labels = (
        Config.from_json(store.study(name).config, name),
        store.commands(name),
        store.labels(name),
    )
    command = hold_of(steering)
    return SummaryView(
        study=name,
        state="complete" if complete else HELD[command.kind] if command else "running",
        held=None if complete else command,
        commands=[command for command in steering if command.kind != PROBE],
        probe=probe_view(steering),
        task=config.task,
        env=config.env,
        environments=list(config.environments) if is_across(config) else None,
        seed=config.seed,
        sampler=config.sampler,
        scheduler=config.scheduler,
        seeds=seeds_of(config),
        weight=config.options.get("weight", 1.0),
        aggregate=config.options.get("aggregate"),
        rungs=list(config.rungs),
        fixed=dict(config.fixed),
        trials_total=config.trials[-1],
        objectives=objectives_of(config),
        constraints=config.options.get(CONSTRAINT),
        progress=[
            ProgressView(rung=n, epochs=epochs, **{state: segments.get((n, state), 0) for state in SEGMENT_STATES})
            for n, epochs in enumerate(config.rungs)
        ],
        spared=spared,
        eval_steps=eval_steps,
        best=next(iter(best), None),
        front=[trial.number for trial in best],
        inexact={text: count for text, count in labels[INEXACT].items() if not is_resume_label(text)},
        exactness=config.exactness,
        advice=labels[ADVICE],
        counts=counts,
        brackets=brackets,
        agreement=agreement,
    )


def _skipped_trainings(configurations: Sequence[TrialView]) -> int:
    """Return the number of trainings that racing skipped."""
    ended = (trial for trial in configurations if trial.state in ("complete", "pruned"))
    return sum(seed.epochs < trial.epochs for trial in ended for seed in trial.seeds or ())


def infeasible(study: SummaryView) -> str:
    """Return a clause about a study whose best trial violates its constraints."""
    return f"no trial that trained to {counted(study.best.epochs if study.best else 0, 'epoch')} satisfies " + (
        " and ".join(study.constraints or ())
    )
