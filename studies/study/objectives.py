"""Objectives of a study: what tasks measure, one or several.

    return                  mean undiscounted return of greedy evaluation episodes; maximized
    return_median, return_iqm, return_top_quartile    other statistics of the same returns; maximized
    return_stochastic       mean return of episodes whose actions are sampled as in training; maximized
    model_size              number of parameters of the networks; minimized
    env_steps_per_second    speed of training, measured in an additional epoch that is thrown away; maximized. It is a
                            property of the machine, and not reproducible
    return.BEHAVIOUR        mean return of a behaviour's agents, of a task with several; maximized
    return.0, return.1, ... mean sum of a part of the reward, where it is a vector (`reward_weights`); maximized
    accuracy, ...           measurement of a task without an environment, under its own name and in its own direction
    NAME:maximize, NAME:minimize    last value of a metric that the task reports, such as episode_length or info.NAME;
                            evaluated.info.NAME is measured in evaluation episodes

Several objectives are equally important. Results are ranked by nondominated sorting, then by crowding distance: Deb et
al. (2002), A fast and elitist multiobjective genetic algorithm: NSGA-II. Within a front, results with distant neighbors
come first. A single objective ranks by score; a minimized objective is negated.

Constraints bound further metrics. Results that violate one rank below all feasible ones, and by their violation, the
sum of their excesses. The rules above rank those of equal violation. This is constrained domination (section VI there).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...tasks.checkpoint.retention import RETURN as RETURN
from ...tasks.errors import LARGEST
from ...tasks.runtime import INFO
from ..errors import BadConfig, DamagedRow
from ..options.constraints import Constraint
from ..storage.rows import Segment, score_of
from .config import Config, choose

if TYPE_CHECKING:
    from ...tasks.task import Task


def iqm(scores: Sequence[float]) -> float:
    """Return the interquartile mean: Agarwal et al. (2021), arXiv:2108.13264."""
    cut = len(scores) // 4
    return statistics.fmean(sorted(scores)[cut : len(scores) - cut])


def top_quartile(scores: Sequence[float]) -> float:
    """Return the mean of the highest quarter (at least one score)."""
    return statistics.fmean(sorted(scores)[-max(1, len(scores) // 4) :])


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "iqm": iqm,
    "top_quartile": top_quartile,
}


MODEL_SIZE, SPEED, STOCHASTIC = "model_size", "env_steps_per_second", "return_stochastic"
MAXIMIZE, MINIMIZE = "maximize", "minimize"
DEFAULT = {RETURN: MAXIMIZE}
OF_EPISODES = {f"return_{name}": aggregate for name, aggregate in AGGREGATES.items() if name != "mean"}
DIRECTIONS = dict.fromkeys([RETURN, *OF_EPISODES, STOCHASTIC], MAXIMIZE) | {MODEL_SIZE: MINIMIZE, SPEED: MAXIMIZE}
OF_BEHAVIOUR = f"{RETURN}."  # prefix of a behaviour's return
EVALUATED = "evaluated."  # prefix of a metric of evaluation episodes
CONSTRAINT = "constraint"  # key of options
Bounds = tuple[float | None, float | None]  # least and greatest possible value
SHARE: Bounds = (0, 1)
BOUNDS: dict[str, Bounds] = {
    MODEL_SIZE: (0, None),
    SPEED: (0, None),
    "episode_length": (0, None),
    "clip_fraction": SHARE,
    "success_rate": SHARE,
    # True or false at the end of an episode, in Gymnasium-Robotics and Stable-Baselines3; Meta-World and ManiSkill.
    **{f"{prefix}info.{name}": SHARE for prefix in ("", EVALUATED) for name in ("is_success", "success")},
}
ALWAYS = ("episode_return", "episode_length")  # reported by every task as soon as an episode has ended


class Unmeasured(ValueError):
    """A trial has no finite value of an objective."""


Point = Sequence[float]  # objectives of one result; higher is better for each


def own_objective(algorithm: type[Task]) -> dict[str, str]:
    """Return name and direction of the objective that `evaluate` measures."""
    return {algorithm.learner.objective: algorithm.learner.direction}


def bounds_of(name: str, algorithm: type[Task], environments: Iterable[Mapping[str, Any]] = ()) -> Bounds:
    """Return the least and the greatest possible value of an objective.

    See `bounds_by_name`; a task may declare those of its own objective.
    """
    if algorithm.learner.objective == name and algorithm.learner.bounds != (None, None):
        return algorithm.learner.bounds
    return bounds_by_name(name, environments)


def bounds_by_name(name: str, environments: Iterable[Mapping[str, Any]] = ()) -> Bounds:
    """Return the least and the greatest possible value of a metric.

    Each is None where it is not known, as for returns, or if it depends on the length of an episode, as for sums.
    """
    least, greatest = BOUNDS.get(name, (None, None))
    entry = name.removeprefix(EVALUATED).removeprefix(INFO)
    summed = any(env.get("info", {}).get(entry) == "sum" for env in environments)
    return least, None if summed else greatest


def known_objectives(directions: Mapping[str, str]) -> dict[str, str]:
    """Return the objectives that have a direction of their own."""
    return DIRECTIONS if directions == DEFAULT else {**directions, MODEL_SIZE: MINIMIZE}  # the others need episodes


def objective_options(texts: Sequence[str], defaults: Mapping[str, str] = DEFAULT) -> dict[str, Any]:
    """Return a study's options for these objectives.

    Args:
        texts: names, or NAME:DIRECTION; empty for the task's own objective.
        defaults: the task's own objective, from `own_objective`.

    Raises:
        BadConfig: an objective is named twice, is unknown, or lacks a direction.
    """
    directed = known_objectives(defaults)
    directions: dict[str, str] = {}
    for text in texts or defaults:
        name, colon, direction = text.partition(":")
        if name in directions:
            raise BadConfig(f"each objective is named once, but {name} is named again; leave one out")
        if name.startswith(OF_BEHAVIOUR):
            directed = {**directed, name: MAXIMIZE}
        if not colon and name not in directed:
            behaviours = f", as a behaviour's {OF_BEHAVIOUR}NAME has" if defaults == DEFAULT else ""
            raise BadConfig(
                f"objective {name!r} is not one of {', '.join(directed)}, which have a direction of their own"
                f"{behaviours}; for a metric that the task reports, add the direction: "
                f"{name or 'NAME'}:{MAXIMIZE} or :{MINIMIZE}"
            )
        direction = choose("direction of an objective", direction, (MAXIMIZE, MINIMIZE)) if colon else directed[name]
        directions[name] = direction
    return {} if directions == DEFAULT else {"objectives": directions}


def objectives_of(config: Config) -> dict[str, str]:
    """Return the directions by name, in the study's order."""
    return dict(config.options.get("objectives") or DEFAULT)


