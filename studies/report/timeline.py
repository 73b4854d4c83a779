"""Timeline of a study: which process trained when, and what went wrong."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..engine.json_views import Json
from ..failures import FAILED
from ..storage.locks.fencing import TAKEOVER
from ..storage.locks.owner import Owner
from ..storage.rows import Event, Trial
from ..storage.tasks import TAKEN

TOGETHER = 0.5  # seconds between the claims of one cohort


def timeline(
    study: str, trials: Sequence[Trial], events: Sequence[Event], saved: Mapping[tuple[str, int], float]
) -> Json | None:
    """Return the work of each process, in seconds since the first event.

    A lease that was released leaves no row: its work ends with the last checkpoint under it, or else when its process
    takes up other work or another process this task.

    Args:
        study: its name.
        trials: its trials.
        events: of their tasks, the oldest first.
        saved: when each lease stored its last checkpoint, by uid and fencing token.

    Returns:
        {seconds, workers [{name, work [{from, to, trials [numbers]}]}], marks [{worker, at, kind, trial}]}, or None.
    """
    taken = [
        event  # of a task that several studies share, only what this one asked for
        for event in events
        if event.kind in TAKEN and "owner" in event.data and event.data.get("study", study) == study
    ]
    if not taken:
        return None
    numbers = {trial.uid: trial.number for trial in trials}
    finished = {trial.uid: trial.finished for trial in trials if trial.finished is not None}
    names = _names([event.data["owner"] for event in taken])
    begin = min(event.created for event in taken)
    last = max([*(event.created for event in taken), *finished.values()])
    work: dict[str, list[Json]] = {name: [] for name in names.values()}
    marks = []
    of_task: dict[str, list[float]] = {}
    of_owner: dict[str, list[float]] = {}
    for event in taken:
        of_task.setdefault(event.uid, []).append(event.created)
        of_owner.setdefault(event.data["owner"], []).append(event.created)
    for times in (*of_task.values(), *of_owner.values()):
        times.sort()
    for event in taken:
        owner, uid, at = event.data["owner"], event.uid, event.created
        stored = saved.get((uid, event.data.get("token", -1)), at)
        ends = _first_after(of_task[uid], at) or [finished.get(uid, last)]
        ends += _first_after(of_owner[owner], at + TOGETHER)
        end = stored if stored > at else min(ends)
        row = work[names[owner]]
        if row and at - begin - row[-1]["from"] <= TOGETHER and numbers[uid] not in row[-1]["trials"]:
            row[-1]["trials"].append(numbers[uid])
            row[-1]["to"] = max(row[-1]["to"], end - begin)
        else:
            row.append({"from": at - begin, "to": end - begin, "trials": [numbers[uid]]})
        if event.kind == TAKEOVER:
            marks.append({"worker": names[owner], "at": at - begin, "kind": TAKEOVER, "trial": numbers[uid]})
    holder: dict[str, str] = {}
    for event in events:
        if event.kind in TAKEN:
            holder[event.uid] = names.get(event.data.get("owner", ""), "")
        elif event.kind == FAILED and holder.get(event.uid) and event.created <= last:
            kind = f"{event.data.get('kind')} ({'retried' if event.data.get('retry') else 'for good'})"
            trial = numbers[event.uid]
            marks.append({"worker": holder[event.uid], "at": event.created - begin, "kind": kind, "trial": trial})
    for spans in work.values():
        for before, after in pairwise(spans):  # a process trains one cohort at a time
            before["to"] = min(before["to"], after["from"])
    workers = [{"name": name, "work": spans} for name, spans in work.items()]
    return {"seconds": last - begin, "workers": workers, "marks": marks}


def _first_after(times: Sequence[float], at: float) -> list[float]:
    """Return the first of sorted times after a moment, if any."""
    place = bisect_right(times, at)
    return [*times[place : place + 1]]


def _names(owners: Sequence[str]) -> dict[str, str]:
    """Return the processes' names, in the order in which they came."""
    return {owner: f"{Owner.parse(owner).pid} on {Owner.parse(owner).host}" for owner in dict.fromkeys(owners)}
