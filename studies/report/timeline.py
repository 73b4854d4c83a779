"""Timeline of a study: each process's work, takeovers and failures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..failures import FAILED
from ..storage.locks.fencing import TAKEN, TAKEOVER
from ..storage.locks.owner import Owner
from ..storage.rows import Event, Trial
from .content import LostView, MarkView, ProcessView, TimelineView, WorkView

TOGETHER = 0.5  # longest time in seconds between the claims of one cohort


def timeline(
    trials: Sequence[Trial], events: Sequence[Event], saved: Mapping[tuple[str, int], float], epochs: Mapping[str, int]
) -> TimelineView | None:
    """Return the work of each process, in seconds since the first event.

    The release of a lease is not recorded. Work under a lease therefore ends with its last checkpoint; without one, it
    ends when the process claims something else, another process claims the task, or the trial ends. If a lease was
    taken over, the work after its last checkpoint was lost and is trained again.

    Args:
        trials: trials of the study.
        events: events of their tasks in this study, oldest first.
        saved: time at which each lease stored its last checkpoint, by uid and fencing token.
        epochs: epochs that each trial has reached, by uid.

    Returns:
        The timeline; None if nothing was trained.
    """
    claims = [event for event in events if event.kind in TAKEN and event.owner]
    if not claims:
        return None
    numbers = {trial.uid: trial.configuration for trial in trials}
    finished = {trial.uid: trial.finished for trial in trials if trial.finished is not None}
    names = _names([event.owner for event in claims])
    begin = min(event.created for event in claims)
    last = max([*(event.created for event in claims), *finished.values()])
    work: dict[str, list[_Span]] = {name: [] for name in names.values()}
    marks, leases = [], _leases(claims, saved, finished, last)
    for lease in leases:
        row, at, end = work[names[lease.owner]], lease.start - begin, lease.end - begin
        if row and at - row[-1].start <= TOGETHER and lease.uid not in row[-1].uids:
            row[-1].add(lease.uid, numbers[lease.uid], end)
        else:
            row.append(_Span(at, end, {lease.uid}, [numbers[lease.uid]]))
        if lease.event_kind == TAKEOVER:
            marks.append(MarkView(worker=names[lease.owner], at=at, kind=TAKEOVER, trial=numbers[lease.uid]))
    holder: dict[str, str] = {}
    for event in events:
        if event.kind in TAKEN:
            holder[event.uid] = names.get(event.owner, "")
        elif event.kind == FAILED and holder.get(event.uid) and event.created <= last:
            text = f"{event.data.get('kind')} ({'retried' if event.data.get('retry') else 'for good'})"
            at, trial = event.created - begin, numbers[event.uid]
            marks.append(MarkView(worker=holder[event.uid], at=at, kind=text, trial=trial))
    for spans in work.values():
        for before, after in pairwise(spans):  # a process trains one cohort at a time
            before.end = min(before.end, after.start)
    return TimelineView(
        seconds=last - begin,
        workers=[
            ProcessView(name=name, work=[WorkView(from_=span.start, to=span.end, trials=span.trials) for span in spans])
            for name, spans in work.items()
        ],
        marks=marks,
        lost=[
            LostView(
                worker=names[lease.owner],
                from_=lease.saved - begin,
                to=lease.end - begin,
                trial=numbers[lease.uid],
                epochs=(lease.end - lease.saved) * _pace(leases, epochs, lease.uid),
            )
            for lease in leases
            if lease.saved < lease.end
        ],
    )


@dataclass
class _Span:
    """Work of a process on a cohort; seconds since the first event."""

    start: float
    end: float
    uids: set[str]
    trials: list[int]

    def add(self, uid: str, trial: int, end: float) -> None:
        """Add a task of the cohort."""
        self.uids.add(uid)
        self.end = max(self.end, end)
        if trial not in self.trials:  # unlike another seed of it
            self.trials.append(trial)


@dataclass(frozen=True)
class _Lease:
    """Work of one process on one task; work after `saved` was lost."""

    owner: str
    uid: str
    event_kind: str
    epochs: int
    start: float
    saved: float
    end: float


def _leases(
    claims: Sequence[Event], saved: Mapping[tuple[str, int], float], finished: Mapping[str, float], last: float
) -> list[_Lease]:
    of_task: dict[str, list[Event]] = {}
    of_owner: dict[str, list[float]] = {}
    for event in claims:
        of_task.setdefault(event.uid, []).append(event)
        of_owner.setdefault(event.owner, []).append(event.created)
    for times in of_owner.values():
        times.sort()
    following = {id(event): after for events in of_task.values() for event, after in pairwise(events)}
    losses = []
    for event in claims:
        owner, uid, at, token = event.owner, event.uid, event.created, event.token
        after = following.get(id(event))  # of two databases' leases, tokens tell no order
        ends = [after.created if after else finished.get(uid, last), *_first_after(of_owner[owner], at + TOGETHER)]
        stored = saved.get((uid, token), at)
        end = kept = stored if stored > at else min(ends)
        if after and after.kind == TAKEOVER and after.token == token + 1 and "lost" in after.data:
            kept = max(at, after.data["saved"])
            end = kept + after.data["lost"]
        losses.append(_Lease(owner, uid, event.kind, event.data.get("epochs", 0), at, kept, end))
    return losses


def _pace(leases: Sequence[_Lease], epochs: Mapping[str, int], uid: str) -> float:
    """Return the epochs per second of a task, or its study."""
    for candidates in ([lease for lease in leases if lease.uid == uid], leases):
        starts: dict[str, int] = {}
        for lease in candidates:
            starts.setdefault(lease.uid, lease.epochs)
        gained = sum(epochs.get(task, start) - start for task, start in starts.items())
        seconds = sum(lease.saved - lease.start for lease in candidates)
        if gained > 0 and seconds > 0:
            return gained / seconds
    return 0.0


def _first_after(times: Sequence[float], at: float) -> list[float]:
    """Return the first of the sorted times after `at`, if any."""
    index = bisect_right(times, at)
    return [*times[index : index + 1]]


def _names(owners: Sequence[str]) -> dict[str, str]:
    """Return the processes' names by owner, in order of first appearance."""
    return {owner: f"{Owner.parse(owner).pid} on {Owner.parse(owner).host}" for owner in dict.fromkeys(owners)}
