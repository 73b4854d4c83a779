"""Schedulers by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...plugins import PluginError
from ..errors import StoreError
from ..methods import OF_SCHEDULERS
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.environments import is_across
from ..study.plan import Plan, Scheduler
from .confirming import Confirming
from .halving import Halving
from .racing import RacingScheduler, RungScheduler
from .seeds import SeedScheduler, is_racing, seeds_of


def scheduler(config: Config) -> Scheduler:
    """Return a new scheduler for a study, before it observed any row.

    Raises:
        StoreError: the scheduler is unknown, or its package is not installed.
    """
    try:
        instance: Scheduler = OF_SCHEDULERS.load(config.scheduler)(config)
    except PluginError as error:
        raise StoreError(
            f"a study keeps its scheduler, but {error}; use the Rekindle and the packages that created the study, or "
            "create another study"
        ) from None
    if isinstance(instance, Confirming):
        return instance
    if is_racing(config) and isinstance(instance, Halving):
        return RacingScheduler(config, instance)
    if is_across(config) and isinstance(instance, Halving):
        return RungScheduler(config, instance)
    return SeedScheduler(config, instance) if seeds_of(config) > 1 else instance


def without_finalist(config: Config) -> str | None:
    """Return why no trial will reach the end, or None."""
    reached = scheduler(config).entrants()
    if reached[-1]:
        return None
    base, last = config.epochs[2], max(epochs for epochs, count in zip(config.rungs, reached, strict=True) if count)
    return (
        f"{config.scheduler} promotes one of {base} trials of a rung, so of {config.trials[-1]} trials none trains for "
        f"more than {last} of {config.rungs[-1]} epochs; take {base ** (len(config.rungs) - 1)} trials, fewer epochs, "
        "or another scheduler"
    )


def plan(config: Config, trials: Iterable[Trial], segments: Iterable[Segment]) -> Plan:
    """Compute the plan of a study from all its rows."""
    fresh = scheduler(config)
    fresh.observe(*remembered(trials, segments))
    return fresh.plan()


def remembered(trials: Iterable[Trial], segments: Iterable[Segment]) -> tuple[list[Trial], list[Segment]]:
    """Return rows in which excluded trials have no score.

    Args:
        trials: the study's trials, at least those of the segments.
        segments: the study's segments.
    """
    trials_so_far = list(trials)
    excluded = {trial.number for trial in trials_so_far if trial.excluded}
    lost = {"state": "failed", "score": None, "objectives": None}
    return trials_so_far, [replace(row, **lost) if row.number in excluded else row for row in segments]  # type: ignore[arg-type]


def without_excluded(trials: Iterable[Trial], segments: Iterable[Segment]) -> tuple[list[Trial], list[Segment]]:
    """Return the rows of trials that are not excluded, for analyses."""
    kept = [trial for trial in trials if not trial.excluded]
    numbers = {trial.number for trial in kept}
    return kept, [row for row in segments if row.number in numbers]