def constraints_of(config: Config) -> list[Constraint]:
    """Return the constraints in the study's order."""
    return [Constraint.of(text) for text in config.options.get(CONSTRAINT, ())]


def measured_names(config: Config) -> list[str]:
    """Return the metrics of a result: those of objectives and constraints.

    The list is empty if the return is the only one.
    """
    objectives, constraints = objectives_of(config), constraints_of(config)
    names = dict.fromkeys([*objectives, *(constraint.name for constraint in constraints)])
    return [*names] if constraints or objectives != DEFAULT else []


def ranks_by_score(config: Config) -> bool:
    """Return whether scores alone rank results: one objective and no constraint."""
    return len(objectives_of(config)) == 1 and not config.options.get(CONSTRAINT)


def excesses(constraints: Sequence[Constraint], values: Mapping[str, float] | None) -> list[float]:
    """Return how far a result exceeds each bound, negative within it."""
    return [constraint.excess(value_of(values, constraint.name)) for constraint in constraints]


def violation(constraints: Sequence[Constraint], values: Mapping[str, float] | None) -> float:
    """Return the sum of a result's excesses, 0 if it is feasible."""
    return sum(max(0.0, excess) for excess in excesses(constraints, values))


def bounded_means(constraints: Sequence[Constraint], rows: Sequence[Segment]) -> dict[str, float]:
    """Return the mean of each bounded metric over some results."""
    names = dict.fromkeys(constraint.name for constraint in constraints)
    return {name: statistics.fmean([value_of(row.objectives, name) for row in rows]) for name in names}


