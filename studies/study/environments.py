"""Several environments in one study: one scale for their results.

A configuration is trained in each environment with each of its seeds; a pair of environment and seed is an instance.
Results are put on one scale before they are aggregated: 1 is an environment's best result, and 0 is the lower decile of
its results and everything below. The scale depends only on the rows that are compared. An environment in which a race
left a configuration untrained counts as 0.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadConfig
from ..methods import scheduling, those
from ..options.entries import check_count
from ..storage.rows import Segment, score_of
from .config import Config, choose
from .objectives import AGGREGATES, MINIMIZE, constraints_of, objectives_of
from .stored_form import MOST_SEEDS

if TYPE_CHECKING:
    from ...spaces import Space

SCALE = "scale"  # option of a confirmation: the scale of the confirmed study
DECILE = 0.1
FIRST_SEEDS = 2  # trainings of a configuration before the first test of a race
TOGETHER = 16  # configurations in a race across environments, by default
Scale = Sequence[tuple[float, float]]  # for each environment, the scores that count as 0 and 1


def is_across(config: Config) -> bool:
    """Return whether a configuration is trained in several environments."""
    return len(config.environments) > 1


def environment_of(config: Config, replicate: int) -> Mapping[str, Any]:
    """Return the environment of a replicate.

    The first seed comes in all environments, then the second, and so on.
    """
    return config.environments[replicate % len(config.environments)]


def labels(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each environment: its id, if that is unique."""
    ids = [str(env.get("id", "")) for env in environments]
    texts = [json.dumps({key: value for key, value in env.items() if key != "id" and value}) for env in environments]
    return [env if ids.count(env) == 1 else f"{env} {text}" for env, text in zip(ids, texts, strict=True)]


def scale_of(config: Config, rows: Iterable[Segment]) -> Scale:
    """Return the scale of several environments' results.

    Args:
        config: configuration of the study; a confirmation has the scale of the confirmed study.
        rows: segments of replicates.
    """
    if SCALE in config.options:
        return [(low, high) for low, high in config.options[SCALE]]
    columns: list[list[float]] = [[] for _ in config.environments]
    for row in rows:
        if row.state == "done":
            columns[row.replicate % len(columns)].append(score_of(row))
    return [(_lower_decile(scores), max(scores)) if scores else (0.0, 0.0) for scores in columns]


def _lower_decile(scores: Sequence[float]) -> float:
    return statistics.quantiles(scores, n=round(1 / DECILE), method="inclusive")[0] if len(scores) > 1 else scores[0]


def scaled(scale: Scale, row: Segment) -> float:
    """Return a replicate's score on the scale; 0 if all are equal."""
    return scaled_score(scale, row.replicate, score_of(row))


def scaled_score(scale: Scale, replicate: int, score: float) -> float:
    """Return a score in a replicate's environment on the scale, see `scaled`."""
    low, high = scale[replicate % len(scale)]
    return max(0.0, (score - low) / (high - low)) if high > low else 0.0


def across(config: Config, rows: Sequence[Segment], scale: Scale) -> float:
    """Return the aggregate of a configuration's results on the scale."""
    env_indices = {row.replicate % len(scale) for row in rows}
    untrained = [0.0] * (len(scale) - len(env_indices))
    return AGGREGATES[config.options["aggregate"]]([*(scaled(scale, row) for row in rows), *untrained])


def as_objective(config: Config, score: float) -> dict[str, float]:
    """Return an aggregate on the scale as the study's objective.

    If the objective is minimized, 0 becomes the best value.
    """
    ((name, direction),) = objectives_of(config).items()
    return {name: 1 - score if direction == MINIMIZE else score}


def races(environments: int, seeds: int, scheduler: str | None) -> bool:
    """Return whether instances race by default.

    They do if there are enough instances and the scheduler allows races.
    """
    return (
        environments > 1 and environments * seeds > FIRST_SEEDS and (scheduler is None or scheduling(scheduler).races)
    )


def across_options(
    environments: Sequence[Mapping[str, Any]], how: str | None, aggregate: str, seeds: int, racing: bool
) -> dict[str, Any]:
    """Return the options of a study in several environments.

    Args:
        environments: environments as JSON.
        how: name of the aggregate over instances.
        aggregate: aggregate over seeds, which must be left at its default or equal `how`.
        seeds: number of seeds in each environment.
        racing: whether instances race.

    Raises:
        BadConfig: the environments are not several and different, their aggregate is missing, an aggregate over seeds
            is given, or there are too few instances for a race.
    """
    names = labels(environments)
    if how is None:
        raise BadConfig(
            f"one configuration for {', '.join(names)} needs to know how their results are aggregated; add --across "
            "iqm (or mean, or median), or name one environment"
        )
    choose("--across", how, list(AGGREGATES))
    if len(environments) < 2:
        raise BadConfig(
            f"--across {how} aggregates results of several environments, but got {names[0]} alone; add more"
        )
    if twice := [env["id"] for n, env in enumerate(environments) if env in environments[:n]]:
        raise BadConfig(f"an environment takes part once, but {twice[0]} is named twice; leave one out")
    if aggregate not in ("mean", how):
        raise BadConfig(
            f"--across aggregates results of all seeds and environments, but --aggregate is {aggregate}; leave that out"
        )
    replicates = len(environments) * seeds
    if racing and replicates <= FIRST_SEEDS:
        raise BadConfig(
            f"--racing spares trainings after the first {FIRST_SEEDS} of a configuration, but {len(environments)} "
            f"environments with --seeds {seeds} are no more; leave it out, or ask for more seeds"
        )
    raced = {"racing": True} if racing else {}
    return {"seeds": replicates, "aggregate": how, **raced, "environments": [dict(env) for env in environments]}


def check_alike(config: Config, spaces: Sequence[Space]) -> None:
    """Raise BadConfig unless the searched space is equal in all environments.

    Args:
        config: configuration of the study.
        spaces: searched space in each environment.
    """
    first, *others = [
        {path: str(text) for path, text in space.priors().items() if path in space.unfixed()} for space in spaces
    ]
    names = labels(config.environments)
    for name, other in zip(names[1:], others, strict=True):
        for path in sorted(first.keys() | other.keys()):
            prior, other_prior = first.get(path, "not searched"), other.get(path, "not searched")
            if prior != other_prior:
                raise BadConfig(
                    f"one configuration is searched for all environments, but {path} is {prior} in {names[0]} and "
                    f"{other_prior} in {name}; fix it (--set {path}=...), or leave one out"
                )


def check_across(config: Config) -> None:
    """Raise BadConfig if the scheduler or bounds do not allow several environments."""
    if not is_across(config):
        return
    if not config.scheduling.across:
        raise BadConfig(
            f"--across compares configurations that wait for each other, as with --scheduler "
            f"{those('across')}, but it is {config.scheduler}; leave one out"
        )
    check_count("seeds", config.options["seeds"], MOST_SEEDS)
    if len(config.options.get("objectives", ())) > 1:
        raise BadConfig("--across puts one objective of several environments on one scale, but got several; leave one")
    for constraint in constraints_of(config):
        if constraint.name in objectives_of(config):
            raise BadConfig(
                f"--across puts {constraint.name} of several environments on one scale, which the constraint "
                f"{constraint} does not know; bound another metric"
            )
    for bound in ("goal", "plateau"):
        if bound in config.options:
            raise BadConfig(f"--{bound} is about returns of one environment, but --across has several; leave one out")
