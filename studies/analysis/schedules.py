"""Lineages of populations as schedules, trained again on fresh seeds.

A population's best member had a schedule of hyperparameters, and some luck: it came out first among many members and
seeds. To tell the two apart, its schedule is trained again on fresh seeds, and so are its last hyperparameters from
the first epoch on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from ...tasks.cohort import Cohort
from ...tasks.registry import task_of
from ...tasks.rng import streams
from ...tasks.task import Task
from ..engine.lineage import LineageTask, lineage, restore
from ..engine.views import MeanView, View
from ..errors import BadConfig
from ..options.entries import check_count
from ..statistics.estimates import FEWEST
from ..statistics.intervals import mean_interval
from ..storage.store import Store
from ..study.objectives import Bounds, Unmeasured, bounds_of, measured_alone
from ..study.stored_form import MOST_SEEDS


class StageView(View):
    """Part of a schedule."""

    from_: Annotated[int, "epochs at its start"]
    to: Annotated[int, "epochs at its end"]
    hyperparameters: Annotated[Mapping[str, Any], "value by dotted name, of those that change"]


class MeasuredView(MeanView):
    """Mean of results on fresh seeds, and the results."""

    results: Annotated[Sequence[float], "results by seed"]


class ScheduleView(View):
    """Results of a lineage's hyperparameters as a schedule, on fresh seeds."""

    uid: Annotated[str, "uid of the last task"]
    objective: Annotated[str, "name of what the results measure"]
    epochs: Annotated[int, "its epochs"]
    stages: Annotated[Sequence[StageView], "parts of the schedule"]
    recorded: Annotated[float, "result of the task itself, as stored, or measured where it is not"]
    schedule: Annotated[MeasuredView, "results of the schedule"]
    last: Annotated[MeasuredView, "results of its last hyperparameters throughout"]
    gain: Annotated[MeasuredView, "schedule minus last, seed by seed"]
    luck: Annotated[float, "recorded minus the mean of the schedule"]


def schedule_view(
    store: Store, uid: str, seeds: int, say: Callable[[str], None], device: str = "cpu", objective: str | None = None
) -> ScheduleView:
    """Train a lineage as a schedule on fresh seeds.

    Args:
        store: store that holds the lineage.
        uid: uid of its last task.
        seeds: number of fresh seeds, at least 3.
        say: function that takes a line about each half of the work.
        device: see `Task`.
        objective: name of what the results measure, such as `return.NAME` of a behaviour; None for the task's own.

    Raises:
        BadConfig: there are too few seeds; or the lineage is a single task, begins with a warm start, or is untrained;
            or the last task has no finite value of the objective.
    """
    check_count("seeds", seeds, MOST_SEEDS)
    if seeds < FEWEST:
        raise BadConfig(f"an interval needs at least {FEWEST} seeds, but --seeds is {seeds}; take more")
    links = lineage(store, uid)
    if links[0].policy is not None:
        raise BadConfig(f"a schedule begins with untrained networks, but task {links[0].uid} has a warm start")
    if len(links) < 2:
        raise BadConfig(
            f"a schedule needs a task that branched, as in a population, but {uid} did not: its "
            "hyperparameters never changed; `rekindle train --seed N` trains them on other seeds"
        )
    saved = store.load(uid)
    if saved is None:
        raise BadConfig(f"a schedule needs a trained task, but {uid} has no checkpoint; train it first")
    recorded = restore(saved, device)
    ends = [link.start.epochs for link in links[1:] if link.start is not None] + [recorded.epochs]
    name = objective or recorded.learner.objective

    def result_of(task: Task) -> float:
        """Return the objective of a trained task."""
        return measured_alone(name, task, partial(task_of, task.identity.to_json(), device=device))

    history = dict(store.metrics(uid))
    before = history.get(recorded.epochs, {}).get(name)
    if before is None:
        try:
            before = result_of(recorded)
        except Unmeasured:  # it is a metric of training, whose episodes a checkpoint does not hold
            before = _last_reported(history, uid, name)
    seed = int(links[0].identity["seed"])
    fresh = [int(streams.key(seed, "schedule", n)) >> 1 for n in range(seeds)]
    say(f"training the schedule on {seeds} fresh seeds")
    scheduled = [result_of(task) for task in _train(links, ends, fresh, device)]
    say(f"training the last hyperparameters on the same {seeds} seeds")
    static = [result_of(task) for task in _train(links[-1:], ends[-1:], fresh, device)]
    bounds = bounds_of(name, type(recorded), [recorded.env.to_json()])
    return ScheduleView(
        uid=uid,
        objective=name,
        epochs=recorded.epochs,
        stages=_stages(links, ends),
        recorded=before,
        schedule=_summary(scheduled, static, bounds=bounds),
        last=_summary(static, scheduled, bounds=bounds),
        gain=_summary([one - other for one, other in zip(scheduled, static, strict=True)]),
        luck=before - statistics.fmean(scheduled),
    )


def _last_reported(history: Mapping[int, Mapping[str, float]], uid: str, name: str) -> float:
    """Return the last reported value of a metric, or raise BadConfig."""
    values = [metrics[name] for _, metrics in sorted(history.items()) if name in metrics]
    if not values:
        names = ", ".join(sorted({name for metrics in history.values() for name in metrics}))
        raise BadConfig(
            f"a schedule is measured by what its task reports, but {uid} has no {name}; --objective is one of {names}"
        )
    return values[-1]


def _train(links: Sequence[LineageTask], ends: Sequence[int], seeds: Sequence[int], device: str) -> list[Task]:
    """Train each link to its end; return the task of each seed."""
    tasks: list[Task] = []
    for link, end in zip(links, ends, strict=True):
        identity = {name: value for name, value in link.identity.items() if name != "start"}
        states = [task.state_dict() for task in tasks]
        tasks = [task_of({**identity, "seed": seed}, device=device) for seed in seeds]
        for task, state in zip(tasks, states, strict=False):
            task.load_state_dict(state, perturb=True)
        Cohort(tasks).fit(end)
    return tasks


def _stages(links: Sequence[LineageTask], ends: Sequence[int]) -> list[StageView]:
    """Return the hyperparameters that change, with their values in each stage."""
    values: list[Mapping[str, Any]] = [link.identity["hyperparameters"] for link in links]
    changed = [name for name in values[-1] if any(values_then.get(name) != values[-1][name] for values_then in values)]
    stages, begin = [], 0
    for values_then, end in zip(values, ends, strict=True):
        stages.append(StageView(from_=begin, to=end, hyperparameters={name: values_then.get(name) for name in changed}))
        begin = end
    return stages


def _summary(results: Sequence[float], *alike: Sequence[float], bounds: Bounds = (None, None)) -> MeasuredView:
    value, low, high = mean_interval(results, alike).within(*bounds, results)
    return MeasuredView(value=value, low=low, high=high, results=list(results))
