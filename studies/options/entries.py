"""Options as stored configurations hold them.

A function that parses takes what the user gives, a text or in Python a number, and returns what is stored. One that
checks takes what a database holds, which an older version or another program may have written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import BadConfig
from .constraints import are_constraints, parse_constraints
from .conversions import MOST
from .durations import UNITS, parse_duration
from .option import StoredEntry

BUDGETS = ("epochs", "steps", "seconds")  # units of work
WEIGHTS = (0.001, 1000.0)  # smallest and largest weight of a study
MOST_GRID_POINTS = 10_000  # of one range


def check_count(name: str, value: object, most: int = MOST, least: int = 1) -> int:
    """Return an integer from `least` to `most`, or raise BadConfig."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadConfig(f"{name} must be an integer of at least {least}, but got {value!r}")
    if value > most:
        raise BadConfig(f"{name} must be {most} at most, but got {value}")
    return value


def is_count(value: object, least: int = 1, most: int = MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def parse_budget(text: str) -> dict[str, int]:
    """Parse ``200epochs``, ``5e6steps`` or ``2h`` as {unit: number}."""
    if text[-1:] in UNITS:
        with suppress(ValueError):
            return {"seconds": round(parse_duration(text)) or 1}
    unit = next((unit for unit in BUDGETS if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) if unit else 0.0
    except ValueError:
        value = 0.0
    if not 1 <= value < 2**53 or value != int(value):
        raise BadConfig(
            f"--budget must be a number of at least 1 with a unit, 200epochs, 5e6steps or 2h, but got {text!r}"
        )
    return {unit: int(value)}


def _is_budget(value: Any) -> bool:
    return isinstance(value, Mapping) and all(is_count(value[unit], 1, 2**53) for unit in value)


def parse_goal(text: str) -> dict[str, float]:
    """Parse ``return:475`` as {objective: value to reach}."""
    name, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if name != "return" or not math.isfinite(value):
        raise BadConfig(f"--goal must be return:VALUE, such as return:475, but got {text!r}")
    return {name: value}


def _is_goal(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value[name], int | float) for name in value)


def count(name: str, least: int = 1, most: int = MOST) -> StoredEntry:
    """Return the entry of an option that is an integer."""
    return StoredEntry(lambda value: check_count(name, value, most, least), lambda value: is_count(value, least, most))


def parse_trial_time(time: float | str) -> float:
    """Return a trial time in seconds."""
    try:
        return parse_duration(time if isinstance(time, str) else f"{time:f}")
    except ValueError as error:
        raise BadConfig(f"--trial-time {error}") from None


def parse_weight(weight: float | str) -> float:
    """Parse the weight of a study among others."""
    try:
        value = float(str(weight))
    except ValueError:
        value = math.nan
    if not _is_weight(value):
        raise BadConfig(
            f"--weight must be a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}, such as 3, but got {str(weight)!r}"
        )
    return value


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and WEIGHTS[0] <= value <= WEIGHTS[1]


def parse_snapshots(text: str) -> str:
    """Return the value of --snapshots, unless checkpoints would lack the replay buffer."""
    from ...tasks.checkpoint.retention import keep_of  # imports numpy

    if (keep := keep_of(text)) is not None and not keep.replay:
        raise ValueError(
            f"a study's trials resume with the same bits from one rung to the next, but --snapshots {text} leaves "
            "replay buffers out; leave no-replay out, which only `rekindle train` takes"
        )
    return text


def _is_keep(value: Any) -> bool:
    from ...tasks.checkpoint.retention import keep_of  # imports numpy

    try:
        keep_of(value)
    except ValueError:
        return False
    return True


CONSTRAINTS = StoredEntry(parse_constraints, are_constraints)
BUDGET = StoredEntry(parse_budget, _is_budget)
GOAL = StoredEntry(parse_goal, _is_goal)
TRIAL_TIME = StoredEntry(parse_trial_time, lambda value: isinstance(value, int | float) and 0 < value < math.inf)
WEIGHT = StoredEntry(parse_weight, _is_weight)
SNAPSHOTS = StoredEntry(parse_snapshots, _is_keep)
