"""Rows of the store, as they are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...tasks.checkpoint.storage import Lease, Metrics


@dataclass(frozen=True)
class TaskRow:
    """A task.

    A free task has no ``owner``; ``seconds`` is the rest of its lease.
    """

    uid: str
    identity: dict[str, Any] | None
    owner: str | None
    token: int
    seconds: float
    epochs: int
    created: float


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint.

    ``digest`` is that of the state, ``blobs`` are the sizes of its blobs by digest. One that a signal asked for lies
    within the epoch after `epochs`.
    """

    id: int
    uid: str
    epochs: int
    digest: str
    token: int
    created: float
    within_epoch: bool
    blobs: dict[str, int]


@dataclass(frozen=True)
class Event:
    """An event of a task.

    Its kind is start, resume, takeover, damaged, discarded, or one that the task reported.
    """

    uid: str
    created: float
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A lease that a process holds, alive or dead.

    `epochs` are stored of its task; `age` and `left` are seconds since it began and to its end.
    """

    uid: str
    owner: str
    epochs: int
    age: float
    left: float


@dataclass(frozen=True)
class Work:
    """Training of a task under one lease.

    It is for a study, of `seconds` so far, and may still run.
    """

    study: str
    seconds: float
    runs: bool


@dataclass(frozen=True)
class Study:
    """A study and its configuration."""

    name: str
    config: dict[str, Any]
    created: float


@dataclass(frozen=True)
class _OfReplicate:
    """A row of one replicate of a configuration.

    The replicates of a configuration have consecutive numbers.

    Attributes:
        number: of the trial that the replicate is.
        seeds: how many replicates each configuration of the study has; no column, but read from the study.
    """

    number: int
    seeds: int = field(default=1, kw_only=True)

    @property
    def configuration(self) -> int:
        """The number of the configuration."""
        return self.number // self.seeds

    @property
    def replicate(self) -> int:
        """The index of the replicate among those of its configuration."""
        return self.number % self.seeds

    def columns(self) -> dict[str, Any]:
        """Return the values of the row's columns, by name."""
        values = asdict(self)
        del values["seeds"]
        return values


@dataclass(frozen=True)
class Trial(_OfReplicate):
    """A trial of a study.

    ``state`` is running until it is complete, pruned or failed.
    """

    uid: str
    params: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    state: str = "running"
    error: str | None = None
    created: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class Segment(_OfReplicate):
    """Training of a trial from one rung to the next.

    Attributes:
        epochs: total number at its end.
        state: ready (also while a worker trains it), done or failed.
        score: the return, or the first of other ``objectives``; the higher the better.
        objectives: all objectives, and the return.
    """

    rung: int
    epochs: int
    state: str = "ready"
    score: float | None = None
    digest: str | None = None
    objectives: dict[str, float] | None = None


@dataclass(frozen=True)
class Changes:
    """Changes of a study since a revision.

    Attributes:
        revision: that of the study now.
        whole: whether the rows are all of the study's, and replace those known.
        config: the configuration now.
        trials: those that are new or have changed.
        segments: those that are new or have changed.
    """

    revision: int
    whole: bool
    config: dict[str, Any]
    trials: list[Trial]
    segments: list[Segment]


@dataclass(frozen=True)
class Result:
    """Result of training to the end of a segment.

    ``lease`` is that of the segment's task, ``metrics`` are (epoch, metrics), to be added to those of their epochs. A
    failed segment has no score.
    """

    lease: Lease
    number: int
    rung: int
    score: float | None
    digest: str | None = None
    metrics: Sequence[tuple[int, Metrics]] = ()
    objectives: Mapping[str, float] | None = None


def score_of(segment: Segment | Result) -> float:
    """Return the score of a finished segment, or of its result."""
    assert segment.score is not None
    return segment.score
