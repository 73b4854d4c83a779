"""The check of a study's configuration that comes out of a database or a file: of the form that a study can have.

Numbers are bounded, since some of them say how many rungs and trials there are to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...tasks.checkpoint.retention import snapshots

MOST_GRID_POINTS = 10_000  # of one range
MANY = 10_000_000  # trials, epochs: more than anybody trains
RUNGS = 10_000
DEPTH = 16  # names within names


def _is_count(value: Any, least: int = 1, most: int = MANY) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and name.count(".") < DEPTH for name in value)


def _are_epochs(value: Any) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3 and all(_is_count(each) for each in value)):
        return False
    low, high, base = value
    return low <= high and (base > 1 or high // low < RUNGS)


def _are_trials(value: Any) -> bool:
    counts = isinstance(value, list | tuple) and 0 < len(value) <= RUNGS and all(_is_count(each) for each in value)
    return counts and list(value) == sorted(set(value))


def _are_options(value: Any) -> bool:
    if not _are_names(value) or not isinstance(value.get("warm_start", ""), str):
        return False
    if not _is_count(value.get("grid_points", 2), 1, MOST_GRID_POINTS):
        return False
    try:
        snapshots(value.get("snapshots", "latest"))
    except ValueError:
        return False
    objectives = value.get("objectives", {"": "maximize"})
    return _are_names(objectives) and len(objectives) > 0 and set(objectives.values()) <= {"maximize", "minimize"}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 1000


_FORM: dict[str, Callable[[Any], bool]] = {
    "task": _is_text,
    "task_version": _is_count,
    "env": lambda value: isinstance(value, Mapping) and _is_text(value.get("id")),
    "seed": lambda value: _is_count(value, 0, 2**63 - 1),
    "space": _are_names,
    "fixed": _are_names,
    "epochs": _are_epochs,
    "trials": _are_trials,
    "generation": _is_count,
    "cohort": _is_count,
    "sampler": _is_text,
    "scheduler": _is_text,
    "options": _are_options,
    "direction": _is_text,
}


def what_is_wrong(form: Mapping[str, Any]) -> str:
    """The name and the value of what no configuration holds, or "" if there is none."""
    for name, check in _FORM.items():
        if name in form and not check(form[name]):
            return f"its {name} is {str(form[name])[:80]!r}"
    return ""
