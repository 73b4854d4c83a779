"""Rows of the store, as read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...tasks.checkpoint.storage import Lease, Metrics
from .branches import Start

EXCLUDED = "excluded"  # key of a trial's attributes


def is_epoch_steps(name: str) -> bool:
    """Return whether a hyperparameter is the number of steps of an epoch."""
    return name.rpartition(".")[2] == "epoch_steps"


@dataclass(frozen=True)
class TaskRow:
    """A task.

    A free task has no ``owner``; ``seconds`` is the time until its lease expires.
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

    ``digest`` is the digest of the state; ``blobs`` maps digests of blobs to their sizes in bytes. A checkpoint with
    ``within_epoch`` was taken on a signal, during the epoch after `epochs`.
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

    Its kind is start, resume, takeover, damaged, discarded, or another one reported by the task.
    """

    uid: str
    created: float
    kind: str
    data: dict[str, Any]

    @property
    def owner(self) -> str:
        """Process that took the task's lease; "" for other events."""
        return str(self.data.get("owner", ""))

    @property
    def token(self) -> int:
        """Fencing token of that lease; -1 for other events."""
        return int(self.data.get("token", -1))


@dataclass(frozen=True)
class Claim:
    """A lease held by a process, alive or dead.

    `epochs` is the number of epochs stored; `age` and `left` are seconds since the lease began and until it expires.
    """

    uid: str
    owner: str
    epochs: int
    age: float
    left: float


@dataclass(frozen=True)
class Work:
    """Training of a task under one lease.

    `seconds` is the time trained so far for the study; `runs` tells whether it continues.
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
        number: number of the replicate's trial.
        seeds: replicates per configuration; not a column, but taken from the study.
    """

    number: int
    seeds: int = field(default=1, kw_only=True)

    @property
    def configuration(self) -> int:
        """Number of the configuration."""
        return self.number // self.seeds

    @property
    def replicate(self) -> int:
        """Index of the replicate within its configuration."""
        return self.number % self.seeds

    def columns(self) -> dict[str, Any]:
        """Return the row's values by column name."""
        values = asdict(self)
        del values["seeds"]
        return values


@dataclass(frozen=True)
class Trial(_OfReplicate):
    """A trial of a study.

    ``state`` is running, and finally complete, pruned, failed or cancelled.
    """

    uid: str
    params: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    state: str = "running"
    error: str | None = None
    created: float | None = None
    finished: float | None = None

    @property
    def excluded(self) -> bool:
        """True if a command excludes its results from the study."""
        return EXCLUDED in self.attrs

    @property
    def bracket(self) -> int | None:
        """Number of its bracket."""
        return self.attrs.get("bracket")

    @property
    def member(self) -> int | None:
        """Number of the member of a population that it is."""
        return self.attrs.get("member")

    @property
    def seed(self) -> int | None:
        """Seed, if it is not that of the study."""
        return self.attrs.get("seed")

    @property
    def parent(self) -> int | None:
        """Number of the trial from which it branches."""
        return self.attrs.get("parent")

    @property
    def repeats(self) -> int | None:
        """Number of the trial that it trains again, with another seed."""
        return self.attrs.get("repeats")

    @property
    def start(self) -> Start | None:
        """State of the parent from which it branches."""
        return Start(**self.attrs["start"]) if "start" in self.attrs else None

    @property
    def inherited(self) -> int:
        """Epochs that its parent trained."""
        return self.start.epochs if self.start else 0

    @property
    def epoch_steps(self) -> int:
        """Environment steps of an epoch; 0 if none are named."""
        return next((int(n) for name, n in self.params.items() if is_epoch_steps(name)), 0)


@dataclass(frozen=True)
class Segment(_OfReplicate):
    """Training of a trial from one rung to the next.

    Attributes:
        epochs: total number of epochs at its end.
        state: ready (also while a worker trains it), done or failed.
        score: the return, or the first of other ``objectives``; higher is better.
        objectives: values of all objectives, and the return.
        eval_steps: environment steps that measured the result; None if unknown.
        eval_error: standard error of the return over the episodes that measured it; None if unknown.
    """

    rung: int
    epochs: int
    state: str = "ready"
    score: float | None = None
    digest: str | None = None
    objectives: dict[str, float] | None = None
    eval_steps: int | None = None
    eval_error: float | None = None


@dataclass(frozen=True)
class Changes:
    """Changes of a study since a revision.

    Attributes:
        revision: the study's current revision.
        whole: whether the rows are all of the study's and replace those read earlier.
        config: the current configuration.
        trials: new and changed trials.
        segments: new and changed segments.
        created: when the study was created, which tells it from a later one of its name.
    """

    revision: int
    whole: bool
    config: dict[str, Any]
    trials: list[Trial]
    segments: list[Segment]
    created: float


@dataclass(frozen=True)
class Result:
    """Result of training to the end of a segment.

    ``lease`` is the lease of the segment's task; ``metrics`` are pairs (epoch, metrics) that are merged with stored
    metrics. A failed segment has no score.
    """

    lease: Lease
    number: int
    rung: int
    score: float | None
    digest: str | None = None
    metrics: Sequence[tuple[int, Metrics]] = ()
    objectives: Mapping[str, float] | None = None
    eval_steps: int | None = None
    eval_error: float | None = None


def score_of(segment: Segment | Result) -> float:
    """Return the score of a finished segment, or of its result."""
    assert segment.score is not None
    return segment.score
