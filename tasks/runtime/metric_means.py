"""Means of metrics over an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.state import Tree

TOGETHER = 64  # reports that are read at once, since reading numbers one by one takes longer than computing them

COUNT = "count"  # beside the sums in a state

Report = tuple[list[str], Tensor, NDArray[np.bool_] | None]


class MemberMetrics(dict[str, Tensor]):
    """Metrics of an iteration, (P,) each, that count for some members only.

    Attributes:
        members: mask of the members that they count for, (P,).
    """

    def __init__(self, metrics: Mapping[str, Tensor], members: NDArray[np.bool_]):
        super().__init__(metrics)
        self.members = members.copy()


class Tally:
    """Sums of P members' metrics, added in the order of reports.

    Attributes:
        count: number of reports so far.
        unread: reports that are not in the sums yet.
    """

    def __init__(self, members: int):
        self.members, self.count = members, 0
        self._sums: dict[str, NDArray[np.float64]] = {}  # (2, P): totals, and numbers of reports that had the metric
        self.unread: list[Report] = []

    @torch.no_grad()
    def add(self, report: Mapping[str, Tensor]) -> None:
        """Add one report, (P,) each.

        It counts for all members unless it is a `MemberMetrics`.
        """
        self.count += 1
        members = report.members if isinstance(report, MemberMetrics) else None
        if report:
            values = torch.stack([value.reshape(-1) for value in report.values()])
            self.unread.append(([*report], values, members))
        if len(self.unread) >= TOGETHER:
            self._read()

    def _read(self) -> None:
        """Add the pending reports to the sums, those with equal names together."""
        unread, self.unread = self.unread, []
        while unread:
            names = unread[0][0]
            count = next((i for i, (others, *_) in enumerate(unread) if others != names), len(unread))
            reports, unread = unread[:count], unread[count:]
            numbers = torch.stack([values for _, values, _ in reports]).to("cpu", torch.float64).numpy()
            everybody = np.ones(self.members, np.bool_)
            members = np.stack([everybody if some is None else some for *_, some in reports])
            numbers = np.where(members[:, None], numbers, 0.0)
            for column, name in enumerate(names):
                totals, counts = self._sums.setdefault(name, np.zeros((2, self.members)))
                for row in numbers[:, column]:  # added one by one, so TOGETHER does not change the rounding
                    totals += row
                counts += members.sum(0)

    def take(self) -> list[dict[str, float]]:
        """Return each member's means by name, and reset the sums."""
        self._read()
        means = [
            {name: float(totals[i] / counts[i]) for name, (totals, counts) in self._sums.items() if counts[i]}
            for i in range(self.members)
        ]
        self._sums, self.count = {}, 0
        return means

    def member_state(self, member: int) -> Tree:
        self._read()
        sums = {_key(name): rows[:, member].tolist() for name, rows in self._sums.items()}
        return {COUNT: self.count, **{name: [total, int(count)] for name, (total, count) in sums.items() if count}}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self._read()
        self.count = tree[COUNT]
        sums = {unquote(name): row for name, row in tree.items() if name != COUNT}
        for name in self._sums.keys() | sums.keys():
            self._sums.setdefault(name, np.zeros((2, self.members)))[:, member] = sums.get(name, (0.0, 0))


def _key(name: str) -> str:
    """Return a metric's name in a state, where "/" separates names.

    `unquote` gives it back.
    """
    key = name.replace("%", "%25").replace("/", "%2F")
    return "%63ount" if key == COUNT else key
