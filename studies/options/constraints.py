"""Constraints of a study: bounds of what its trials measure.

`info.cost<=25` is a metric, of those that --objective takes, and its greatest allowed value; `return>=400` its least.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import BadConfig

FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<relation><=|>=)\s*(?P<bound>[^<>=\s]+)\s*")


class Constraint(NamedTuple):
    """A bound of a metric.

    Attributes:
        name: name of the metric.
        relation: "<=" or ">=".
        bound: its greatest or least allowed value.
    """

    name: str
    relation: str
    bound: float

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, text: str) -> Constraint:
        """Parse ``info.cost<=25``, or raise BadConfig."""
        match = FORM.fullmatch(text)
        try:
            bound = float(match["bound"]) if match else math.nan
        except ValueError:
            bound = math.nan
        if match is None or not math.isfinite(bound):
            raise BadConfig(
                "a constraint is NAME<=NUMBER or NAME>=NUMBER in quotes, such as 'info.cost<=25', with the name of a "
                f"metric, but got {text!r}"
            )
        return cls(match["name"], match["relation"], bound)

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{repr(self.bound).removesuffix('.0')}"

    def excess(self, value: float) -> float:
        """Return how far a value lies beyond the bound, relative to it.

        It is negative where the value is allowed. With a bound of 0 it is in the unit of the metric.
        """
        beyond = value - self.bound if self.relation == "<=" else self.bound - value
        return beyond / abs(self.bound or 1.0)


def parse_constraints(texts: str | Sequence[str]) -> list[str]:
    """Return constraints in the form in which they are stored."""
    constraints = [str(Constraint.of(text)) for text in ([texts] if isinstance(texts, str) else texts)]
    if twice := next((text for text in constraints if constraints.count(text) > 1), None):
        raise BadConfig(f"each constraint is given once, but {twice} is given again; leave one out")
    return constraints


def are_constraints(value: Any) -> bool:
    """Return whether a stored entry holds constraints."""
    try:
        return isinstance(value, list) and parse_constraints(value) == value
    except (BadConfig, TypeError):
        return False
