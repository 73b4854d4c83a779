"""What can go wrong with a trial, and what is done about it, as data.

    decision = decide(error, tried=history.failed[classify(error)])
    if decision.retry:
        ...  # write the event (FAILED, note(error, decision, epochs)), wait decision.pause seconds, open the task again
    else:
        store.fail_trial(lease, study, number, rung, report(error))

Training is exact, so what follows from a trial alone (a loss that becomes NaN, bad hyperparameters) follows again: such
a trial fails at once. What follows from its surroundings (a machine that goes away, memory that others use, a simulator
that crashes) is tried again from the last checkpoint, and whatever comes of it is what would have come at once. Tries
count from the last new epoch: who gets on may have any number of accidents.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..tasks.errors import BadResume, DamagedState, Diverged, TaskError
from ..tasks.runtime.guard import is_control_flow
from .errors import (
    BadURL,
    IdentityMismatch,
    LeaseLost,
    SchemaMismatch,
    StoreError,
    StudyMismatch,
    TaskBusy,
    UnknownStudy,
)
from .redact import masked

FAILED = "failed"  # the event that says that a trial failed, and whether it is tried again
KILLED = "killed"
LONGEST = 16_384  # characters of a report


class Killed(Exception):
    """Every process that trained a trial died of it, or so it seems."""


@dataclass(frozen=True)
class Retry:
    """What is done about a kind of failure.

    Attributes:
        times: how often a trial is tried again on its account; None as often as it takes.
        pause: seconds before the first time; twice as many before each time after that, up to `longest`.
        alone: whether it is tried again without others beside it, which takes less memory and shows whose fault it was.
        company: how often it is tried again in company before that.
        release: whether this worker lets go of the trial: another one carries on.
        why: the reason, in words.
    """

    times: int | None
    why: str
    pause: float = 0.0
    longest: float = 60.0
    alone: bool = False
    company: int = 0
    release: bool = False


POLICIES: Mapping[str, Retry] = {
    "preempted": Retry(None, "the process was asked to stop; its state is saved, and anyone carries on", release=True),
    "stale": Retry(
        None, "another process holds the trial; what this one did too late counts for nothing", release=True
    ),
    "storage": Retry(None, "the database did not answer, which says nothing about the trial", pause=1.0),
    "memory": Retry(
        3, "the machine ran out of memory; fewer trials at once, or a quiet moment, may do", 5.0, alone=True
    ),
    "environment": Retry(2, "a simulator's crash may be its own affair, not the trial's", pause=1.0, alone=True),
    KILLED: Retry(
        4, "machines go away, but who dies of one trial over and over lacks the memory for it", alone=True, company=1
    ),
    "diverged": Retry(0, "the same hyperparameters give the same NaN again"),
    "input": Retry(0, "what makes no sense now makes none later"),
    "damaged": Retry(0, "only the user can say whether to go back to an earlier checkpoint"),
    "unknown": Retry(1, "it may have been an accident; if it happens again, it is the trial's own", alone=True),
}
_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
_INPUT = (ValueError, TypeError, LookupError, AttributeError, ImportError, AssertionError, NotImplementedError)
_ASKED = (BadURL, IdentityMismatch, SchemaMismatch, StudyMismatch, UnknownStudy)


def classify(error: BaseException) -> str:
    """The kind of a failure: a name in POLICIES. BadResume counts as what first broke the task."""
    root = [*_causes(error)][-1]
    for kind, holds in _KINDS.items():
        if holds(root):
            return kind
    return "unknown"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ if isinstance(current, BadResume) else None


def _is_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # asked for, never imported: an error of torch's exists only where it is loaded
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY)


def _is_environment(error: BaseException) -> bool:
    """Whether an exception came out of an environment's own code: from outside of Rekindle, below its environments."""
    if isinstance(error, TaskError):
        return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = __name__.partition(".")[0]
    below = next((i for i, name in enumerate(names) if name.startswith(f"{ours}.tasks.envs.gym")), None)
    return below is not None and any(not name.startswith(f"{ours}.") for name in names[below:])


# In this order: an error is of the first kind that it fits.
_KINDS: Mapping[str, Callable[[BaseException], bool]] = {
    "preempted": is_control_flow,
    "stale": lambda error: isinstance(error, LeaseLost | TaskBusy),
    "damaged": lambda error: isinstance(error, DamagedState),
    KILLED: lambda error: isinstance(error, Killed),
    "diverged": lambda error: isinstance(error, Diverged | FloatingPointError),
    "memory": _is_memory,
    "environment": _is_environment,
    "input": lambda error: isinstance(error, (*_ASKED, *_INPUT, TaskError)),
    "storage": lambda error: isinstance(error, StoreError),
}


@dataclass(frozen=True)
class Decision:
    """What is done about one failure: `retry` in `pause` seconds (`alone` or not), `release` the trial, or fail it."""

    kind: str
    retry: bool
    release: bool
    alone: bool
    pause: float
    why: str

    def to_json(self) -> dict[str, Any]:
        """The decision, for the event that records it."""
        return asdict(self)


def decide(error: BaseException, tried: int = 0) -> Decision:
    """What is done about a failure of a trial that was tried again `tried` times because of failures of its kind."""
    kind = classify(error)
    policy = POLICIES[kind]
    retry = not policy.release and (policy.times is None or tried < policy.times)
    pause = min(policy.pause * 2.0 ** min(tried, 30), policy.longest) if retry else 0.0
    alone = policy.alone and retry and tried >= policy.company
    return Decision(kind, retry, policy.release, alone, pause, policy.why)


def note(error: BaseException, decision: Decision, epochs: int) -> dict[str, Any]:
    """The event of a failure after `epochs` epochs were stored: what is done about it, and the trace."""
    return {**decision.to_json(), "epochs": epochs, "report": report(error)}


def report(error: BaseException) -> str:
    """What is kept with a failed trial: its kind and the trace, without passwords, and cut if it is gigantic.

    Of a divergence it is the message, as the trace depends on the company that the trial was trained in.
    """
    kind, root = classify(error), [*_causes(error)][-1]
    if isinstance(root, Diverged | Killed):
        return masked(f"{type(root).__name__}: {root}")
    text = masked(f"[{kind}] {''.join(traceback.format_exception(root))}")
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n...\n{text[-LONGEST // 2 :]}"
