"""Retention of checkpoints; it changes no result."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...spaces.errors import near

Metrics = Mapping[str, float]
RETURN = "return"  # the metric under which an evaluation stands with its epoch


@dataclass(frozen=True)
class Keep:
    """Rule that keeps the latest, the best and evenly spaced checkpoints.

    Attributes:
        latest: how many of the newest; None keeps all. With two, a damaged one has a sound one before it.
        best: how many of those with the highest metric; of equal ones the earlier.
        metric: its name.
        minimize: whether the lowest is the best.
        every: evaluate at multiples of this many epochs, so that these have a return; 0 leaves that to others.
        spaced: also those of multiples of this many epochs, for good; 0 for none.
    """

    latest: int | None = 2
    best: int = 0
    metric: str = RETURN
    every: int = 0
    spaced: int = 0
    minimize: bool = False

    def __post_init__(self) -> None:
        if self.latest is not None and self.latest < 1:
            raise ValueError(f"Keep: latest must be at least 1, or None for all, but got {self.latest}")
        for name in ("best", "every", "spaced"):
            if getattr(self, name) < 0:
                raise ValueError(f"Keep: {name} must be at least 0, but got {getattr(self, name)}")

    def ranked(self, metrics: Mapping[int, Metrics]) -> list[int]:
        """Return the epochs that have the metric, the best first."""
        scores = {epoch: row.get(self.metric, math.nan) for epoch, row in metrics.items()}
        sign = 1 if self.minimize else -1
        return [
            epoch for _, epoch in sorted((sign * score, epoch) for epoch, score in scores.items() if score == score)
        ]

    def dropped(self, epochs: Collection[int], metrics: Mapping[int, Metrics]) -> set[int]:
        """Return the epochs, of those given, whose checkpoints are deleted.

        ``metrics`` are by epoch.
        """
        if self.latest is None:
            return set()
        newest = sorted(epochs, reverse=True)[: self.latest]
        best = self.ranked({epoch: metrics.get(epoch, {}) for epoch in epochs})[: self.best]
        return {epoch for epoch in set(epochs) - {*newest, *best} if not self.is_spaced(epoch)}

    def is_spaced(self, epoch: int) -> bool:
        """Return whether this epoch's checkpoint is one of the evenly spaced."""
        return self.spaced > 0 and epoch > 0 and epoch % self.spaced == 0

    def is_among_best(self, history: Iterable[tuple[int, Metrics]]) -> bool:
        """Return whether the last epoch is one of the best so far."""
        rows = dict(history)
        return bool(rows) and max(rows) in self.ranked(rows)[: self.best]


MODES = {"latest": Keep(), "best": Keep(best=1, every=1), "all": Keep(latest=None), "no": None}


def keep_of(mode: str | int | Keep, metric: str = RETURN, minimize: bool = False) -> Keep | None:
    """Return the rule of a mode; None keeps nothing.

    Args:
        mode: "latest"; "best", which also keeps the best by its return and evaluates at each epoch's end, or "best:5",
            at each fifth epoch's; "every:5", which also keeps those of each fifth epoch; "all", of those that are
            written; "no"; how many of the latest; or a Keep.
        metric: what the best is the best of, unless a Keep says it.
        minimize: whether the lowest is the best.
    """
    if isinstance(mode, Keep):
        return mode
    text = "" if isinstance(mode, bool) else str(mode)
    if text in MODES:
        rule = MODES[text]
        return rule and replace(rule, metric=metric, minimize=minimize)
    name, _, number = text.rpartition(":")
    if number.isdecimal() and int(number) >= 1:
        match name:
            case "":
                return Keep(latest=int(number))
            case "best":
                return Keep(best=1, metric=metric, every=int(number), minimize=minimize)
            case "every":
                return Keep(spaced=int(number))
    raise ValueError(
        "snapshots must be latest, best, best:EPOCHS (between two evaluations), every:EPOCHS (between two that stay), "
        f"all, no, or how many of the latest checkpoints to keep, but got {mode!r}{near(text, MODES)}"
    )
