"""Views of studies, trials and tasks, read from rows."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from ...tasks.catalog import is_resume_label
from ...tasks.checkpoint.storage import POLICY_PREFIX
from ...tasks.errors import ADVICE, INEXACT
from ..methods import scheduling
from ..schedulers.adaptive import agreements, differ_later
from ..schedulers.confirming import Confirmation, estimates, winner_of
from ..schedulers.registry import plan, remembered, without_excluded
from ..schedulers.seeds import collapse, is_racing, seeds_of
from ..statistics.rank_correlation import FEWEST, pool, unrestricted
from ..storage.branches import BRANCH, Start
from ..storage.commands import EXCLUDE, PAUSE, PROBE, STOP, hold_of
from ..storage.locks.owner import Owner
from ..storage.retention import reasons
from ..storage.rows import Event, Segment, Trial
from ..storage.store import MIRROR
from ..storage.studies import SEGMENT_STATES
from ..study.config import Config
from ..study.environments import is_across, labels, scale_of
from ..study.number_text import counted
from ..study.objectives import (
    CONSTRAINT,
    DEFAULT,
    RETURN,
    constraints_of,
    objectives_of,
    point,
    ranking,
    ranks_by_score,
    undominated,
    violation,
)
from ..study.repeats import means, origin, unreliable
from .probes import probe_view
from .views import (
    AgreementView,
    AncestorView,
    BranchView,
    CheckpointView,
    OriginView,
    ProgressView,
    RungView,
    SeedView,
    StatusView,
    StudyView,
    SummaryView,
    TaskView,
    TrainedView,
    TrainingsView,
    TrainingView,
    TrialOfTaskView,
    TrialView,
    WorkerView,
)

if TYPE_CHECKING:
    from ..storage.store import Store

Json = dict[str, Any]
Progress = Mapping[tuple[int, str], int]
MISLEADING = 0.5  # a rung misleads if its whole 95% interval of agreement with the next rung lies below this
HELD = {STOP: "stopped", PAUSE: "paused"}
RUNNING, WAITING = "running", "waiting"  # of trials that have not ended: a process trains it now, or none does
STATES = ("complete", "pruned", "failed", "cancelled", RUNNING, WAITING)


def trial_view(config: Config, trial: Trial, segments: Sequence[Segment], in_training: Collection[int]) -> TrialView:
    """Return a trial with the results of its last finished rung.

    Args:
        config: configuration of the study.
        trial: the trial.
        segments: its segments.
        in_training: numbers of trials that a process trains now.
    """
    constraints = constraints_of(config)
    violations = [
        violation(constraints, row.objectives) if constraints and row.state == "done" else None for row in segments
    ]
    last = max((row for row in segments if row.state == "done"), key=lambda row: row.rung, default=None)
    return TrialView(
        number=trial.number,
        uid=trial.uid,
        state=_state(trial, in_training),
        excluded=trial.excluded,
        bracket=trial.bracket,
        rung=max((row.rung for row in segments), default=None),
        member=trial.member,
        branch=BranchView(trial=trial.attrs["parent"], **vars(trial.start)) if trial.start else None,
        epochs=last.epochs if last else 0,
        return_=_return(last) if last else None,
        objectives=last.objectives if last else None,
        digest=last.digest if last else None,
        hyperparameters=dict(trial.params),
        error=trial.error,
        rungs=[
            RungView(
                rung=row.rung,
                epochs=row.epochs,
                state=row.state,
                return_=_return(row),
                objectives=row.objectives,
                digest=row.digest,
                eval_steps=row.eval_steps,
                eval_error=row.eval_error,
                violation=violated,
            )
            for row, violated in zip(segments, violations, strict=True)
        ],
        eval_error=last.eval_error if last else None,
        violation=violations[segments.index(last)] if last else None,
        repeats=trial.repeats,
    )


def _state(trial: Trial, in_training: Collection[int]) -> str:
    return WAITING if trial.state == RUNNING and trial.number not in in_training else trial.state


def _return(row: Segment) -> float | None:
    """Return the evaluation return; None for a task that has none."""
    return row.objectives.get(RETURN) if row.objectives else row.score


def state_text(trial: TrialView) -> str:
    """Return a trial's state in words, with failed seeds and violated constraints."""
    failed = sum(seed.state == "failed" for seed in trial.seeds or ())
    lost = f", {counted(failed, 'training')} failed" if failed and trial.state == "complete" else ""
    again = "" if trial.repeats is None else f", repeats {trial.repeats}"
    return trial.state + lost + again + ", infeasible" * bool(trial.violation) + ", excluded" * trial.excluded


