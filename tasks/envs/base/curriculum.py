"""Parameters of environments: drawn at each reset, with lessons of rising difficulty.

    EnvSpec("my_envs:Wall-v0", parameters={
        "gravity": 9.81,
        "wind": {"gaussian": [0.0, 0.5]},
        "height": {"lessons": [
            {"name": "low", "value": 1.0, "completion_criteria": {"threshold": 5.0, "min_lesson_length": 20}},
            {"name": "any", "value": {"uniform": [1.0, 4.0]}},
        ]},
    })

The environment finds its parameters by name in ``reset(options=...)``; it is an error if its reset does not read one of
them. A parameter named ``kwargs.NAME`` is an argument of the constructor instead, and each episode then has a new
environment.

A value is a number (constant), or one of ``{"uniform": [low, high]}``, ``{"gaussian": [mean, st_dev]}``,
``{"multirangeuniform": [[low, high], ...]}``, ``{"integer": [low, high]}`` with both ends included, and ``{"choice":
[value, ...]}`` of any JSON values. ML-Agents' spelling is accepted too: ``sampler_type`` with ``sampler_parameters``,
and ``curriculum`` for lessons.

The metric ``parameter.NAME`` is the mean over the member's running episodes. Training starts with the first lesson of
each parameter; evaluation always uses the last one.

completion_criteria, tested once after every episode of a member:
    measure: "reward" (default), the mean return of the last ``min_lesson_length`` episodes, at least one;
        "info.NAME", the mean of an entry that the spec's `info` reports, over as many episodes that have it; or
        "progress", the member's environment steps as a share of ``horizon``.
    threshold: (0) value that the measure must exceed; from 0 to 1 for progress.
    min_lesson_length: (0) smallest number of episodes in a lesson.
    signal_smoothing: (true) the mean counts 3/4, and the measure after the previous episode 1/4.
    require_reset: (false) when the lesson ends, the member's running episodes are truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....spaces.errors import near
from ...rng import streams

Tree = dict[str, Any]
SMOOTHING = 0.25  # weight of the previous measure
MEASURES = ("reward", "progress")
KWARGS = "kwargs."  # before the name of an argument of the constructor
Sampler = Callable[[float], Any]  # a parameter's value as a function of a number in (0, 1)


@dataclass(frozen=True)
class Criteria:
    """Conditions that end a lesson, see the module."""

    measure: str = "reward"
    threshold: float = 0.0
    min_lesson_length: int = 0
    signal_smoothing: bool = True
    require_reset: bool = False
    horizon: int | None = None


@dataclass(frozen=True)
class Lesson:
    """A sampler of a parameter, used until its criteria are met."""

    name: str
    draw: Sampler
    criteria: Criteria | None


def parse(parameters: Mapping[str, Any], reported: Sequence[str] = ()) -> dict[str, list[Lesson]]:
    """Return the lessons of each parameter; a plain value is one lesson.

    Args:
        parameters: parameters as in a spec.
        reported: entries of `info` that lessons may measure.

    Raises:
        ValueError: a parameter is malformed; the message names the place.
    """
    measures = (*MEASURES, *(f"info.{name}" for name in reported))
    return {name: _lessons(form, f"parameters.{name}", measures) for name, form in parameters.items()}


def _lessons(form: Any, subject: str, measures: Sequence[str]) -> list[Lesson]:
    if isinstance(form, Mapping) and form.keys() == {"curriculum"}:
        form = {"lessons": form["curriculum"]}
    if not isinstance(form, Mapping) or "lessons" not in form:
        return [Lesson("", _sampler(form, subject), None)]
    lessons = form["lessons"]
    if len(form) > 1 or not isinstance(lessons, list) or not lessons:
        raise ValueError(f"{subject} must be {{'lessons': [lesson, ...]}} with one at least, but got {dict(form)!r}")
    parsed = [_lesson(lesson, f"{subject}.lessons[{i}]", measures) for i, lesson in enumerate(lessons)]
    for i, lesson in enumerate(parsed[:-1]):
        if lesson.criteria is None:
            raise ValueError(f"{subject}.lessons[{i}] must have completion_criteria, as lessons follow it")
    return parsed


def _lesson(form: Any, subject: str, measures: Sequence[str]) -> Lesson:
    keys = {"name", "value", "completion_criteria"}
    if not isinstance(form, Mapping) or not {"value"} <= form.keys() <= keys:
        raise ValueError(f"{subject} must have a value, and may have a name and completion_criteria, but got {form!r}")
    draw, criteria = _sampler(form["value"], f"{subject}.value"), form.get("completion_criteria")
    parsed = None if criteria is None else _criteria(criteria, f"{subject}.completion_criteria", measures)
    return Lesson(str(form.get("name", "")), draw, parsed)


def _criteria(form: Any, subject: str, measures: Sequence[str]) -> Criteria:
    keys = [f.name for f in fields(Criteria)]
    if not isinstance(form, Mapping):
        raise ValueError(f"{subject} must be an object, but got {form!r}")
    if isinstance(form.get("behavior"), str):  # ML-Agents names the measured agent here; we have only one
        form = {name: value for name, value in form.items() if name != "behavior"}
    for name in form.keys() - set(keys):
        raise ValueError(f"{subject} has {', '.join(keys)}, but got {name!r}{near(name, keys)}")
    criteria = Criteria(**form)
    progress = criteria.measure == "progress"
    laws = [
        ("measure", criteria.measure in measures, f"one of {', '.join(measures)}, or reported in info"),
        ("threshold", _is_number(criteria.threshold), "a number"),
        ("threshold", not progress or 0 <= criteria.threshold <= 1, "from 0 to 1, as a share of the horizon"),
        ("min_lesson_length", _is_count(criteria.min_lesson_length, 0), "an integer of at least 0, in episodes"),
        ("signal_smoothing", isinstance(criteria.signal_smoothing, bool), "true or false"),
        ("require_reset", isinstance(criteria.require_reset, bool), "true or false"),
        ("horizon", not progress or _is_count(criteria.horizon, 1), "a number of steps, which are the whole progress"),
        ("horizon", progress or criteria.horizon is None, "left out, unless progress is measured"),
    ]
    for name, holds, law in laws:
        if not holds:
            raise ValueError(f"{subject}.{name} must be {law}, but got {getattr(criteria, name)!r}")
    return criteria


def _sampler(form: Any, subject: str) -> Sampler:
    form = _from_ml_agents(form, subject)
    if _is_number(form):
        return lambda u: float(form)
    match list(form.items()) if isinstance(form, Mapping) else []:
        case [("uniform", [low, high])] if _is_range((low, high)):
            return lambda u: low + (high - low) * u
        case [("gaussian", [mean, st_dev])] if _is_number(mean) and _is_number(st_dev) and st_dev >= 0:
            return lambda u: mean + st_dev * NormalDist().inv_cdf(u)
        case [("multirangeuniform", [_, *_] as ranges)] if all(map(_is_range, ranges)):
            return lambda u: _in_ranges(ranges, u)
        case [("integer", [low, high])] if _is_whole(low) and _is_whole(high) and low <= high:
            return lambda u: low + int(u * (high - low + 1))
        case [("choice", [_, *_] as values)]:
            return lambda u: values[int(u * len(values))]
    raise ValueError(
        f"{subject} must be a number, {{'uniform': [low, high]}}, {{'gaussian': [mean, st_dev]}}, "
        f"{{'multirangeuniform': [[low, high], ...]}}, {{'integer': [low, high]}} or {{'choice': [value, ...]}} with "
        f"low <= high and st_dev >= 0, but got {form!r}"
    )


# The names of a sampler's parameters in ML-Agents, in the order of its list here.
ML_AGENTS = {
    "uniform": ("min_value", "max_value"),
    "gaussian": ("mean", "st_dev"),
    "multirangeuniform": ("intervals",),
    "constant": ("value",),
}


def _from_ml_agents(form: Any, subject: str) -> Any:
    """Return a sampler of ML-Agents in our spelling; others unchanged."""
    if not isinstance(form, Mapping) or "sampler_type" not in form:
        return form
    sampler, parameters = form["sampler_type"], form.get("sampler_parameters")
    names = ML_AGENTS.get(sampler, ()) if isinstance(sampler, str) else ()
    if not names or not isinstance(parameters, Mapping) or parameters.keys() != set(names):
        forms = "; ".join(f"{sampler_type} has {', '.join(names)}" for sampler_type, names in ML_AGENTS.items())
        raise ValueError(
            f"{subject} must be a sampler_type with its sampler_parameters ({forms}), and no seed, as draws follow the "
            f"task's, but got {dict(form)!r}"
        )
    values = [parameters[name] for name in names]
    return values[0] if sampler == "constant" else {sampler: values[0] if len(values) == 1 else values}


def _in_ranges(ranges: Sequence[Sequence[float]], u: float) -> float:
    """Return a number in one of the ranges, which count by length."""
    left = u * sum(high - low for low, high in ranges)
    for low, high in ranges:
        if left <= high - low:
            return low + left
        left -= high - low
    return ranges[-1][1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any, least: int) -> bool:
    return _is_whole(value) and value >= least


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]


@dataclass
class LessonStanding:
    """One member's progress with one parameter.

    Attributes:
        lesson: index of the current lesson.
        episodes: episodes finished in this lesson.
        smoothed: the measure after the previous episode; None before the first.
        returns: measured values of the last episodes in this lesson.
    """

    lesson: int = 0
    episodes: int = 0
    smoothed: float | None = None
    returns: list[float] = field(default_factory=list)


class Curriculum:
    """The lessons of P members, and their progress."""

    def __init__(
        self, parameters: Mapping[str, Any], seeds: Sequence[int], purpose: str, reported: Sequence[str] = ()
    ) -> None:
        self.lessons = parse(parameters, reported)
        self.seeds, self.purpose = seeds, purpose
        self.training = purpose == "train"
        self.reset()

    def reset(self) -> None:
        """Return to the first lessons, or in evaluation to the last ones."""
        self.standings = [{name: self._first(lessons) for name, lessons in self.lessons.items()} for _ in self.seeds]
        self.steps = np.zeros(len(self.seeds), np.int64)

    def _first(self, lessons: Sequence[Lesson]) -> LessonStanding:
        return LessonStanding(0 if self.training else len(lessons) - 1)

    def options(self, member: int, *episode: int | str) -> dict[str, Any]:
        """Return an episode's parameters.

        They are drawn from streams of (seed, purpose, parameter, episode) alone.
        """
        values = {}
        for name, lessons in self.lessons.items():
            key = streams.key(self.seeds[member], self.purpose, "parameter", name, *episode)
            values[name] = lessons[self.standings[member][name].lesson].draw(float(streams.open_uniform(key, 0)[0]))
        return values

    def advance(
        self,
        steps: int,
        ended: NDArray[np.int64],
        returns: NDArray[np.float64],
        info: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
    ) -> list[int]:
        """Count steps and finished episodes; return the members to truncate.

        Args:
            steps: steps of each member.
            ended: members of the finished episodes, in order.
            returns: returns of these episodes.
            info: reported entries of these episodes, by measure.
        """
        self.steps += steps
        truncated: set[int] = set()
        columns = {"reward": returns, **info}
        for episode, member in enumerate(ended.tolist()):
            for name, standing in self.standings[member].items():
                criteria = self.lessons[name][standing.lesson].criteria
                last = standing.lesson == len(self.lessons[name]) - 1
                if last or criteria is None:
                    continue
                measured = columns[criteria.measure if criteria.measure in columns else "reward"][episode]
                if not self._is_over(criteria, standing, member, float(measured)):
                    continue
                self.standings[member][name] = LessonStanding(standing.lesson + 1)
                if criteria.require_reset:
                    truncated.add(member)
        return sorted(truncated)

    def _is_over(self, criteria: Criteria, standing: LessonStanding, member: int, measured: float) -> bool:
        """Count an episode; return whether it ends the lesson."""
        if math.isnan(measured) and criteria.measure not in MEASURES:
            return False  # the episode did not report this entry
        standing.episodes += 1
        standing.returns = [*standing.returns, measured][-max(1, criteria.min_lesson_length) :]
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
        """Return the current lesson of each parameter that has several."""
        standings = self.standings[member]
        return {f"lesson.{name}": float(standings[name].lesson) for name in self.lessons if len(self.lessons[name]) > 1}

    def member_state(self, member: int) -> Tree:
        standings = {name: {**vars(standing)} for name, standing in self.standings[member].items()}
        return {"steps": int(self.steps[member]), "standings": standings}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        standings = {name: LessonStanding(**tree["standings"][name]) for name in self.lessons}
        self.steps[member], self.standings[member] = tree["steps"], standings
