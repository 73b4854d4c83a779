"""Kinds of failures of a trial, and the retry rule of each.

    decision = decide(error, tried=history.failed[classify(error)])
    if decision.retry:
        ...  # write (FAILED, event_data(error, decision, epochs)), wait decision.pause seconds, open the task again
    else:
        store.fail_trial(lease, study, number, rung, describe(error))

Training is exact, so a failure caused by the trial alone (a loss that becomes NaN, bad hyperparameters) would happen
again: such a trial fails at once. A failure caused by its surroundings (a preempted machine, memory used by other
processes, a crashed simulator) is retried from the last checkpoint, and the result is that of an undisturbed training.
Retries count from the last new epoch: a trial that makes progress may have any number of accidents.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..tasks.errors import (
    LAST_LINES,
    BadResume,
    DamagedState,
    Diverged,
    EnvironmentFailed,
    Hung,
    ProgramError,
    ProgramFailed,
    TaskError,
    environment_of,
    is_lack_of_memory,
)
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

FAILED = "failed"  # event of a trial that failed, retried or not
KILLED = "killed"
HUNG = "hung"
LENGTH = 16_384  # of the description of a failure


class Killed(Exception):
    """Too many processes died while they trained a trial."""


class OutOfTime(Exception):
    """A trial that trained for longer than its study allows."""


@dataclass(frozen=True)
class RetryRule:
    """Rule of the retries after one kind of failure.

    Attributes:
        times: number of retries; None without limit.
        why: the reason for people.
        pause: seconds before the first retry; doubled for each further one, up to `longest`.
        longest: seconds before any retry.
        alone: whether to retry in a cohort of one, which needs less memory and shows which trial fails.
        together: number of retries in the usual cohort before the first one alone.
        release: whether this worker gives the trial up, so that any worker may resume it.
    """

    times: int | None
    why: str
    pause: float = 0.0
    longest: float = 60.0
    alone: bool = False
    together: int = 0
    release: bool = False


RETRY_RULES: Mapping[str, RetryRule] = {
    "preempted": RetryRule(None, "the process was asked to stop; any worker resumes its saved state", release=True),
    "stale": RetryRule(None, "another process holds the trial; late work of this one does not count", release=True),
    "storage": RetryRule(None, "the database did not answer, which is not the trial's fault", pause=1.0),
    "memory": RetryRule(
        3, "the machine ran out of memory; fewer trials at once, or a later time, may help", 5.0, alone=True
    ),
    "environment": RetryRule(2, "a simulator may crash independently of the trial", pause=1.0, alone=True),
    HUNG: RetryRule(2, "a simulator may hang once; if it hangs repeatedly, that is the trial's fault", 1.0, alone=True),
    KILLED: RetryRule(
        4,
        "machines get preempted, but a trial that kills all workers probably needs too much memory",
        alone=True,
        together=1,
    ),
    "diverged": RetryRule(0, "the same hyperparameters give the same NaN again"),
    "time": RetryRule(0, "retries do not reset the training time that it has used up"),
    "input": RetryRule(0, "invalid input stays invalid"),
    "damaged": RetryRule(0, "only the user can decide to go back to an earlier checkpoint"),
    "unknown": RetryRule(1, "it may have been an accident; a second time, it is the trial's fault", alone=True),
}
_INPUT = (ValueError, TypeError, LookupError, AttributeError, ImportError, AssertionError, NotImplementedError)
_REQUEST = (BadURL, IdentityMismatch, SchemaMismatch, StudyMismatch, UnknownStudy)


def classify(error: BaseException) -> str:
    """Return the kind of a failure; BadResume has that of its cause."""
    root = [*_causes(error)][-1]
    for category, matches in _KINDS.items():
        if matches(root):
            return category
    return "unknown"


def _causes(error: BaseException) -> Iterator[BaseException]:
    ids: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in ids:
        ids.add(id(current))
        yield current
        current = current.__cause__ if isinstance(current, BadResume) else None


def is_environment(error: BaseException) -> bool:
    """Return whether an environment's code raised the error.

    Its guards, in which all of it runs, mark what leaves them (`tasks.envs.gym.surroundings`).
    """
    return isinstance(error, EnvironmentFailed) if isinstance(error, TaskError) else bool(environment_of(error))


# In this order: an error has the first kind that matches.
_KINDS: Mapping[str, Callable[[BaseException], bool]] = {
    "preempted": is_control_flow,
    "stale": lambda error: isinstance(error, LeaseLost | TaskBusy),
    "damaged": lambda error: isinstance(error, DamagedState),
    KILLED: lambda error: isinstance(error, Killed),
    HUNG: lambda error: isinstance(error, Hung),
    "diverged": lambda error: isinstance(error, Diverged | FloatingPointError),
    "time": lambda error: isinstance(error, OutOfTime),
    "memory": is_lack_of_memory,
    "environment": is_environment,
    "input": lambda error: isinstance(error, (*_REQUEST, *_INPUT, TaskError)),
    "storage": lambda error: isinstance(error, StoreError),
}


@dataclass(frozen=True)
class Decision:
    """Decision to retry a trial after a pause, release or fail it."""

    kind: str
    retry: bool
    release: bool
    alone: bool
    pause: float
    why: str


def decide(error: BaseException, tried: int = 0) -> Decision:
    """Decide about a failure after `tried` retries for failures of its kind."""
    failure_kind = classify(error)
    rule = RETRY_RULES[failure_kind]
    retry = not rule.release and (rule.times is None or tried < rule.times)
    pause = min(rule.pause * 2.0 ** min(tried, 30), rule.longest) if retry else 0.0
    alone = rule.alone and retry and tried >= rule.together
    return Decision(failure_kind, retry, rule.release, alone, pause, rule.why)


def event_data(error: BaseException, decision: Decision, epochs: int) -> dict[str, Any]:
    """Return the event data of a failure after `epochs` stored epochs."""
    return {**asdict(decision), "epochs": epochs, "report": describe(error)}


def one_line(description: str) -> str:
    """Return a failure's last line, after what its program did."""
    text, quotes, _ = description.partition(LAST_LINES)
    last = description.strip().splitlines()[-1]
    return f"{text.splitlines()[-1]}: {last}" if quotes else last


def describe(error: BaseException) -> str:
    """Return kind and traceback of a failure, shortened and without passwords.

    A divergence is described by its message, since its traceback depends on the cohort of the trial; and so is the
    failure of a program, which says nothing of the code here.
    """
    failure_kind, root = classify(error), [*_causes(error)][-1]
    if isinstance(root, Diverged | Killed | Hung | OutOfTime | ProgramFailed | ProgramError):
        return masked(f"{type(root).__name__}: {root}")
    text = masked(f"[{failure_kind}] {''.join(traceback.format_exception(root))}")
    return text if len(text) <= LENGTH else f"{text[: LENGTH // 2]}\n...\n{text[-LENGTH // 2 :]}"
