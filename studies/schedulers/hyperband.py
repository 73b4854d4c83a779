"""Hyperband (Li et al. 2016, arXiv:1603.06560).

With a fixed budget, a bracket can start many configurations with little training each, or few with much. Hyperband runs
brackets of all kinds. With rungs 0 to s_max, the first bracket starts base**s_max trials on the lowest rung, the next
one fewer trials on the second rung, and the last trains s_max + 1 trials to the end; then the cycle repeats (the outer
loop of Algorithm 1). Within a bracket, the best floor(n / base) trials of a rung, but at least one, are promoted. All
brackets cost about the same.

As with halving, the plan depends on the study alone, never on timing. A promoted trial resumes from its checkpoint; the
paper restarts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..study.config import Config
from .halving import Bracket, Halving


class Hyperband(Halving):
    """Scheduler of Hyperband.

    The last bracket is cut short if the study has no more trials.
    """

    def _make_brackets(self) -> Sequence[Bracket]:
        return brackets(self.config)

    def _promotions(self, entrants: int) -> int:
        return max(1, entrants // self.base)


def brackets(config: Config) -> list[Bracket]:
    """Return the brackets of a study.

    A bracket that was cut short remains so when the study is extended.
    """
    top, base = len(config.rungs) - 1, config.epochs[2]
    result: list[Bracket] = []
    start = 0
    for total in config.trials:
        while start < total:
            rung = len(result) % (top + 1)
            s = top - rung  # number of halvings in the bracket
            size = -(-(top + 1) * base**s // (s + 1))
            result.append(Bracket(range(start, min(start + size, total)), rung))
            start = result[-1].numbers.stop
    return result
