"""Retention of checkpoints; it does not change any result."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...spaces.errors import near

Metrics = Mapping[str, float]
RETURN = "return"  # name of the metric with an evaluation's mean return


@dataclass(frozen=True)
class Keep:
    """Rule that keeps the latest, the best and evenly spaced checkpoints.

    Attributes:
        latest: number of the newest to keep; None keeps all. With two, a damaged checkpoint has a sound one before it.
        best: number of those with the best metric to keep; of equal ones, the earlier.
        metric: name of that metric.
        minimize: whether the lowest metric is the best.
        every: evaluate at multiples of this many epochs, so that these have a return; 0 leaves evaluation to others.
        spaced: also keep multiples of this many epochs; 0 for none.
        spaced_latest: number of the newest of these to keep; None keeps all.
        initial: also keep the untrained agent, which is written before training.
        replay: whether checkpoints have replay buffers. Without them, a resumed task fills its buffer again, so it is
            no longer bit-exact.
        dense: write a checkpoint at the end of each epoch, so that `latest` counts epochs; otherwise time decides.

    Raises:
        ValueError: a number is too small.
    """

    latest: int | None = 2
    best: int = 0
    metric: str = RETURN
    every: int = 0
    spaced: int = 0
    minimize: bool = False
    spaced_latest: int | None = None
    initial: bool = False
    dense: bool = False
    replay: bool = True

    def __post_init__(self) -> None:
        if self.latest is not None and self.latest < 1:
            raise ValueError(f"Keep: latest must be at least 1, or None for all, but got {self.latest}")
        if self.spaced_latest is not None and self.spaced_latest < 1:
            raise ValueError(f"Keep: spaced_latest must be at least 1, or None for all, but got {self.spaced_latest}")
        for name in ("best", "every", "spaced"):
            if getattr(self, name) < 0:
                raise ValueError(f"Keep: {name} must be at least 0, but got {getattr(self, name)}")

    def ranked(self, metrics: Mapping[int, Metrics]) -> list[int]:
        """Return the epochs that have the metric, best first."""
        scores = {epoch: row.get(self.metric, math.nan) for epoch, row in metrics.items()}
        sign = 1 if self.minimize else -1
        return [
            epoch for _, epoch in sorted((sign * score, epoch) for epoch, score in scores.items() if score == score)
        ]

    def dropped(self, epochs: Collection[int], metrics: Mapping[int, Metrics], newer: int = 0) -> set[int]:
        """Return those of the given epochs whose checkpoints should be deleted.

        Args:
            epochs: epochs that have a checkpoint at their end.
            metrics: metrics by epoch.
            newer: number of checkpoints after all of these, which count among the latest.
        """
        if self.latest is None:
            return set()
        newest = sorted(epochs, reverse=True)[: max(0, self.latest - newer)]
        best = self.ranked({epoch: metrics.get(epoch, {}) for epoch in epochs})[: self.best]
        spaced = sorted(filter(self.is_spaced, epochs), reverse=True)[: self.spaced_latest]
        return set(epochs) - {*newest, *best, *spaced, *([0] if self.initial else [])}

    def is_due(self, epoch: int) -> bool:
        """Return whether this epoch's checkpoint must be written."""
        return self.dense or self.is_spaced(epoch)

    def is_spaced(self, epoch: int) -> bool:
        """Return whether this epoch's checkpoint is one of the evenly spaced."""
        return self.spaced > 0 and epoch > 0 and epoch % self.spaced == 0

    def is_among_best(self, history: Iterable[tuple[int, Metrics]]) -> bool:
        """Return whether the last epoch is one of the best so far."""
        rows = dict(history)
        return bool(rows) and max(rows) in self.ranked(rows)[: self.best]


MODES: dict[str, dict[str, Any]] = {
    "latest": {},
    "best": {"best": 1, "every": 1},
    "all": {"latest": None, "dense": True},
    "initial": {"initial": True},
    "no-replay": {"replay": False},
}
NONE = "no"


def keep_of(mode: str | int | Keep, metric: str = RETURN, minimize: bool = False) -> Keep | None:
    """Return the rule for a mode; None if nothing is kept.

    Args:
        mode: "latest"; "best", which also keeps the best return and evaluates at the end of each epoch ("best:5": of
            every fifth); "every:5", which also keeps every fifth epoch ("every:5:3": the newest three of these);
            "initial", which also keeps the untrained agent; "all" epochs; a number of the newest epochs; "no-replay",
            without replay buffers; several of these joined by commas; "no"; or a Keep.
        metric: metric that "best" refers to; a Keep has its own.
        minimize: whether the lowest metric is the best.

    Raises:
        ValueError: the mode is malformed.
    """
    if isinstance(mode, Keep):
        return mode
    text = "" if isinstance(mode, bool) else str(mode)
    if text == NONE:
        return None
    rule: dict[str, Any] = {}
    for part in text.split(","):
        if (fields := _fields(part.strip())) is None or rule.keys() & fields.keys():
            raise ValueError(
                "snapshots must be latest, best, best:EPOCHS (evaluated every EPOCHS), every:EPOCHS (one kept every "
                "EPOCHS), every:EPOCHS:N (the last N of these), initial, all, no-replay or a number of epochs to keep, "
                f"or several of these, separated by commas, or no, but got {mode!r}{near(text, [*MODES, NONE])}"
            )
        rule |= fields
    return Keep(metric=metric, minimize=minimize, **rule)


def _fields(part: str) -> dict[str, Any] | None:
    """Return the fields that part of a mode sets, None if unknown."""
    if part in MODES:
        return dict(MODES[part])
    name, *numbers = part.split(":") if ":" in part else ("", part)
    counts = [int(number) for number in numbers if number.isdecimal() and int(number) >= 1]
    if len(counts) < len(numbers):
        return None
    match name, counts:
        case "", [latest]:
            return {"latest": latest, "dense": True}
        case "best", [every]:
            return {"best": 1, "every": every}
        case "every", [spaced]:
            return {"spaced": spaced}
        case "every", [spaced, last]:
            return {"spaced": spaced, "spaced_latest": last}
    return None
