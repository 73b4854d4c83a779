"""Hyperband: Li et al. (2016), arXiv:1603.06560, as a pure function of a study's rows.

How many configurations to begin with, if all that is spent is fixed: many that are trained a little first, or few that
are trained for long at once? Brackets try all of it. With rungs 0 to s_max, the first bracket begins with base**s_max
trials on the lowest rung, the next one with fewer on the second rung, and the last one trains s_max + 1 trials to the
end; then it begins again (Algorithm 1, an "outer loop"). Each bracket is halved: the best floor(n / base) of a rung's
trials, but one at least, go on to the next. Every bracket spends about the same.

As with halving, what follows depends on the study alone, never on timing. A trial that is promoted carries on from its
checkpoint, where the paper trains it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..study.config import Config
from .halving import Bracket, Halving


class Hyperband(Halving):
    """The scheduler; brackets are as large as the paper says, and cut short where the study has no more trials."""

    def _make_brackets(self) -> Sequence[Bracket]:
        return brackets(self.config)

    def _places(self, entrants: int) -> int:
        return max(1, entrants // self.base)


def brackets(config: Config) -> list[Bracket]:
    """The brackets of a study. One that was cut short stays so when the study is extended."""
    top, base = len(config.rungs) - 1, config.epochs[2]
    found: list[Bracket] = []
    start = 0
    for total in config.trials:
        while start < total:
            rung = len(found) % (top + 1)
            s = top - rung  # how often the bracket is halved
            size = -(-(top + 1) * base**s // (s + 1))
            found.append(Bracket(range(start, min(start + size, total)), rung))
            start = found[-1].numbers.stop
    return found
