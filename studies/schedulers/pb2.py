"""Population based bandits (PB2): Parker-Holder et al. (2020), arXiv:2002.02518.

The population exploits as in `pbt`. Exploration is model-based: a Gaussian process models how much the score changes in
a generation as a function of that generation's hyperparameters, and a new branch takes the hyperparameters that
maximize an upper confidence bound of the change (Equation 4 and Algorithm 1).

- The kernel is a squared exponential of the hyperparameters times (1 - omega)^(|t - t'| / 2) of the generations t and
  t', so old generations count less (Equation 5).
- The posterior mean is of the data; the deviation also takes into account the hyperparameters of members already chosen
  for this generation, so that members differ (Equation 6).
- A hyperparameter without a scale, such as a category, is copied. In the first generation the score less the mean over
  the population stands for the change, since all members started from the same networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...spaces.dimension import Dimension
from ...spaces.quantiles import LAST, has_scale, quantile
from ...spaces.values import Value
from ...tasks.rng import streams
from ..errors import BadConfig
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.plan import Branch
from .explore import Check, Choose, first_valid
from .seeds import collapse

if TYPE_CHECKING:
    from ..statistics.gaussian_process import GaussianProcess

Array = NDArray[np.float64]
BANDIT = "pb2"
C1, C2 = 0.2, 0.4  # squared width of the bound is C1 log(C2 n) for n data points (section 5)
WINDOW = 500  # number of latest data points used
GLOBAL, LOCAL = 1024, 256  # points per search: in the whole cube, then around the best one
NEARER = (0.2, 0.05, 0.0125)  # half widths of the successive local searches


def check_pb2(config: Config) -> None:
    """Raise BadConfig if PB2 cannot explore in this study."""
    if config.options.get("explore") != BANDIT:
        return
    if find_spec("sklearn") is None:
        raise BadConfig("--explore pb2 needs scikit-learn, which is not installed: pip install 'rekindle-rl[pb2]'")
    if not _names(config):
        raise BadConfig(
            "--explore pb2 needs a hyperparameter with a scale, but all that is explored are categories; "
            "use --explore resample"
        )


def _names(config: Config) -> list[str]:
    """Return the explored hyperparameters that have a scale."""
    space = config.searched.flat()
    return [name for name in config.options["perturb"] if name in space and has_scale(space[name])]


class PB2:
    """Choice of hyperparameters for the new members of one generation.

    It depends only on rows of earlier generations.

    Args:
        config: the study's configuration.
        trials: the study's trials.
        segments: the study's segments.
        branches: the new members; others of the same generation may exist already.
    """

    def __init__(
        self, config: Config, trials: Iterable[Trial], segments: Iterable[Segment], branches: Sequence[Branch]
    ):
        self.config, self.names = config, _names(config)
        self.space = config.searched.flat()
        self.generation = branches[0].generation
        members, rows = collapse(config, trials, segments)
        self._trials = {trial.number: trial for trial in members}
        self._rows = {(row.number, row.rung): row for row in rows if row.state == "done" and row.rung < self.generation}
        self._born = {n: trial for n, trial in self._trials.items() if trial.attrs.get("generation") == self.generation}
        placed_members = {branch.member for branch in branches} | {trial.member for trial in self._born.values()}
        last = (self._trials[n] for n, rung in sorted(self._rows) if rung == self.generation - 1)
        self._continuing = [trial for trial in last if trial.attrs.get("member", trial.number) not in placed_members]

    @cached_property
    def _process(self) -> GaussianProcess:
        """Gaussian process of the score changes, fitted once."""
        from ..statistics.gaussian_process import GaussianProcess  # needs scikit-learn, an optional dependency

        return GaussianProcess(*self._data())

    def explore(self, branch: Branch, parent: Mapping[str, Any], check: Check = lambda values: None) -> dict[str, Any]:
        """Return the hyperparameters of a branch, by dotted name.

        Args:
            branch: the new member.
            parent: hyperparameters of the member from which it branches.
            check: raises ValueError for an invalid combination of values; then the best of a smaller set of other
                points is tried, and after 20 refusals the parent's hyperparameters are returned.
        """
        number = branch.configuration
        if number in self._born:  # another replicate of the configuration was first
            return {**self._born[number].params}
        before = [trial for n, trial in sorted(self._born.items()) if n < number]
        pending = np.array([[*self._point(trial.params), self.generation] for trial in [*self._continuing, *before]])
        values = self._choose(branch.member, parent, pending.reshape(-1, len(self.names) + 1), check)
        self._born[number] = Trial(number, "", values, {"member": branch.member})
        return values

    def _choose(self, member: int, parent: Mapping[str, Any], pending: Array, check: Check) -> dict[str, Any]:
        bound = self._bound(pending)

        def attempt(number: int) -> Choose:
            point = self._maximize(bound, (self.config.seed, "explore", self.generation, member), number)
            chosen = dict(zip(self.names, point.tolist(), strict=True))

            def choose(path: str, dimension: Dimension) -> Value:
                if path in chosen and path in parent:
                    return dimension.at(chosen[path])
                return parent[path] if path in parent else dimension.at(0.5)

            return choose

        return first_valid(self.config, attempt, parent, check)

    def _bound(self, pending: Array) -> Callable[[Array], Array]:
        """Return the upper confidence bound as a function of points (N, D)."""
        process, deviation = self._process, self._process.deviation(pending)
        width = math.sqrt(C1 * math.log(max(math.e, C2 * process.size)))

        def bound(points: Array) -> Array:
            at = np.column_stack([points, np.full(len(points), float(self.generation))])
            return process.mean(at) + width * deviation(at)

        return bound

    def _data(self) -> tuple[Array, Array]:
        """Return the data of the Gaussian process.

        Returns:
            Points (N, D + 1), the hyperparameters and the generation; and the score change (N,) at each point.
        """
        finished = sorted((rung, number) for number, rung in self._rows)
        first = [score_of(self._rows[number, 0]) for rung, number in finished if rung == 0]
        points, changes = [], []
        for rung, number in finished[-WINDOW:]:
            before = self._before(number, rung)
            if rung and before is None:
                continue
            before_score = sum(first) / len(first) if before is None else score_of(before)
            points.append([*self._point(self._trials[number].params), float(rung)])
            changes.append(score_of(self._rows[number, rung]) - before_score)
        return np.array(points), np.array(changes)

    def _before(self, number: int, rung: int) -> Segment | None:
        """Return the segment that a trial's segment continues."""
        origin = number if (number, rung - 1) in self._rows else self._trials[number].parent
        return self._rows.get((origin, rung - 1)) if origin is not None else None

    def _point(self, params: Mapping[str, Any]) -> list[float]:
        """Return hyperparameters as a point in [0, 1)^D.

        A hyperparameter that does not apply has coordinate 0.5.
        """
        return [
            quantile(self.space[name], params[name]) if params.get(name) is not None else 0.5 for name in self.names
        ]

    def _maximize(self, bound: Callable[[Array], Array], names: tuple[int | str, ...], attempt: int) -> Array:
        """Return the point that maximizes the bound, found by random search.

        The search covers the whole cube, then ever smaller neighbourhoods of the best point. After refusals (attempt >
        0) only the whole cube is searched, with ever fewer points.
        """
        size = len(self.names)
        total = (GLOBAL + len(NEARER) * LOCAL) * size
        drawn = streams.uniform(streams.key(*names, attempt), np.arange(total)).reshape(-1, size)
        if attempt:
            return _best(bound, drawn[: max(1, GLOBAL >> attempt)])
        best = _best(bound, drawn[:GLOBAL])
        for i, scale in enumerate(NEARER):
            near = best + scale * (2 * drawn[GLOBAL + i * LOCAL :][:LOCAL] - 1)
            best = _best(bound, np.concatenate([best[None], np.clip(near, 0.0, LAST)]))
        return best


def _best(bound: Callable[[Array], Array], points: Array) -> Array:
    best: Array = points[int(np.argmax(bound(points)))]
    return best
