"""The schedulers by name, and what the one of a study says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import StoreError
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.plan import Branch, Plan, Scheduler, Seen
from .asha import AsynchronousHalving
from .halving import Halving
from .hyperband import Hyperband
from .pbt import PopulationBased
from .racing import Heats
from .seeds import Replicated, races, seeds_of

__all__ = ["Branch", "Plan", "Scheduler", "Seen", "entrants", "plan", "priority", "scheduler"]

_SCHEDULERS: dict[str, Callable[[Config], Scheduler]] = {
    "halving": Halving,
    "hyperband": Hyperband,
    "asha": AsynchronousHalving,
    "none": Halving,  # of one rung
    "pbt": PopulationBased,
}


def scheduler(config: Config) -> Scheduler:
    """A scheduler for a study, which has seen no row yet; StoreError if this Rekindle does not know it."""
    if config.scheduler not in _SCHEDULERS:
        raise StoreError(
            f"a study goes on with the scheduler that it began with, but {config.scheduler!r} is none of "
            f"{', '.join(_SCHEDULERS)}; use the Rekindle that made the study, or another name for a new one"
        )
    found = _SCHEDULERS[config.scheduler](config)
    if races(config) and isinstance(found, Halving):
        return Heats(config, found)
    return Replicated(config, found) if seeds_of(config) > 1 else found


def plan(config: Config, trials: Iterable[Trial], segments: Iterable[Segment]) -> Plan:
    """What follows from all rows of a study."""
    fresh = scheduler(config)
    fresh.observe(trials, segments)
    return fresh.plan()


def priority(config: Config, segment: Segment) -> tuple[int, int]:
    """Sorts ready segments so that those that the others wait for come first."""
    return scheduler(config).priority(segment)


def entrants(config: Config) -> list[int]:
    """How many trials train to each rung, if none fails."""
    return scheduler(config).entrants()
