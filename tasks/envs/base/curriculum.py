"""The progress of members through the lessons of an environment's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...rng import streams
from .lessons import Criteria, Lesson, parse

Tree = dict[str, Any]
SMOOTHING = 0.25  # the weight of the measure before


@dataclass
class Standing:
    """One member's progress with one parameter.

    Attributes:
        lesson: its index.
        episodes: finished in this lesson.
        smoothed: the measure after the episode before; None before the first.
        returns: of the last episodes of this lesson.
    """

    lesson: int = 0
    episodes: int = 0
    smoothed: float | None = None
    returns: list[float] = field(default_factory=list)


class Curriculum:
    """The progress of P members."""

    def __init__(self, parameters: Mapping[str, Any], seeds: Sequence[int], purpose: str) -> None:
        self.lessons = parse(parameters)
        self.seeds, self.purpose = seeds, purpose
        self.training = purpose == "train"
        self.reset()

    def reset(self) -> None:
        """Return to the first lessons, or in evaluation to the last ones."""
        self.standings = [{name: self._first(lessons) for name, lessons in self.lessons.items()} for _ in self.seeds]
        self.steps = np.zeros(len(self.seeds), np.int64)

    def _first(self, lessons: Sequence[Lesson]) -> Standing:
        return Standing(0 if self.training else len(lessons) - 1)

    def options(self, member: int, *episode: int | str) -> dict[str, float]:
        """Return an episode's parameters.

        They are drawn from streams of (seed, purpose, parameter, episode) alone.
        """
        values = {}
        for name, lessons in self.lessons.items():
            key = streams.key(self.seeds[member], self.purpose, "parameter", name, *episode)
            values[name] = lessons[self.standings[member][name].lesson].draw(float(streams.open_uniform(key, 0)[0]))
        return values

    def advance(self, steps: int, ended: NDArray[np.int64], returns: NDArray[np.float64]) -> list[int]:
        """Count steps and finished episodes, and return the members to truncate.

        Args:
            steps: of each member.
            ended: the members of the finished episodes, in order.
            returns: of these episodes.
        """
        self.steps += steps
        truncated: set[int] = set()
        for member, episode_return in zip(ended.tolist(), returns.tolist(), strict=True):
            for name, standing in self.standings[member].items():
                criteria = self.lessons[name][standing.lesson].criteria
                last = standing.lesson == len(self.lessons[name]) - 1
                if last or criteria is None or not self._is_over(criteria, standing, member, episode_return):
                    continue
                self.standings[member][name] = Standing(standing.lesson + 1)
                if criteria.require_reset:
                    truncated.add(member)
        return sorted(truncated)

    def _is_over(self, criteria: Criteria, standing: Standing, member: int, episode_return: float) -> bool:
        """Count an episode, and return whether it ends the lesson."""
        standing.episodes += 1
        standing.returns = [*standing.returns, episode_return][-max(1, criteria.min_lesson_length) :]
        if standing.episodes < criteria.min_lesson_length:
            return False
        if criteria.measure == "progress":
            assert criteria.horizon is not None
            return int(self.steps[member]) / criteria.horizon > criteria.threshold
        measure = sum(standing.returns) / len(standing.returns)
        if math.isnan(measure):
            return False
        if criteria.signal_smoothing and standing.smoothed is not None:
            measure = SMOOTHING * standing.smoothed + (1 - SMOOTHING) * measure
        standing.smoothed = measure
        return measure > criteria.threshold

    def metrics(self, member: int) -> dict[str, float]:
        """Return the lesson of each parameter that has several."""
        standings = self.standings[member]
        return {f"lesson.{name}": float(standings[name].lesson) for name in self.lessons if len(self.lessons[name]) > 1}

    def member_state(self, member: int) -> Tree:
        standings = {name: {**vars(standing)} for name, standing in self.standings[member].items()}
        return {"steps": int(self.steps[member]), "standings": standings}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        standings = {name: Standing(**tree["standings"][name]) for name in self.lessons}
        self.steps[member], self.standings[member] = tree["steps"], standings
