"""The rows of the store, as they are read and given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...tasks.checkpoint.storage import Lease, Metrics


@dataclass(frozen=True)
class TaskRow:
    """A task: ``owner`` None means free; ``seconds`` is what is left of its lease."""

    uid: str
    identity: dict[str, Any] | None
    owner: str | None
    token: int
    seconds: float
    epochs: int
    created: float


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint; ``digest`` is that of the state, ``blobs`` are the digests of its blobs with their sizes."""

    id: int
    uid: str
    epochs: int
    digest: str
    token: int
    created: float
    blobs: dict[str, int]


@dataclass(frozen=True)
class Event:
    """What happened to a task: start, resume, takeover, damaged, discarded, or whatever a task reported."""

    uid: str
    created: float
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A study and its configuration."""

    name: str
    config: dict[str, Any]
    created: float


@dataclass(frozen=True)
class Trial:
    """A configuration of a study; ``state`` is running until it is complete, pruned or failed."""

    number: int
    uid: str
    params: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    state: str = "running"
    error: str | None = None
    created: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class Segment:
    """A trial's way to one rung: training until ``epochs`` in all; ``state`` is ready, done or failed.

    ``score`` is the return, or of other ``objectives`` the first, the higher the better; they hold the return, too.
    """

    number: int
    rung: int
    epochs: int
    state: str = "ready"
    score: float | None = None
    digest: str | None = None
    objectives: dict[str, float] | None = None


@dataclass(frozen=True)
class Changes:
    """What has changed in a study since a revision of it.

    Attributes:
        revision: that of the study now.
        whole: whether the rows are all that there are, and take the place of those known.
        config: the configuration now.
        trials, segments: the rows that are new or have changed.
    """

    revision: int
    whole: bool
    config: dict[str, Any]
    trials: list[Trial]
    segments: list[Segment]


@dataclass(frozen=True)
class Result:
    """What training to the end of a segment came to, under the ``lease`` of its task.

    ``metrics`` are (epoch, metrics), to be added to those of their epochs.
    """

    lease: Lease
    number: int
    rung: int
    score: float
    digest: str | None = None
    metrics: Sequence[tuple[int, Metrics]] = ()
    objectives: Mapping[str, float] | None = None


def score_of(segment: Segment) -> float:
    """The score of a segment that is done."""
    assert segment.score is not None
    return segment.score
