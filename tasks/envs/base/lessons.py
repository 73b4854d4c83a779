"""Parameters of environments: numbers drawn at each reset, harder lesson by lesson.

    EnvSpec("my_envs:Wall-v0", parameters={
        "gravity": 9.81,
        "wind": {"gaussian": [0.0, 0.5]},
        "height": {"lessons": [
            {"name": "low", "value": 1.0, "completion_criteria": {"threshold": 5.0, "min_lesson_length": 20}},
            {"name": "any", "value": {"uniform": [1.0, 4.0]}},
        ]},
    })

The environment finds them in ``reset(options=...)``, by name. A value is a number (constant), or one of
``{"uniform": [low, high]}``, ``{"gaussian": [mean, st_dev]}``, ``{"multirangeuniform": [[low, high], ...]}``. Training
starts with the first lesson of each parameter; episodes of evaluation are always of the last one.

completion_criteria, tested once after every episode of a member:
    measure: "reward" (default), the mean return of the last ``min_lesson_length`` episodes, one at least; or
        "progress", the member's environment steps as a share of ``horizon``.
    threshold: (0) to be exceeded; from 0 to 1 for progress.
    min_lesson_length: (0) the least number of episodes of a lesson.
    signal_smoothing: (true) the mean return counts 3/4, the measure after the episode before 1/4.
    require_reset: (false) when the lesson ends, the member's running episodes are truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

from ....spaces.errors import near

MEASURES = ("reward", "progress")
Sampler = Callable[[float], float]  # a parameter's value as a function of a number in (0, 1)


@dataclass(frozen=True)
class Criteria:
    """The conditions that end a lesson, see above."""

    measure: str = "reward"
    threshold: float = 0.0
    min_lesson_length: int = 0
    signal_smoothing: bool = True
    require_reset: bool = False
    horizon: int | None = None


@dataclass(frozen=True)
class Lesson:
    """A sampler of a parameter, in use until the criteria are met."""

    name: str
    draw: Sampler
    criteria: Criteria | None


def parse(parameters: Mapping[str, Any]) -> dict[str, list[Lesson]]:
    """Return the lessons of each parameter, one for a plain value.

    Raises:
        ValueError: names the error, and its place.
    """
    return {name: _lessons(form, f"parameters.{name}") for name, form in parameters.items()}


def _lessons(form: Any, where: str) -> list[Lesson]:
    if not isinstance(form, Mapping) or "lessons" not in form:
        return [Lesson("", _sampler(form, where), None)]
    lessons = form["lessons"]
    if len(form) > 1 or not isinstance(lessons, list) or not lessons:
        raise ValueError(f"{where} must be {{'lessons': [lesson, ...]}} with one at least, but got {dict(form)!r}")
    parsed = [_lesson(lesson, f"{where}.lessons[{i}]") for i, lesson in enumerate(lessons)]
    for i, lesson in enumerate(parsed[:-1]):
        if lesson.criteria is None:
            raise ValueError(f"{where}.lessons[{i}] must have completion_criteria, as lessons follow it")
    return parsed


def _lesson(form: Any, where: str) -> Lesson:
    known = {"name", "value", "completion_criteria"}
    if not isinstance(form, Mapping) or not {"value"} <= form.keys() <= known:
        raise ValueError(f"{where} must have a value, and may have a name and completion_criteria, but got {form!r}")
    draw, criteria = _sampler(form["value"], f"{where}.value"), form.get("completion_criteria")
    parsed = None if criteria is None else _criteria(criteria, f"{where}.completion_criteria")
    return Lesson(str(form.get("name", "")), draw, parsed)


def _criteria(form: Any, where: str) -> Criteria:
    known = [f.name for f in fields(Criteria)]
    if not isinstance(form, Mapping):
        raise ValueError(f"{where} must be an object, but got {form!r}")
    for name in form.keys() - set(known):
        raise ValueError(f"{where} has {', '.join(known)}, but got {name!r}{near(name, known)}")
    criteria = Criteria(**form)
    progress = criteria.measure == "progress"
    laws = [
        ("measure", criteria.measure in MEASURES, f"one of {', '.join(MEASURES)}"),
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
            raise ValueError(f"{where}.{name} must be {law}, but got {getattr(criteria, name)!r}")
    return criteria


def _sampler(form: Any, where: str) -> Sampler:
    if _is_number(form):
        return lambda u: float(form)
    match list(form.items()) if isinstance(form, Mapping) else []:
        case [("uniform", [low, high])] if _is_range((low, high)):
            return lambda u: low + (high - low) * u
        case [("gaussian", [mean, st_dev])] if _is_number(mean) and _is_number(st_dev) and st_dev >= 0:
            return lambda u: mean + st_dev * NormalDist().inv_cdf(u)
        case [("multirangeuniform", [_, *_] as ranges)] if all(map(_is_range, ranges)):
            return lambda u: _in_ranges(ranges, u)
    raise ValueError(
        f"{where} must be a number, {{'uniform': [low, high]}}, {{'gaussian': [mean, st_dev]}} or "
        f"{{'multirangeuniform': [[low, high], ...]}} with low <= high and st_dev >= 0, but got {form!r}"
    )


def _in_ranges(ranges: Sequence[Sequence[float]], u: float) -> float:
    """Return a number in a range, chosen by its length."""
    left = u * sum(high - low for low, high in ranges)
    for low, high in ranges:
        if left <= high - low:
            return low + left
        left -= high - low
    return ranges[-1][1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]
