"""Named entries of `info`, reduced over each episode and averaged by member.

    EnvSpec("my_envs:Search-v0", info={"is_success": "last", "gbest": "min", "cost": "sum"})

Each entry becomes the metric ``info.NAME``: the mean over the episodes that ended in an epoch. An episode's value is
computed from the steps at which the environment gave a finite number; an episode without any does not count. A dot
leads into a dict: ``"episode.r"`` is ``info["episode"]["r"]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import EnvSpecError
from ...runtime import INFO
from .arrays import Array, Tree, to_tensor

Numbers = NDArray[np.float64]

# Functions of an episode's value so far and the next one.
REDUCTIONS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "last": lambda before, value: value,
    "mean": np.add,  # divided by the number at the end
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
}


def as_dict(info: Any, env: str) -> Mapping[Any, Any]:
    """Return info of reset or step as a dict.

    Raises:
        EnvSpecError: it is something else.
    """
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise EnvSpecError(f"{env}: reset and step return info as a dict, but it is {str(info)[:40]!r}; return one")
    return info


def find(info: Mapping[str, Any], name: str) -> Any:
    """Return an entry by its name or path; None if missing."""
    if name in info:
        return info[name]
    at = name.find(".")
    while at >= 0:  # names of dicts may contain dots, too
        part = info.get(name[:at])
        if isinstance(part, Mapping) and (entry := find(part, name[at + 1 :])) is not None:
            return entry
        at = name.find(".", at + 1)
    return None


def number(value: Any) -> float | None:
    """Return a value as a number; None if it is not one."""
    try:
        if not isinstance(value, int | float) and hasattr(value, "__array__"):  # of NumPy, torch and others
            array = np.asarray(value)
            value = array.item() if array.size == 1 and array.dtype.kind in "biuf" else None
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
    except Exception:  # noqa: BLE001 - an object of others, such as a tensor with a gradient
        return None


def numbers_in(info: Mapping[Any, Any], prefix: str = "", outer: Sequence[int] = ()) -> Iterator[str]:
    """Yield the names of all entries that could be reported.

    Entries without a name, such as those of integers, cannot. A dict that contains itself, whose `outer` ids are those
    around it, is read once.
    """
    for name, value in info.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, Mapping):
            if id(value) not in (around := (*outer, id(info))):
                yield from numbers_in(value, f"{prefix}{name}.", around)
        elif number(value) is not None:
            yield f"{prefix}{name}"


def write(info: Any, names: Sequence[str], out: Array, env: str) -> None:
    """Write the named entries of one step; NaN for missing ones.

    Raises:
        EnvSpecError: an entry is not a number, or info is no dict.
    """
    info = as_dict(info, env)
    for column, name in enumerate(names):
        entry = find(info, name)
        value = math.nan if entry is None else number(entry)
        if value is None:
            raise EnvSpecError(
                f"{env}: what is reported of info must be one number a step, but info[{name!r}] is "
                f"{str(entry)[:40]!r}; leave it out"
            )
        out[column] = value


class EpisodeInfo:
    """Entries of M environments' running episodes, and tallies of P members.

    Attributes:
        names: names of the K entries.
        columns: columns of each reduction's entries.
        running: values so far, (M, K).
        counts: number of steps in each value, (M, K).
        sums, episodes: sums and numbers of the episodes that ended since `take_metrics`, (P, K).
        last: values of the episode that ended last, (M, K); NaN without one.
    """

    def __init__(self, reductions: Mapping[str, str], member: NDArray[np.int64]) -> None:
        self.names, self.reductions, self.member = tuple(reductions), tuple(reductions.values()), member
        # A slice for all of them, so that a step's few numbers are not copied.
        columns = {
            r: [k for k, reduction in enumerate(self.reductions) if reduction == r]
            for r in dict.fromkeys(self.reductions)
        }
        self.columns = {
            r: slice(None) if len(indices) == len(self.names) else indices for r, indices in columns.items()
        }
        self.reset()

    def reset(self) -> None:
        """Clear everything."""
        size, members, entries = len(self.member), int(self.member[-1]) + 1, len(self.names)
        self.running, self.counts = np.zeros((size, entries)), np.zeros((size, entries), np.int64)
        self.sums, self.episodes = np.zeros((members, entries)), np.zeros((members, entries), np.int64)
        self.last = np.full((size, entries), np.nan)

    def begin(self, rows: Sequence[int] | Array) -> None:
        """Start the episodes of these environments."""
        if self.names:
            self.running[rows], self.counts[rows] = 0, 0

    def add(self, entries: Numbers) -> None:
        """Add the entries of one step, (M, K)."""
        if not self.names:
            return
        finite = np.isfinite(entries)
        value = np.where(finite, entries, 0)
        for reduction, columns in self.columns.items():
            before, counts = self.running[:, columns], self.counts[:, columns]
            later = np.where(counts > 0, REDUCTIONS[reduction](before, value[:, columns]), value[:, columns])
            self.running[:, columns] = np.where(finite[:, columns], later, before)
        self.counts += finite

    def values(self, ended: NDArray[np.int64]) -> Numbers:
        """Return the values of these environments' episodes, NaN where there is none."""
        counts = self.counts[ended]
        values = np.where(counts > 0, self.running[ended], np.nan)
        means = np.array([reduction == "mean" for reduction in self.reductions], np.bool_)
        return np.where(means, values / np.maximum(counts, 1), values)

    def end(self, ended: NDArray[np.int64]) -> None:
        """Add the episodes of these environments to the tallies."""
        if not self.names:
            return
        values = self.last[ended] = self.values(ended)
        # Added one by one, in order, so that P does not change the rounding of a sum.
        np.add.at(self.sums, self.member[ended], np.where(np.isnan(values), 0, values))
        np.add.at(self.episodes, self.member[ended], ~np.isnan(values))

    def take_metrics(self) -> list[dict[str, float]]:
        """Return each member's means over episodes, and clear the tallies."""
        rows = [
            {f"{INFO}{name}": total / count for name, total, count in zip(self.names, *tally, strict=True) if count}
            for tally in zip(self.sums.tolist(), self.episodes.tolist(), strict=True)
        ]
        self.sums[:], self.episodes[:] = 0, 0
        return rows

    def member_state(self, member: int) -> Tree:
        rows = self.member == member
        return {
            "running": to_tensor(self.running[rows]),
            "counts": to_tensor(self.counts[rows]),
            "sums": self.sums[member].tolist(),
            "episodes": self.episodes[member].tolist(),
        }

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        rows = self.member == member
        self.running[rows], self.counts[rows] = tree["running"].numpy(), tree["counts"].numpy()
        self.sums[member], self.episodes[member] = tree["sums"], tree["episodes"]
