"""Form of stored configurations: limits, and the check of every field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..options.entries import is_count
from ..options.study_options import STUDY

MOST_RUNGS = 10_000
MOST_SEEDS = 10_000  # of a configuration
MOST_AT_ONCE = 100_000  # trials that one plan makes
MOST_DEPTH = 16  # of nested names


def _are_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and name.count(".") < MOST_DEPTH for name in value)


def _are_epochs(value: Any) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3 and all(is_count(count) for count in value)):
        return False
    low, high, base = value
    return low <= high and (base > 1 or high // low < MOST_RUNGS)


def _are_trials(value: Any) -> bool:
    counts = (
        isinstance(value, list | tuple) and 0 < len(value) <= MOST_RUNGS and all(is_count(count) for count in value)
    )
    return counts and list(value) == sorted(set(value))


def _are_spaces(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list | tuple) and len(entry) == 2 and is_count(entry[0], 0) and _are_names(entry[1])
        for entry in value
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


def _are_eval_steps(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(
            isinstance(entry, list | tuple)
            and len(entry) in (2, 3)  # an older study has no most episodes
            and is_count(entry[0])
            and _is_finite(entry[1])
            and all(map(is_count, entry[2:]))
            for entry in value
        )
    )


def _are_sizes(value: Any) -> bool:
    if not (isinstance(value, Mapping) and _is_finite(value.get("seconds")) and _are_names(value.get("paces"))):
        return False
    if not (value.keys() <= {"seconds", "paces", "refused", "races"} and _are_names(value.get("refused", {}))):
        return False
    if not isinstance(value.get("races", False), bool):
        return False
    return all(_is_finite(pace) and pace > 0 for pace in value["paces"].values())


def _is_env(value: Any) -> bool:
    return isinstance(value, Mapping) and (not value or _is_text(value.get("id")))


def _are_environments(options: Mapping[str, Any]) -> bool:
    environments, scale = options.get("environments", [{}]), options.get("scale", [])
    if not (
        isinstance(environments, list) and environments and all(map(_is_env, environments)) and isinstance(scale, list)
    ):
        return False
    numbers = all(isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_finite, bounds)) for bounds in scale)
    whole = "environments" not in options or options.get("seeds", 1) % len(environments) == 0
    return numbers and len(scale) in (0, len(environments)) and whole


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 1000


_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "warm_start": lambda value: isinstance(value, str),
    "known": lambda value: isinstance(value, list) and all(map(_are_names, value)),
    "portfolio": lambda value: isinstance(value, Mapping) and all(map(_are_names, value.get("trials", [None]))),
    "repeats": is_count,
    "learned": _are_learned,
    "sampler_source": _is_text,
    "files": lambda value: isinstance(value, Mapping) and all(map(_is_text, (*value, *value.values()))),
    "resumes": lambda value: isinstance(value, str),
    "confirmed": is_count,
    "longer": lambda value: isinstance(value, list) and all(map(is_count, value)),
    "spaces": _are_spaces,
    "good": is_count,
    "widens": lambda value: value is True,
    "opens": lambda value: value is True,
    "sized": _are_sizes,
    "eval_steps": lambda value: _are_eval_steps(value) and len(value) > 0,
    "objectives": _are_objectives,
    **{name: option.entry.is_valid for name, option in STUDY.items() if option.entry},
}


_FORM: dict[str, Callable[[Any], bool]] = {
    "task": _is_text,
    "task_version": is_count,
    "env": _is_env,
    "seed": lambda value: is_count(value, 0, 2**63 - 1),
    "space": _are_names,
    "fixed": _are_names,
    "epochs": _are_epochs,
    "trials": _are_trials,
    "generation": is_count,
    "cohort": is_count,
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
    for setting, values, checks in checked:
        for name, check in checks.items():
            if name in values and not check(values[name]):
                return f"its {setting}{name} is {str(values[name])[:80]!r}"
    return "" if _are_environments(options) else f"its options are {str(options)[:80]!r}"
