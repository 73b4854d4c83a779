"""Repeats: trials that train the best ones again with further seeds.

The best of many results on one seed is partly luck. So the last trials of a study repeat: they train the
hyperparameters of its best trials to the end, and from then on these rank by the mean over their seeds.
`benchmarks/races.py` measures what this is worth. Trials of which a repeat failed rank below the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import BadConfig
from ..options.entries import check_count
from ..storage.rows import Segment, Trial, score_of
from .config import REPEAT_ONE_OF, Config

MOST = 4  # by default


@dataclass(frozen=True)
class Repeat:
    """A training of a trial's hyperparameters with another seed."""

    trial: Trial
    seed: int


def default_repeats(config: Config, why_not: str | None) -> int:
    """Return how many trials repeat the best ones by default.

    It is one of eight trials in an environment, at most MOST, where they are possible.

    Args:
        config: the study's configuration.
        why_not: why they are not possible, or None.
    """
    return min(MOST, config.trials[0] // REPEAT_ONE_OF) if config.env and why_not is None else 0


def repeats_option(config: Config, repeats: int | None, why_not: str | None) -> dict[str, int]:
    """Return the option of a study with repeats, or {}.

    Args:
        config: the study's configuration.
        repeats: number of them; None for `default_repeats`, as far as there are trials that are not given.
        why_not: why they are not possible, or None.

    Raises:
        BadConfig: they are not possible, or more than half of the trials.
    """
    trials, first = config.trials[0], len(config.first_trials)
    most = min(trials // 2, trials - first)
    if repeats is None:
        repeats = min(default_repeats(config, why_not), most)
    check_count("repeats", repeats, least=0)
    if repeats and why_not is not None:
        raise BadConfig(f"--repeats {repeats} trains the best trials again, but {why_not}; leave it out")
    if repeats > most:
        clause = f", of which {first} are given" if first else ""
        raise BadConfig(
            f"at most half of the trials repeat others, and none that is given, so {most} of {trials}{clause}, but "
            f"--repeats is {repeats}; take fewer, or more --trials"
        )
    return {"repeats": repeats} if repeats else {}


class _Repeating(Protocol):
    """A trial, or its view."""

    @property
    def number(self) -> int: ...
    @property
    def repeats(self) -> int | None: ...
    @property
    def state(self) -> str: ...
    @property
    def excluded(self) -> bool: ...


def unreliable(trials: Iterable[_Repeating]) -> set[int]:
    """Return the numbers of the trials of which a repeat failed.

    Excluded ones do not count.
    """
    failed = [trial for trial in trials if trial.state == "failed" and not trial.excluded]
    return {trial.repeats for trial in failed if trial.repeats is not None}


def origin(trial: _Repeating) -> int:
    """Return the number of the trial that it repeats, or its own."""
    return trial.number if trial.repeats is None else trial.repeats


def means(origins: Mapping[int, Hashable], scores: Mapping[int, float]) -> dict[int, float]:
    """Return each trial's mean score over the seeds of its hyperparameters.

    Args:
        origins: `origin` of each trial, by number, or what else trials of one mean share.
        scores: scores by number.
    """
    groups: dict[Hashable, list[float]] = {}
    for number, score in scores.items():
        groups.setdefault(origins[number], []).append(score)
    return {number: statistics.fmean(groups[origins[number]]) for number in scores}


def best_to_repeat(
    config: Config, trials: Collection[Trial], segments: Iterable[Segment], count: int
) -> Sequence[Repeat]:
    """Return repeats of the trials that are best at the end.

    Few that reached the end are repeated several times; where none did, the result is empty.

    Args:
        config: the study's configuration.
        trials: the study's trials.
        segments: their segments, those of excluded trials without a score.
        count: number of repeats.
    """
    top = len(config.rungs) - 1
    scores = {row.number: score_of(row) for row in segments if row.rung == top and row.state == "done"}
    of_number, seeds = {trial.number: trial for trial in trials}, dict[int, int]()
    for trial in trials:
        seeds[origin(trial)] = seeds.get(origin(trial), 0) + 1
    mean = means({number: origin(of_number[number]) for number in scores}, scores)
    failed = unreliable(trials)
    ranked = sorted(scores, key=lambda n: (origin(of_number[n]) in failed, -mean[n], n))
    best = list(dict.fromkeys(origin(of_number[n]) for n in ranked))
    repeats = []
    for index in range(count if best else 0):
        number = best[index % len(best)]
        repeats.append(Repeat(of_number[number], config.seed + seeds[number]))
        seeds[number] += 1
    return repeats
