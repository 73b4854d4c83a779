"""Enumeration of a finite space; its past trials are points tried."""

from __future__ import annotations

from optuna.samplers import BaseSampler, BruteForceSampler

from ...spaces.dimension import Maybe
from ...spaces.ranges import Integer, NearOne, Real
from ..errors import BadConfig
from ..study.config import Config
from .draw import Draw
from .grid import count_points

MOST_VALUES = 100_000  # of one hyperparameter, which Optuna lists for each draw


class BruteForce:
    """Optuna's enumeration."""

    exhausted = (
        "sampler bruteforce tries each point once, but the space has {points} and there are to be {trials} trials; "
        "take --trials {points} at most"
    )

    @staticmethod
    def of(draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        return BruteForceSampler(seed=draw.seed)

    @classmethod
    def size(cls, config: Config, most: int) -> int:
        """Return the number of points of the searched space, or `most`."""
        cls.check(config)
        return count_points(config.searched, most)

    @staticmethod
    def check(config: Config) -> None:
        """Raise BadConfig if the values of a hyperparameter cannot be listed."""
        endless, long = [], []
        for name, dimension in config.searched.flat().items():
            searched = dimension.dimension if isinstance(dimension, Maybe) else dimension
            if dimension.search and (
                isinstance(searched, NearOne) or (isinstance(searched, Real) and searched.step is None)
            ):
                endless.append(name)
            elif isinstance(searched, Real | Integer) and searched.steps >= MOST_VALUES:
                long.append(f"{name} has {searched.steps + 1:,}")
        if endless:
            raise BadConfig(
                f"sampler bruteforce needs a finite space, but {', '.join(endless)} may take any value of a range; fix "
                "them (--set NAME=VALUE), leave them out (--search NAME of others), or take grid or qmc"
            )
        if long:
            raise BadConfig(
                f"sampler bruteforce lists at most {MOST_VALUES:,} values of a range, but {' and '.join(long)}; give a "
                "step or a narrower --prior, or take grid or qmc"
            )
