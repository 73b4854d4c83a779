"""Form of stored configurations: limits, and the check of every field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...tasks.checkpoint.retention import keep_of

WEIGHTS = (0.001, 1000.0)  # smallest and largest weight of a study
MOST_GRID_POINTS = 10_000  # of one range
MOST = 10_000_000  # trials or epochs; limits the work that a configuration from a file can cause
MOST_RUNGS = 10_000
MOST_SEEDS = 10_000  # of a configuration
MOST_AT_ONCE = 100_000  # trials that one plan makes
MOST_DEPTH = 16  # of nested names


def _is_count(value: Any, least: int = 1, most: int = MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and name.count(".") < MOST_DEPTH for name in value)


def _are_epochs(value: Any) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3 and all(_is_count(each) for each in value)):
        return False
    low, high, base = value
    return low <= high and (base > 1 or high // low < MOST_RUNGS)


def _are_trials(value: Any) -> bool:
    counts = isinstance(value, list | tuple) and 0 < len(value) <= MOST_RUNGS and all(_is_count(each) for each in value)
    return counts and list(value) == sorted(set(value))


def _is_keep(value: Any) -> bool:
    try:
        keep_of(value)
    except ValueError:
        return False
    return True


def _is_budget(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_count(value[unit], 1, 2**53) for unit in value)


def _is_goal(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value[name], int | float) for name in value)


def _are_spaces(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list | tuple) and len(each) == 2 and _is_count(each[0], 0) and _are_names(each[1])
        for each in value
    )


def _are_objectives(value: Any) -> bool:
    return _are_names(value) and len(value) > 0 and set(value.values()) <= {"maximize", "minimize"}


def _are_learned(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(source, Mapping)
        and _is_text(source.get("study"))
        and isinstance(source.get("values"), list)
        and all(map(_are_names, source["values"]))
        and isinstance(source.get("scores"), list)
        and len(source["scores"]) == len(source["values"]) > 0
        and all(isinstance(score, float) and 0 <= score <= 1 for score in source["scores"])
        for source in value
    )


def is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and WEIGHTS[0] <= value <= WEIGHTS[1]


def _is_env(value: Any) -> bool:
    return isinstance(value, Mapping) and (not value or _is_text(value.get("id")))


def _are_environments(options: Mapping[str, Any]) -> bool:
    found, scale = options.get("environments", [{}]), options.get("scale", [])
    if not (isinstance(found, list) and found and all(map(_is_env, found)) and isinstance(scale, list)):
        return False
    numbers = all(isinstance(each, list) and len(each) == 2 and all(map(_is_finite, each)) for each in scale)
    whole = "environments" not in options or options.get("seeds", 1) % len(found) == 0
    return numbers and len(scale) in (0, len(found)) and whole


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 1000


_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "warm_start": lambda value: isinstance(value, str),
    "known": lambda value: isinstance(value, list) and all(map(_are_names, value)),
    "learned": _are_learned,
    "grid_points": lambda value: _is_count(value, 1, MOST_GRID_POINTS),
    "snapshots": _is_keep,
    "budget": _is_budget,
    "confirmed": _is_count,
    "longer": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "spaces": _are_spaces,
    "goal": _is_goal,
    "plateau": _is_count,
    "good": _is_count,
    "weight": is_weight,
    "trial_time": lambda value: isinstance(value, int | float) and 0 < value < math.inf,
    "objectives": _are_objectives,
}


_FORM: dict[str, Callable[[Any], bool]] = {
    "task": _is_text,
    "task_version": _is_count,
    "env": _is_env,
    "seed": lambda value: _is_count(value, 0, 2**63 - 1),
    "space": _are_names,
    "fixed": _are_names,
    "epochs": _are_epochs,
    "trials": _are_trials,
    "generation": _is_count,
    "cohort": _is_count,
    "sampler": _is_text,
    "scheduler": _is_text,
    "options": _are_names,
    "direction": _is_text,
}


def invalid_field(form: Mapping[str, Any]) -> str:
    """Return an invalid field's name and value in words, or ""."""
    options = form.get("options", {})
    checked = [("", form, _FORM)]
    if isinstance(options, Mapping):
        checked.append(("options.", options, _OPTIONS))
    for place, values, checks in checked:
        for name, check in checks.items():
            if name in values and not check(values[name]):
                return f"its {place}{name} is {str(values[name])[:80]!r}"
    return "" if _are_environments(options) else f"its options are {str(options)[:80]!r}"
