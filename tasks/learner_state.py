"""Facts in one member's state, read without a learner.

A state has counters, the tally of the running epoch, and parts by name, such as `envs`; particles have states of their
own, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import StateMismatch


def check_counters(tree: Any, subject: str, names: Sequence[str] = ("iterations", "epochs")) -> None:
    """Raise StateMismatch unless a state's counters are non-negative integers."""
    counters = tree.get("counters") if isinstance(tree, Mapping) else None
    for name in {**dict.fromkeys(names), **(counters if isinstance(counters, Mapping) else {})}:
        count = counters.get(name) if isinstance(counters, Mapping) else None
        if not isinstance(count, int) or not 0 <= count < 2**62:
            raise StateMismatch(
                f"{subject}: counters/{name} must be an integer of at least 0, but got {str(count)[:40]}"
            )


def lies_within_epoch(state: Mapping[str, Any]) -> bool:
    """Return whether a member's state lies within an epoch, see `BaseLearner.within_epoch`."""
    part = state if "tally" in state else next(iter(state.get("particles", {}).values()), {})
    return bool(part.get("tally", {}).get("count"))


def inexact_in(state: Mapping[str, Any]) -> list[str]:
    """Return the reasons in a member's state why it is not exact."""
    parts = state.get("particles", {"": state}).values()
    reasons = (reason for part in parts for reason in part.get("envs", {}).get("inexact", ()))
    return list(dict.fromkeys(reasons))
