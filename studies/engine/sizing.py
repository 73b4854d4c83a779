"""Sizes of studies that are given training time alone.

The size is the number of trials, and the steps of an epoch. The algorithms that a study may choose are trained for a
moment, once, before the study is stored. Their seconds per step are stored with it, and everything else follows from
them: a resumed study and further workers measure nothing.

An epoch takes the same time with every algorithm, so trials compete for time, not for steps: an algorithm that learns
from fewer steps may be slower. Those that could hardly train are left out. The number of trials is the largest for
which the fastest algorithm has enough steps for each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BadConfig, UnknownStudy
from ..failures import is_environment
from ..options.durations import in_words
from ..schedulers.adaptive import SAVING
from ..schedulers.confirming import FINALISTS
from ..study import TOP
from ..study.config import EPOCHS, SIZED, Config
from .probes import GOES_ON, endless

if TYPE_CHECKING:
    from ...tasks.envs import EnvSpec
    from ...tasks.task import Task
    from ..storage.store import Store

SEEDS = 3  # of the confirmation's race, and of its estimate
SPARE = 0.65  # of the time, for evaluations and for hyperparameters that are slower than the defaults, as most are
TRIALS = (64, 32, 16, 8)
ENOUGH = 300_000  # steps of a training by the fastest algorithm, for more trials than the fewest
LEAST = 10_000  # steps of a training by any algorithm, if one of them can take so many
SHORTEST = 3_000  # steps of a training, else
MOMENT = 2.0  # seconds of training to measure the time of a step
MOST = 4096  # steps of it
PATIENCE = 20.0  # seconds until gradient steps follow, after which one epoch of them has to do
ATTEMPTS = 3  # in an environment that fails
FIRST_STEPS = 256  # before gradient steps on replayed transitions, which come later by default
ROLLOUT = 64  # steps of a rollout, at most


@dataclass(frozen=True)
class Sized:
    """Time and paces from which the size of a study follows.

    Attributes:
        seconds: time of all trainings together.
        paces: seconds of a step, by algorithm.
        refused: why others cannot train, by algorithm.
        races: whether trials race for the answer; in studies of earlier versions they do not.
    """

    seconds: float
    paces: Mapping[str, float]
    refused: Mapping[str, str] = field(default_factory=dict)
    races: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}


def candidates(sized: Sized, trials: int) -> int:
    """Return the number of trials that race for the answer.

    It is one of 16, at most three. Small studies have too little time for more than one, which needs no race.
    """
    return min(3, max(1, trials // 16)) if sized.races else 1


def candidates_of(config: Config) -> int:
    """Return the usual number of candidates of a confirmation."""
    return candidates(Sized(**config.options[SIZED]), config.trials[-1]) if SIZED in config.options else TOP


def _trainings(sized: Sized, trials: int) -> float:
    """Return the number of whole trainings of a study and its confirmation."""
    entrants = candidates(sized, trials)
    finalists = min(entrants, FINALISTS)
    race = entrants + finalists * (SEEDS - 1) if entrants > 1 else 0
    return trials / SAVING + race + finalists * SEEDS


def sizes(sized: Sized) -> tuple[int, dict[str, int]]:
    """Return the number of trials, and an epoch's steps by algorithm.

    Raises:
        BadConfig: the time is too short for any training.
    """
    seconds, paces, spare = sized.seconds, sized.paces, SPARE if sized.races else 0.75
    fastest = min(paces.values())
    for trials in TRIALS:
        epoch = seconds * (1 - spare) / (EPOCHS * _trainings(sized, trials))
        if epoch / fastest * EPOCHS >= ENOUGH:
            break
    steps = {name: int(epoch / pace) for name, pace in paces.items()}
    longest = EPOCHS * epoch / fastest
    least = LEAST if longest >= LEAST else SHORTEST
    if kept := {name: count for name, count in steps.items() if count * EPOCHS >= least}:
        return trials, kept
    raise BadConfig(
        f"a training needs {SHORTEST:,} steps or more, but a step takes {fastest:.3g} s here, and of a budget of "
        f"{in_words(seconds)} each of {trials} trials has {int(longest):,}; give {_enough(seconds, longest)} "
        "(--budget), or name an algorithm, --trials and --epochs"
    )


def _enough(seconds: float, longest: float) -> str:
    """Return the time in which a training has LEAST steps.

    In `seconds` it has `longest`. The result is far above the shortest that is not refused, as the next measurement may
    find a busier machine.
    """
    return in_words(seconds * LEAST / longest)


def is_given_time_alone(config: Config, algorithm: type[Task], *others: object) -> bool:
    """Return whether the size of a new study follows from its budget.

    Args:
        config: its configuration, with the default size.
        algorithm: class of its tasks.
        others: options that give its size; None where they are absent.
    """
    chooses = len(config.environments) == 1 and bool(algorithm.starts(config.env))
    timed = "seconds" in config.options.get("budget", {}) and not config.scheduling.population
    return chooses and timed and not any(others)


def size_of_budget(store: Store, name: str, config: Config, algorithm: type[Task], *others: object) -> Sized | None:
    """Return what `sizes` needs, stored or measured now.

    The result is None if the size of the study is given. The arguments are those of `is_given_time_alone`.
    """
    from ...tasks.envs import EnvSpec  # imports gymnasium

    stored = _stored(store, name)
    if stored is None and is_given_time_alone(config, algorithm, *others):
        env = EnvSpec.of(config.env)
        searched = {path.partition(".")[0] for path in config.searched.flat()}
        names = [start["algorithm"] for start in algorithm.starts(env) if start["algorithm"] in searched]
        paces, refused = paces_in(env, names, config.seed)
        stored = _stored(store, name)  # another process may have been quicker
        if stored is None:
            return Sized(config.options["budget"]["seconds"], paces, refused, races=True)
    return stored


def described(sized: Sized) -> str:
    """Return the size of a study in words."""
    trials, steps = sizes(sized)
    longest = ", ".join(f"{name} {EPOCHS * count:,}" for name, count in steps.items())
    slow = [name for name in sized.paces if name not in steps]
    without = f"; too slow for this time: {', '.join(slow)}" if slow else ""
    if (most := EPOCHS * max(steps.values())) < LEAST:
        without += f"; so few steps seldom teach much, {_enough(sized.seconds, most)} would pay {LEAST:,}"
    without += "".join(f"; {name} is left out: {reason}" for name, reason in sized.refused.items())
    return f"{in_words(sized.seconds)} pay {trials} trials of {longest} steps{without}"


def _stored(store: Store, name: str) -> Sized | None:
    try:
        stored = Config.from_json(store.study(name).config, name).options.get(SIZED)
    except UnknownStudy:
        return None
    return None if stored is None else Sized(**stored)


def paces_in(env: EnvSpec, names: Sequence[str], seed: int) -> tuple[dict[str, float], dict[str, str]]:
    """Return seconds of a step by algorithm, and why others cannot train.

    In an environment that is slow itself, all are equally fast. Where one episode fails, others are played.

    Raises:
        BadConfig: episodes do not end, so that no evaluation would.
        EnvironmentFailed: episodes fail again and again.
        Exception: the last error, if no algorithm can train.
    """
    from ...tasks import load
    from ...tasks.errors import EnvironmentFailed, TaskError, is_lack_of_memory, text_of
    from ...tasks.identity import TaskIdentity
    from ...tasks.probing import probe

    looked = probe(load(names[0]), TaskIdentity.of(load(names[0]), env, seed, {}))
    if looked["slow"] is not None:
        return dict.fromkeys(names, looked["slow"]), {}
    if refusal := endless(env, looked):
        raise BadConfig(refusal)
    paces, refused = dict[str, float](), dict[str, str]()
    for name in names:
        for attempt in range(ATTEMPTS):
            try:
                paces[name] = pace(name, env, seed + attempt)
                break
            except Exception as error:
                if isinstance(error, EnvironmentFailed) or is_environment(error):
                    if attempt < ATTEMPTS - 1:
                        continue
                    failure = f"{env.id}: its own code raised {type(error).__name__} ({text_of(error)})"
                    when = f"in {ATTEMPTS} trainings of a moment, one after the other"
                    raise EnvironmentFailed(f"{failure} {when}; fix it, or {GOES_ON}") from error
                if not (isinstance(error, TaskError | ValueError) or is_lack_of_memory(error)):
                    raise
                if name == names[-1] and not paces:
                    raise
                refused[name] = text_of(error) or type(error).__name__
                break
    return paces, refused


def pace(name: str, env: EnvSpec, seed: int) -> float:
    """Return the seconds that an algorithm takes for a step, measured now.

    Kernels are compiled and buffers filled before. Where that takes longer than PATIENCE, the last epoch counts.
    """
    from ...tasks import load

    defaults = {path: dimension.default for path, dimension in load(name).learner.space_in(env).flat().items()}
    size = 16 if "learning_starts" in defaults else 512
    task, started = load(name)(env, seed=seed).init(epoch_steps=size, **learning_soon(defaults)), time.perf_counter()
    for _ in range(FIRST_STEPS // size + 1):
        last = task.env_steps, time.perf_counter()
        task.fit(task.epochs + 1)
    if (now := time.perf_counter()) - started < PATIENCE:
        last = task.env_steps, now
        task.fit(task.epochs + MOST // size, until=lambda history: time.perf_counter() - now > MOMENT)
    steps, began = last
    return (time.perf_counter() - began) / (task.env_steps - steps)


def learning_soon(defaults: Mapping[str, Any]) -> dict[str, int]:
    """Return hyperparameters with which gradient steps follow sooner.

    A step is followed by as many of them as with the defaults, on average, and their batches are as large.

    Args:
        defaults: defaults by dotted name.
    """
    if "learning_starts" in defaults:
        return {"learning_starts": FIRST_STEPS}
    if "num_steps" not in defaults:
        return {}
    steps = min(ROLLOUT, defaults["num_steps"])
    minibatches = defaults.get("num_minibatches")
    fewer = {} if minibatches is None else {"num_minibatches": max(1, minibatches * steps // defaults["num_steps"])}
    return {"num_steps": steps} | fewer
