"""Views of a study's trials, read from rows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence

from ..schedulers.confirming import Confirmation, estimates
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.environments import is_across, labels
from ..study.number_text import counted
from ..study.objectives import RETURN, constraints_of, violation
from ..study.repeats import means, origin
from .views import BranchView, OriginView, RungView, SeedView, TrialView

RUNNING, WAITING = "running", "waiting"  # of trials that have not ended: a process trains it now, or none does
STATES = ("complete", "pruned", "failed", "cancelled", RUNNING, WAITING)


def origins(config: Config) -> list[OriginView]:
    """Return the origins of a confirmation's candidates, by their numbers."""
    confirmation = Confirmation.of(config)
    return [OriginView(trial=trial, defaults=n == confirmation.defaults) for n, trial in enumerate(confirmation.trials)]


def trial_views(
    config: Config, trials: Sequence[Trial], segments: Sequence[Segment], in_training: Collection[int]
) -> list[TrialView]:
    """Return trials with their results; the arguments are those of `trial_view`."""
    by_trial: dict[int, list[Segment]] = {}
    for row in segments:
        by_trial.setdefault(row.number, []).append(row)
    return [trial_view(config, trial, by_trial.get(trial.number, []), in_training) for trial in trials]


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
        state=state_of(trial, in_training),
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


def state_of(trial: Trial, in_training: Collection[int]) -> str:
    """Return a trial's state; one that no process trains waits."""
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


def over_seeds_of(trials: Sequence[TrialView], failed: Collection[int]) -> list[TrialView]:
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


def with_seeds(
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
    for trial, view in zip(trials, trial_views(config, trials, segments, in_training), strict=True):
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
