"""Optuna's samplers by name, as pure functions.

A suggestion is a function of seed, trial number and rows. Optuna's samplers may keep state in attributes of the study
and its trials; here that state is derived from the trial's number or recomputed from the rows:

    random, qmc       need no earlier trial: a random stream per trial; the point of a sequence
    tpe, gp           learn from the trials' results alone (tpe.py)
    cmaes             is told all earlier populations again, in the order of the trials (cmaes.py)
    nsgaii, nsgaiii   a generation is a bracket, the trials suggested together (nsga.py)
    bruteforce        enumerates a finite space; the trials' hyperparameters are the values tried so far
    grid              the same with `grid_points` values per range; a trial's number is its point (grid.py)
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from ...spaces import SpaceError
from ...spaces.dimension import Maybe
from ...spaces.ranges import Integer, NearOne, Real
from ...tasks.rng import streams
from ...tasks.runtime.warning_filters import changed_filters
from ..errors import BadConfig
from ..options.entries import MOST_GRID_POINTS
from ..study.config import Config, choose

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Sampler(NamedTuple):
    """Properties of a sampler.

    Attributes:
        learns: whether suggestions depend on earlier trials.
        structures: whether a trial may be given the structure of its cohort.
        objectives: whether several objectives are supported.
        defaults: whether a study's first trial may take the defaults.
        package: a required package besides Optuna, and the command that installs it.
    """

    learns: bool = True
    structures: bool = True
    objectives: bool = True
    defaults: bool = True
    package: tuple[str, str] | None = None


KNOWN = {
    "tpe": Sampler(),
    "random": Sampler(learns=False),
    "gp": Sampler(package=("scipy", "pip install 'rekindle-rl[gp]'")),
    "cmaes": Sampler(objectives=False, package=("cmaes", "pip install 'rekindle-rl[cmaes]'")),
    "qmc": Sampler(learns=False, package=("scipy", "pip install 'rekindle-rl[qmc]'")),
    "nsgaii": Sampler(),
    "nsgaiii": Sampler(),
    "bruteforce": Sampler(structures=False),
    "grid": Sampler(learns=False, structures=False, defaults=False),
}
LEARNED = "learned"  # key in a configuration's options, see the module `learned`
GOOD = "good"  # key in a configuration's options: TPE counts one trial in this many as good; Optuna one in ten
MOST_VALUES = 100_000  # of one hyperparameter, which bruteforce lists for each draw
GENETIC = ("nsgaii", "nsgaiii")


def sampler_name(text: str) -> str:
    """Return a sampler's stored name from any spelling, such as CMA-ES.

    Raises:
        BadConfig: the name is unknown; the message suggests the nearest one.
    """
    name = text.lower().replace("-", "").replace("_", "").removesuffix("sampler")
    if name == "partialfixed":
        raise BadConfig("sampler partialfixed is not available; fix a hyperparameter with --set NAME=VALUE")
    return choose("sampler", name, list(KNOWN))


def check_sampler(config: Config) -> None:
    """Raise BadConfig if the sampler does not fit the study.

    It is also raised if a required package is not installed.
    """
    _check_drawn(config)
    known = KNOWN[config.sampler]
    if known.package and find_spec(known.package[0]) is None:
        name, command = known.package
        raise BadConfig(f"sampler {config.sampler} needs the package {name}, which is not installed: {command}")
    if config.sampler in GENETIC and config.generation < 2:
        raise BadConfig(
            f"sampler {config.sampler} crosses the trials of a generation, at least 2, but --generation is "
            f"{config.generation}"
        )
    if config.sampler == "grid":
        if (points := grid_size(config)) < config.trials[-1]:
            raise BadConfig(
                f"a grid is trained once, but it has {points} points for {config.trials[-1]} "
                "trials; leave --trials out, or take more --grid-points"
            )
    elif "grid_points" in config.options:
        raise BadConfig(f"--grid-points needs --sampler grid, but the sampler is {config.sampler}; add --sampler grid")
    if config.sampler == "bruteforce":
        _check_finite(config)


def check_exhausted(config: Config) -> None:
    """Raise BadConfig if bruteforce has more trials than points."""
    if config.sampler != "bruteforce" or "spaces" in config.options:  # a changed space has other points as well
        return
    if (points := finite_size(config, most=config.trials[-1])) < config.trials[-1]:
        raise BadConfig(
            f"sampler bruteforce tries each point once, but the space has {points} and there are to be "
            f"{config.trials[-1]} trials; take --trials {points} at most"
        )


def finite_size(config: Config, most: int) -> int:
    """Return the number of points of a finite space, or `most`."""
    from .grid import count_points

    return count_points(config.searched, most)


def grid_size(config: Config) -> int:
    """Return the number of points of the study's grid.

    Raises:
        BadConfig: the grid has too many points, or a range has too few.
    """
    from .grid import grid, points_of

    if not 2 <= points_of(config) <= MOST_GRID_POINTS:
        raise BadConfig(
            "a grid has both ends of a range, so --grid-points must be at least 2 and at most "
            f"{MOST_GRID_POINTS:,}, but got {points_of(config)}"
        )
    return len(grid(config))


def _check_drawn(config: Config) -> None:
    """Raise BadConfig if Optuna cannot draw from a prior of the study."""
    from ...spaces.drivers.to_optuna import distributions  # imports optuna

    try:
        distributions(config.searched)
    except SpaceError as error:
        raise BadConfig(
            f"the priors of a study are those that Optuna has, but {error}; write a range, such as loguniform(1e-5, "
            "1e-2), or choices without weights"
        ) from None


def _check_finite(config: Config) -> None:
    """Raise BadConfig if bruteforce cannot list the values of each hyperparameter."""
    endless, long = [], []
    for name, dimension in config.searched.flat().items():
        each = dimension.dimension if isinstance(dimension, Maybe) else dimension
        if dimension.search and (isinstance(each, NearOne) or (isinstance(each, Real) and each.step is None)):
            endless.append(name)
        elif isinstance(each, Real | Integer) and each.steps >= MOST_VALUES:
            long.append(f"{name} has {each.steps + 1:,}")
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


def learns(config: Config) -> bool:
    """Return whether the study's suggestions depend on earlier trials."""
    return config.sampler not in KNOWN or KNOWN[config.sampler].learns