def infeasible(study: SummaryView) -> str:
    """Return a clause about a study whose best trial violates its constraints."""
    return f"no trial that trained to {counted(study.best.epochs if study.best else 0, 'epoch')} satisfies " + (
        " and ".join(study.constraints or ())
    )


def rank(trials: Sequence[TrialView], objectives: Mapping[str, str] = DEFAULT) -> list[TrialView]:
    """Rank the trials by epochs trained, then by violation, then by objectives.

    Trials of equal hyperparameters with other seeds rank together, by their mean. Among equal trials, the one with the
    better result comes first, then the one that had the better result on the rung before, and so on down: many reach
    the highest possible return, and those that had it early are more likely to have it with other seeds. Trials
    without a result and excluded trials are left out.
    """
    ranked: list[TrialView] = []
    for _, together in groupby(sorted(_with_results(trials, objectives), key=_training), key=_training):
        equals = list(together)
        ranked += [equals[index] for index in ranking(_points(equals, objectives))]
    return ranked


def ranked(study: StudyView) -> list[TrialView]:
    """Rank a study's trials; the winner of a confirmation comes first."""
    order = rank(study.trials, study.objectives)
    if scheduling(study.scheduler).confirms and study.best:
        best = study.best.number
        order.sort(key=lambda trial: trial.number != best)
    return order


def front(trials: Sequence[TrialView], objectives: Mapping[str, str] = DEFAULT) -> list[TrialView]:
    """Return the Pareto front of the trials that trained longest.

    They are in the order of their objectives, so the first has the best first one.
    """
    measured = _with_results(trials, objectives)
    longest = min(map(_training, measured), default=(0, False, 0, 0.0))
    equals = [trial for trial in measured if _training(trial) == longest]
    points = _points(equals, objectives)
    return [
        equals[index] for index in sorted(undominated(points), key=lambda index: [-value for value in points[index]])
    ]


def _with_results(trials: Sequence[TrialView], objectives: Mapping[str, str]) -> list[TrialView]:
    """Return the trials with a result, in the order of equal ones."""
    trained = [trial for trial in trials if trial.epochs and not trial.excluded]
    return sorted(trained, key=lambda trial: (_earlier(trial, objectives), trial.number))


def _earlier(trial: TrialView, objectives: Mapping[str, str]) -> list[float]:
    """Return the negated first objective of rungs, last first."""
    last = trial.epochs - (len(objectives) > 1)  # repeated trials rank by their means first
    rows = [row for row in trial.rungs if row.state == "done" and row.epochs <= last]
    points = zip(rows, (point(objectives, row.results()) for row in rows), strict=True)
    return [part for row, values in reversed([*points]) for part in (row.violation or 0.0, -values[0])]


def _training(trial: TrialView) -> tuple[int, bool, int, float]:
    """Return a sort key: negated epochs, failed repeats, negated seeds, violation."""
    trained = sum(seed.epochs >= trial.epochs for seed in trial.seeds or ())
    return -trial.epochs, bool(trial.unreliable), -trained, trial.violation or 0.0


def _points(trials: Sequence[TrialView], objectives: Mapping[str, str]) -> list[list[float]]:
    """Return the objectives by which trials rank."""
    return [point(objectives, trial.ranked_by()) for trial in trials]


def _over_seeds(trials: Sequence[TrialView], failed: Collection[int]) -> list[TrialView]:
    """Return trials with the means of those that others repeat.

    Repeats of the trials with the numbers `failed` have failed.
    """
    measured = [trial for trial in trials if trial.epochs and not trial.excluded]
    groups = {trial.number: (origin(trial), trial.epochs) for trial in measured}
    sizes = Counter(groups.values())
    results = {trial.number: trial.results() for trial in measured if sizes[groups[trial.number]] > 1}
    names = {name for values in results.values() for name in values}
    of_name = {name: means(groups, {n: values[name] for n, values in results.items()}) for name in names}
    over_seeds = {n: {name: of_name[name][n] for name in values} for n, values in results.items()}
    return [
        trial.replace(over_seeds=over_seeds.get(trial.number), unreliable=origin(trial) in failed or None)
        for trial in trials
    ]


