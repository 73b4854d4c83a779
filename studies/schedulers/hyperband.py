"""Hyperband (Li et al. 2016, arXiv:1603.06560).

The plan is a pure function of a study's rows. At a fixed budget, a bracket may begin with many configurations that
train a little first, or with few that train for long at once. Hyperband tries all of it. With rungs 0 to s_max, the
first bracket begins with base**s_max trials on the lowest rung, the next one with fewer on the second rung, and the
last one trains s_max + 1 trials to the end; then the cycle repeats (Algorithm 1, an "outer loop"). Each bracket is
halved: the best floor(n / base) of a rung's trials, but one at least, are promoted. Every bracket spends about the
same.

As with halving, the plan depends on the study alone, never on timing. A promoted trial resumes from its checkpoint,
where the paper trains it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..study.config import Config
from .halving import Bracket, Halving


class Hyperband(Halving):
    """Scheduler of Hyperband.

    The last bracket is cut short where the study has no more trials.
    """

    def _make_brackets(self) -> Sequence[Bracket]:
        return brackets(self.config)

    def _promotions(self, entrants: int) -> int:
        return max(1, entrants // self.base)


def brackets(config: Config) -> list[Bracket]:
    """Return the brackets of a study.

    A bracket that was cut short stays so when the study is extended.
    """
    top, base = len(config.rungs) - 1, config.epochs[2]
    result: list[Bracket] = []
    start = 0
    for total in config.trials:
        while start < total:
            rung = len(result) % (top + 1)
            s = top - rung  # how often the bracket is halved
            size = -(-(top + 1) * base**s // (s + 1))
            result.append(Bracket(range(start, min(start + size, total)), rung))
            start = result[-1].numbers.stop
    return result