def worth(config: Config, row: Segment) -> tuple[float, float]:
    """Return the rank key of a result by its first objective."""
    return -violation(constraints_of(config), row.objectives), score_of(row)


def worths(config: Config, row: Segment) -> tuple[float, ...]:
    """Return the rank key of a result by all objectives in order."""
    others = point(objectives_of(config), row.objectives)[1:] if row.objectives else ()
    return (*worth(config, row), *others)


def measure(
    objectives: Iterable[str], task: Task, evaluated: float, twin: Callable[[], Task], seed: int | None = None
) -> dict[str, float]:
    """Measure the given objectives of a task, and its own.

    Args:
        objectives: names.
        task: task of the trial.
        evaluated: value of its own objective, such as the evaluation return.
        twin: function that creates another task with the same hyperparameters and without a storage.
        seed: seed of the evaluation episodes; None for the one that all searches use.

    Raises:
        Unmeasured: an objective has no finite value.
    """
    objective = task.learner.objective
    values = {objective: evaluated}
    for name in objectives:
        values[name] = _finite(name, evaluated) if name == objective else measured_alone(name, task, twin, seed)
    return values


def measured_alone(name: str, task: Task, twin: Callable[[], Task], seed: int | None = None) -> float:
    """Measure one objective of a task.

    The arguments are those of `measure`.

    Raises:
        Unmeasured: it has no finite value.
    """
    if name == task.learner.objective:
        value = task.evaluate(seed=seed)
    elif name == MODEL_SIZE:
        value = float(sum(parameter.numel() for parameter in task.parameters()))
    elif name == SPEED:
        value = _speed(task, twin())
    elif name == STOCHASTIC:
        value = statistics.fmean(task.returns(deterministic=False, seed=seed))
    elif name in OF_EPISODES:
        value = OF_EPISODES[name](task.returns(seed=seed))
    elif name.startswith(OF_BEHAVIOUR):
        value = _evaluated(task, f"{INFO}{name}", seed)
    elif name.startswith(EVALUATED):
        value = _evaluated(task, name.removeprefix(EVALUATED), seed)
    else:
        value = _last_reported(task, name)
    return _finite(name, value)


def _finite(name: str, value: float) -> float:
    """Return a value of an objective, or raise Unmeasured."""
    if not abs(value) <= LARGEST:
        raise Unmeasured(f"an objective is a finite number, but {name} became {value}; its size is {LARGEST:g} at most")
    return value


