"""Simulated studies of populations, without training, and their smallest configuration."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rekindle.spaces import flatten, unflatten
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.schedulers.registry import plan, scheduler
from rekindle.studies.schedulers.seeds import seeds_of
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import Config
from rekindle.studies.study.plan import Branch, Plan
from rekindle.tasks import load
from studying import TINY


def population(members: int = 5, epochs: int = 6, **options: Any) -> Config:
    fixed = {**TINY, **options.pop("fixed", {})}
    env = options.pop("env", "CartPole-v1")
    options = {"interval": 2, **options}
    return make_population(load("ppo"), env, epochs=epochs, population=members, fixed=unflatten(fixed), **options)


def params(config: Config) -> dict[str, Any]:
    """Return hyperparameters with the defaults of all that is searched."""
    return flatten(load("ppo")("CartPole-v1").init(**unflatten(dict(config.fixed))).hyperparameters or {})


Rows = tuple[dict[int, Trial], dict[tuple[int, int], Segment]]
Score = Callable[[int, int], float | None]


def score_of(number: int, rung: int) -> float | None:
    return None if (number, rung) in ((3, 0), (7, 1)) else float((number * 7919 + rung * 104729) % 1009)


def simulate(config: Config, rng: random.Random, score: Score = score_of) -> tuple[Rows, list[Branch]]:
    """Simulate a study to its end, finishing some ready segments at a time in random order."""
    trials: dict[int, Trial] = {}
    segments: dict[tuple[int, int], Segment] = {}
    branches: list[Branch] = []
    record, seeds = Told(config), seeds_of(config)
    while True:
        step = record.plan(trials, segments)
        if step.complete:
            return (trials, segments), branches
        for number, state in step.finished:
            assert trials[number].state == "running"
            trials[number] = replace(trials[number], state=state)
        for number in step.ask or ():
            for n in range(number * seeds, (number + 1) * seeds):
                trials[n] = Trial(n, f"u{n}", {}, seeds=seeds)
        for branch in step.branches[: rng.randint(1, len(step.branches))] if step.branches else ():  # and killed
            trials[branch.number] = Trial(branch.number, f"u{branch.number}", {}, seeds=seeds)
            branches.append(branch)
        segments |= {(row.number, row.rung): row for row in step.segments}
        ready = [key for key, row in segments.items() if row.state == "ready"]
        assert ready or step, "the schedule is stuck"
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            value = score(number, rung)
            state = "failed" if value is None else "done"
            segments[number, rung] = replace(segments[number, rung], state=state, score=value)
            if value is None:
                trials[number] = replace(trials[number], state="failed")


class Told:
    """A scheduler that sees only changes, like a worker's, and must plan like one that sees all rows."""

    def __init__(self, config: Config):
        self.config, self.scheduler = config, scheduler(config)
        self.known: dict[Any, Trial | Segment] = {}

    def plan(self, trials: dict[int, Trial], segments: dict[tuple[int, int], Segment]) -> Plan:
        rows = {**trials, **segments}
        changed = [row for key, row in rows.items() if self.known.get(key) != row]
        self.known = dict(rows)
        self.scheduler.observe(
            [row for row in changed if isinstance(row, Trial)], [row for row in changed if isinstance(row, Segment)]
        )
        step = self.scheduler.plan()
        assert step == self.scheduler.plan() == plan(self.config, trials.values(), segments.values())
        return step