def make_sampler(config: Config, number: int, attempt: int = 0, bracket: int = 0) -> BaseSampler:
    """Return the study's sampler, seeded for one trial of a bracket."""
    import optuna

    seed = streams.seed_of(config.seed, "suggest", number, attempt)
    with changed_filters():
        warnings.simplefilter("ignore")  # hides Optuna's warnings about experimental samplers
        match config.sampler:
            case "random":
                return optuna.samplers.RandomSampler(seed=seed)
            case "gp":
                return optuna.samplers.GPSampler(seed=seed, n_startup_trials=config.generation)
            case "bruteforce":
                return optuna.samplers.BruteForceSampler(seed=seed)
            case "grid":
                from .grid import Grid

                return Grid(config, number, attempt)
            case "cmaes":
                from .cmaes import CMAES

                return CMAES(seed, config.generation)
            case "qmc":
                from .qmc import QMC

                return QMC(config, number, attempt)
            case "nsgaii" | "nsgaiii":
                from .nsga import NSGAII, NSGAIII

                genetic = NSGAII if config.sampler == "nsgaii" else NSGAIII
                return genetic(bracket, population_size=config.generation, seed=seed)
            case "tpe":
                from .tpe import TPE

                return TPE(seed=seed, n_startup_trials=config.generation, good=config.options.get(GOOD))
            case _:
                raise BadConfig(f"a sampler is one of {', '.join(KNOWN)}, but the study has {config.sampler!r}")