def study_view(store: Store, name: str) -> StudyView:
    """Return a study with all its trials."""
    study = store.study(name)
    config = Config.from_json(study.config, name)
    rows, replicates = store.segments(name), store.trials(name)
    scale = scale_of(config, remembered(replicates, rows)[1]) if is_across(config) else None
    trials, segments = collapse(config, replicates, rows, scale)
    in_training = store.in_training(name)
    in_configurations = {number // seeds_of(config) for number in in_training}
    configurations = _over_seeds(_trial_views(config, trials, segments, in_configurations), unreliable(trials))
    if seeds_of(config) > 1:
        configurations = _with_seeds(config, configurations, replicates, rows, in_training)
    if config.scheduling.confirms:
        form = Confirmation.of(config)
        candidates = [OriginView(trial=trial, defaults=n == form.defaults) for n, trial in enumerate(form.trials)]
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

    A rung on which all results are equal has no correlation. It misleads if later results differ.
    """
    if config.scheduling.population:
        return []  # members change between rungs, so their ranks cannot be compared
    trials, segments = without_excluded(trials, segments)
    bracket_of = {trial.number: trial.bracket or 0 for trial in trials}
    brackets: dict[int, list[list[Segment]]] = {}  # results by rung of each, as trials compete only within a bracket
    for row in segments:
        if row.state == "done":
            brackets.setdefault(bracket_of[row.number], [[] for _ in config.rungs])[row.rung].append(row)
    reached = Counter(row.rung for row in segments)  # promoted trials, also those that failed there
    by_bracket = [agreements(config, results) for results in brackets.values()]
    views: list[AgreementView] = []
    for rung, parts in enumerate(zip(*by_bracket, strict=True)):
        agreement = pool(parts)
        lower_rows, upper_rows = ([row for rows in brackets.values() for row in rows[at]] for at in (rung, rung + 1))
        equal = len({row.score for row in lower_rows}) == 1 and ranks_by_score(config)
        fields: dict[str, Any]
        if equal and FEWEST <= len(lower_rows) > reached[rung + 1]:
            misleads = differ_later(lower_rows, upper_rows)
            fields = {"trials": len(lower_rows), "correlation": None, "interval": None, "misleads": misleads}
        elif agreement.pairs:
            # Only the best are promoted, and a rank correlation is smaller among them than among all trials.
            share = agreement.pairs / len(lower_rows)
            correlation, low, high = (unrestricted(r, share) for r in (agreement.correlation, *agreement.interval))
            misleads, interval = high < MISLEADING, (low, high)
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
    best = front(_over_seeds([trial_view(config, *row, in_training) for row in longest], failed), objectives)
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
    segments: Progress,
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


def _trial_views(
    config: Config, trials: Sequence[Trial], segments: Sequence[Segment], in_training: Collection[int]
) -> list[TrialView]:
    by_trial: dict[int, list[Segment]] = {}
    for row in segments:
        by_trial.setdefault(row.number, []).append(row)
    return [trial_view(config, trial, by_trial.get(trial.number, []), in_training) for trial in trials]


def _with_seeds(
    config: Config,
    configurations: Sequence[TrialView],
    trials: Sequence[Trial],
    segments: Sequence[Segment],
    in_training: Collection[int],
) -> list[TrialView]:
    """Return the configurations with their replicates.

    Of a confirmation's candidate, only those of its estimate count in its means.
    """
    of_configuration: dict[int, list[SeedView]] = {}
    counted: dict[int, list[SeedView]] = {}
    names = labels(config.environments) if is_across(config) else []
    for trial, view in zip(trials, _trial_views(config, trials, segments, in_training), strict=True):
        seed = SeedView(
            seed=trial.attrs["seed"],
            uid=view.uid,
            state=view.state,
            epochs=view.epochs,
            return_=view.return_,
            digest=view.digest,
            env=names[trial.replicate % len(names)] if names else None,
        )
        of_configuration.setdefault(trial.configuration, []).append(seed)
        if not config.scheduling.confirms or estimates(config, trial.replicate):
            counted.setdefault(trial.configuration, []).append(seed)
    return [
        view.replace(
            seeds=of_configuration[view.number],
            environments={name: _mean_of(counted[view.number], name, view.epochs) for name in names} or None,
        )
        for view in configurations
    ]


def _mean_of(replicates: Sequence[SeedView], env: str, epochs: int) -> float | None:
    """Return the mean result in an environment; None without a result."""
    results = [replicate.return_ for replicate in replicates if replicate.env == env and replicate.epochs == epochs > 0]
    measured = [value for value in results if value is not None]
    return statistics.fmean(measured) if measured and len(measured) == len(results) else None


def _skipped_trainings(configurations: Sequence[TrialView]) -> int:
    """Return the number of trainings that racing skipped."""
    ended = (trial for trial in configurations if trial.state in ("complete", "pruned"))
    return sum(seed.epochs < trial.epochs for trial in ended for seed in trial.seeds or ())


def status_view(store: Store, name: str | None = None) -> StatusView:
    """Return studies of a storage and the processes that train them.

    Args:
        store: the storage.
        name: of the only study to return; None for all.

    Raises:
        UnknownStudy: the storage has no study of this name.
    """
    names = [study.name for study in store.studies()] if name is None else [store.study(name).name]
    alive, of_studies = store.holders(), dict[str, set[str]]()
    in_training = cache(store.in_training)
    workers: dict[str, WorkerView] = {}
    for claim in store.claims():
        if claim.uid not in alive:
            continue
        owner = Owner.parse(claim.owner)
        new = WorkerView(host=owner.host, pid=owner.pid, trials=[], seconds=0.0, lease_left=math.inf)
        worker, trained = workers.get(claim.owner, new), []
        for study, trial in store.trials_of(claim.uid):
            if trial.number not in in_training(study):
                continue  # another study trains the task further
            of_studies.setdefault(study, set()).add(claim.owner)
            trained.append(TrainedView(study=study, number=trial.configuration))
        workers[claim.owner] = worker.replace(
            trials=[*worker.trials, *trained],
            seconds=max(worker.seconds, claim.age),
            lease_left=min(worker.lease_left, claim.left),
        )
    return StatusView(
        storage=store.url,
        studies=[_with_workers(summary_view(store, study), len(of_studies.get(study, ()))) for study in names],
        workers=[workers[owner] for owner in sorted(workers) if name is None or owner in of_studies.get(name, ())],
        tasks=store.count_tasks(without=[MIRROR, POLICY_PREFIX]),
    )


def _with_workers(study: SummaryView, workers: int) -> SummaryView:
    """Return a study with its number of workers; stalled without any."""
    stalled = study.state == "running" and not workers
    return study.replace(workers=workers, state="stalled" if stalled else study.state)


def trainings_view(store: Store) -> TrainingsView:
    """Return the tasks that no study trains."""
    trainings = []
    for row in store.tasks():
        if row.identity is None or "task" not in row.identity or store.trials_of(row.uid):
            continue
        returns = [values[RETURN] for _, values in store.metrics(row.uid) if RETURN in values]
        identity = {name: row.identity[name] for name in ("task", "env", "seed")}
        last = returns[-1] if returns else None
        trainings.append(TrainingView(uid=row.uid, **identity, epochs=row.epochs, return_=last))
    return TrainingsView(storage=store.url, tasks=trainings)


def task_view(store: Store, uid: str) -> TaskView:
    """Return everything stored about one task."""
    [row] = store.tasks([uid])
    checkpoints = store.checkpoints(uid)
    measures, events = dict(store.metrics(uid)), store.events(uid)
    metrics = [{"epoch": epoch, **values} for epoch, values in measures.items()]
    measured = {row["epoch"]: row[RETURN] for row in metrics if RETURN in row}
    identity, of = row.identity or {}, store.trials_of(uid)
    exactness = Config.from_json(store.study(of[0][0]).config, of[0][0]).exactness if of else None
    return TaskView(
        uid=uid,
        task=identity.get("task"),
        env=identity.get("env"),
        seed=identity.get("seed"),
        epochs=row.epochs,
        return_=measured.get(row.epochs),
        digest=checkpoints[-1].digest if checkpoints else None,
        owner=row.owner,
        hyperparameters=identity.get("hyperparameters", {}),
        lineage=_lineage(store, uid, row.epochs),
        trials=[
            TrialOfTaskView(
                study=study,
                number=trial.configuration,
                state=_state(trial, store.in_training(study)),
                error=trial.error,
            )
            for study, trial in of
        ],
        inexact=[text for text in texts_in(events, INEXACT) if exactness is None or not is_resume_label(text)],
        exactness=exactness,
        advice=texts_in(events, ADVICE),
        metrics=metrics,
        checkpoints=[
            CheckpointView(
                epochs=checkpoint.epochs,
                within_epoch=checkpoint.within_epoch,
                digest=checkpoint.digest,
                bytes=sum(checkpoint.blobs.values()),
                created=checkpoint.created,
                kept=why,
            )
            for checkpoint, why in zip(checkpoints, reasons(checkpoints, measures, events), strict=True)
        ],
        events=[{"time": event.created, "kind": event.kind, **event.data} for event in events],
    )


def texts_in(events: Sequence[Event], category: str) -> list[str]:
    """Return the texts in a task's events of this kind, see `TaskRecord.label`."""
    return list(dict.fromkeys(text for event in events if event.kind == category for text in event.data[category]))


def _lineage(store: Store, uid: str, epochs: int) -> list[AncestorView]:
    """Return the lineage from the root, with each task's last epoch."""
    rows: dict[str, int] = {}
    while uid not in rows:
        rows[uid] = epochs
        for event in store.events(uid):
            if event.kind == BRANCH:
                start = Start.of(event.data)
                uid, epochs = start.uid, start.epochs
                break
    return [AncestorView(uid=uid, until=epochs) for uid, epochs in reversed(rows.items())]
