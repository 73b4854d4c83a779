"""Copies of curves from rows into a sink."""

from __future__ import annotations

from .runs import Curves
from .sinks import Sink


class Copy:
    """A copy of curves in a sink.

    Each point is read once and written once. After a restart, the sink says how far it is.

    Attributes:
        points: number of points that this process wrote.
        runs: names of the runs seen so far.
    """

    def __init__(self, curves: Curves, sink: Sink):
        self.curves, self.sink = curves, sink
        self.points, self.runs = 0, set[str]()
        self._last: dict[str, int] = {}

    def update(self) -> None:
        """Write the new points."""
        runs = self.curves.refresh()
        for run in runs:
            if run.name not in self._last:
                self._last[run.name] = self.sink.last(run)
        for run, points in self.curves.after(runs, [self._last[run.name] for run in runs]):
            self.runs.add(run.name)
            if points:
                self.sink.write(run, points)
                self._last[run.name] = points[-1].epoch
                self.points += len(points)
            if run.state != "running":
                self.sink.end(run)
        self.sink.flush()