def mean_of_known(values: Sequence[float]) -> float | None:
    """Return the mean of all values but NaN, or None without values."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.fmean(numbers) if numbers else None


def _evaluated(task: Task, name: str, seed: int | None) -> float:
    measured = task.measure(seed=seed)
    value = mean_of_known(measured.get(name, []))
    if value is None:
        raise Unmeasured(
            f"an objective must be measured in evaluation, but {task.env.id} gave no {name} there; it is an entry of "
            "an episode's info, which the environment's spec names (--info)"
        )
    return value


def _last_reported(task: Task, name: str) -> float:
    reported = [metrics[name] for _, metrics in task.history if name in metrics]
    if not reported:
        names = ", ".join(sorted({name for _, metrics in task.history for name in metrics}))
        raise Unmeasured(
            f"an objective must be reported by the task, but in {task.epochs} epochs it reported {names}, and no {name}"
        )
    return float(reported[-1])


def _speed(task: Task, twin: Task) -> float:
    twin.load_state_dict(task.state_dict())
    steps, began = twin.env_steps, time.perf_counter()
    twin.fit(twin.epochs + 1)
    return (twin.env_steps - steps) / (time.perf_counter() - began)


def point(objectives: Mapping[str, str], values: Mapping[str, float]) -> list[float]:
    """Return the objectives in order, with signs such that higher is better."""
    signs = {MAXIMIZE: 1, MINIMIZE: -1}
    return [signs[direction] * value_of(values, name) for name, direction in objectives.items()]


def value_of(values: Mapping[str, float] | None, name: str) -> float:
    """Return one objective of a result, or raise DamagedRow."""
    if values is None or name not in values:
        raise DamagedRow(
            f"a result must have all objectives of its study, but one lacks {name}; `rekindle fsck --repair` makes "
            "workers train it again"
        )
    return values[name]


def measured(config: Config, row: Segment) -> float:
    """Return the first objective of a result, as measured."""
    name = next(iter(objectives_of(config)))
    return score_of(row) if objectives_of(config) == DEFAULT else value_of(row.objectives, name)


def best_first(config: Config, rows: Iterable[Segment]) -> list[Segment]:
    """Sort finished results, best first; ties go to lower trial numbers."""
    constraints = constraints_of(config)

    def violated(row: Segment) -> float:
        return violation(constraints, row.objectives)

    done = sorted((row for row in rows if row.state == "done"), key=lambda row: (violated(row), row.number))
    objectives, ranked = objectives_of(config), list[Segment]()
    several = len(objectives) > 1
    for _, together in groupby(done, key=violated):
        equals = list(together)
        points = [point(objectives, row.objectives or {}) if several else [score_of(row)] for row in equals]
        ranked += [equals[index] for index in ranking(points)]
    return ranked


def ranking(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points, best first; ties keep their order."""
    if points and len(points[0]) == 1:
        return sorted(range(len(points)), key=lambda index: -points[index][0])
    order: list[int] = []
    for front in fronts(points):
        apart = crowding([points[index] for index in front])
        order += [front[i] for i in sorted(range(len(front)), key=lambda i: -apart[i])]
    return order


def fronts(points: Sequence[Point]) -> list[list[int]]:
    """Return the indices of each front, by nondominated sorting."""
    sorted_fronts: list[list[int]] = []
    for index in _dominating_first(points):
        fitting = (front for front in sorted_fronts if not _is_dominated(points, index, front))
        front = next(fitting, None)
        if front is None:
            sorted_fronts.append(front := [])
        front.append(index)
    return [sorted(front) for front in sorted_fronts]


def undominated(points: Sequence[Point]) -> list[int]:
    """Return the indices of the Pareto front."""
    front: list[int] = []
    for index in _dominating_first(points):
        if not _is_dominated(points, index, front):
            front.append(index)
    return sorted(front)


def _dominating_first(points: Sequence[Point]) -> list[int]:
    """Sort indices so that no point is dominated by a later one."""
    return sorted(range(len(points)), key=lambda index: [-value for value in points[index]])


def _is_dominated(points: Sequence[Point], index: int, others: Iterable[int]) -> bool:
    return any(dominates(points[other], points[index]) for other in others)


def dominates(one: Point, other: Point) -> bool:
    """Return whether a point is nowhere worse and somewhere better."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def crowding(points: Sequence[Point]) -> list[float]:
    """Return the crowding distances of a front, infinite at its ends."""
    apart = [0.0] * len(points)
    for values in zip(*points, strict=True):
        order = sorted(range(len(points)), key=lambda i: (values[i], i))
        spread = values[order[-1]] - values[order[0]]
        if not spread:
            continue
        apart[order[0]] = apart[order[-1]] = math.inf
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            apart[index] += (values[after] - values[before]) / spread
    return apart
