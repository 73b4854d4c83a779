"""Laws of a sound database, and the cure for each violation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TRAINED_AGAIN = "training is exact, so what is trained again is the same"


@dataclass(frozen=True)
class Law:
    """A law of a sound database, and the cure for a violation.

    ``repair`` is True if --repair applies the cure.
    """

    text: str
    cure: str
    repair: bool = True


LAWS = {
    "file": Law("a database file is whole", "restore it from a copy", False),
    "table": Law("every row of a table can be read", "restore the database from a copy", False),
    "json": Law("a JSON column holds JSON", "restore the database from a copy, or delete the row", False),
    "lease": Law("a lease belongs to a living process", "--repair releases it; workers also take it over"),
    "task-identity": Law(
        "a task has an identity, or a trial that waits for it or was cancelled", "--repair deletes the empty task"
    ),
    "task-lost": Law("a task with checkpoints has an identity", "open it with its identity again", False),
    "task-epochs": Law("a task's epochs are those of its last checkpoint", "--repair sets them"),
    "checkpoint": Law(
        "a checkpoint's manifest has the sha256 that names it, and all of its blobs exist and are whole",
        "--repair drops it and takes the task back to the sound one before it, or to its start; " + TRAINED_AGAIN,
    ),
    "blob": Law("a blob has the sha256 that names it", "--repair marks it, and training writes it again"),
    "blob-size": Law("a blob's size is the number of its bytes", "--repair sets it"),
    "orphan": Law("every blob is part of a checkpoint", "--repair deletes it"),
    "unreachable": Law("a row belongs to a task, trial or study that exists", "--repair deletes it"),
    "metrics": Law(
        "metrics end with the last checkpoint, or belong to a process that is training",
        "--repair deletes those after it; " + TRAINED_AGAIN,
    ),
    "study": Law("a study has a configuration that this Rekindle reads", "use the Rekindle that made it", False),
    "trial-state": Law("a trial's state agrees with its segments", "restore the database from a copy", False),
    "trial-failed": Law("a trial whose segment failed has failed", "--repair ends the trial as failed"),
    "trial-task": Law("a trial with results has a task", "import the study from a file that has it", False),
    "segment-open": Law("a trial that ended has no segment left to train", "--repair deletes the segment"),
    "segment-result": Law(
        "a segment has a score and all objectives if, and only if, it is done",
        "--repair opens the segment and its trial again; " + TRAINED_AGAIN,
    ),
    "segment-order": Law(
        "a trial's segments follow each other, each to more epochs than the one before",
        "restore the database from a copy",
        False,
    ),
    "segment-digest": Law(
        "the state at the end of a segment is the one that its task has stored",
        "see which machine or versions wrote which state: `rekindle show UID` has the events",
        False,
    ),
}


@dataclass(frozen=True)
class Fault:
    """A violation of a law.

    Attributes:
        kind: key of the law in LAWS.
        place: row, in words.
        what: wrong value or state, in words.
        key: key of the row, for the repair.
    """

    kind: str
    place: str
    what: str
    key: tuple[Any, ...] = ()

    @property
    def law(self) -> str:
        """Text of the law."""
        return LAWS[self.kind].text

    @property
    def cure(self) -> str:
        """Text of the cure."""
        return LAWS[self.kind].cure

    @property
    def repairable(self) -> bool:
        """True if ``repair`` can apply the cure."""
        return LAWS[self.kind].repair

    def __str__(self) -> str:
        return f"{self.place}: {self.law}, but {self.what}; {self.cure}"


@dataclass(frozen=True)
class Repair:
    """The outcome of a repair: whether it was ``done``, and why not."""

    finding: Fault
    done: bool
    note: str = ""
