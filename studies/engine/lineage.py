"""Where a task came from: the tasks that it branched from, and its training anew from the root.

A result is a function of the lineage alone, so a state that nobody kept, or that nobody trusts, can be trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...spaces import unflatten
from ...tasks import load
from ...tasks.checkpoint.state import pack
from ...tasks.checkpoint.storage import POLICY, Storage, Write
from ...tasks.cohort import EpochEvent
from ...tasks.signals.demonstrations import apart
from ...tasks.task import Task
from ...tasks.warm_start import WarmStart
from ..errors import StoreError
from ..storage.branches import BRANCH, Start
from ..storage.locks.leases import StoreLease
from ..storage.store import Store
from ..storage.stored_policies import load_policy, start_of


class LineageError(StoreError):
    """A lineage is not what the store says, or the store does not say it."""


class NotEqual(LineageError):
    """A state that was trained again is not the one on record."""


@dataclass(frozen=True)
class Link:
    """A task of a lineage; ``start`` is None for the root, unless that has a ``policy`` to start from."""

    uid: str
    identity: Mapping[str, Any]
    start: Start | None
    policy: Mapping[str, Any] | None = None


def lineage(store: Store, uid: str) -> list[Link]:
    """The tasks from the root to this one."""
    links: list[Link] = []
    while uid not in [link.uid for link in links]:
        rows = store.tasks([uid])
        if not rows or rows[0].identity is None:
            raise LineageError(
                f"a lineage leads to its root through tasks of {store.url}, but {uid} is none of them; "
                "import what is missing, or look where the study was run"
            )
        identity = rows[0].identity
        start = _start(store, uid, identity)
        policy = load_policy(store, uid, start) if start is not None and start.uid.startswith(POLICY) else None
        links.insert(0, Link(uid, identity, start, policy))
        if start is None or policy is not None:
            return links
        uid = start.uid
    raise LineageError(f"a lineage leads to a root, but that of task {uid} leads back to itself")


def _start(store: Store, uid: str, identity: Mapping[str, Any]) -> Start | None:
    if "start" not in identity:
        return None
    for event in store.events(uid):
        if event.kind == BRANCH and event.data.get("state") == identity["start"]:
            return Start(event.data["parent"], event.data["epochs"], event.data["state"])
    raise LineageError(
        f"a branch's events say what it starts from, but those of task {uid} do not, and no policy "
        f"{identity['start'][:12]} is stored; give --warm-start again, or import it"
    )


def task_of(
    identity: Mapping[str, Any], storage: Storage | None = None, policy: Mapping[str, Any] | None = None
) -> Task:
    """The task with this identity, initialized; StoreError if another version of it is installed.

    `policy` is what it begins with: a warm start's networks, and what is shown to it.
    """
    algorithm = load(identity["task"])
    if algorithm.version != identity["version"]:
        raise LineageError(
            f"a task goes on with the version that it began with, {identity['task']} {identity['version']}, but "
            f"{algorithm.version} is installed; use the Rekindle that made it"
        )
    networks, shown = apart(policy or {})
    warm = WarmStart(networks, partial=True) if networks else None
    task = algorithm(identity["env"], seed=identity["seed"], storage=storage, warm_start=warm, demonstrations=shown)
    return task.init(start=identity.get("start"), **unflatten(identity["hyperparameters"]))


def retrain(
    links: Sequence[Link],
    epochs: int,
    context: Callable[[EpochEvent], None] | None = None,
    passed: Callable[[Link, int, str], None] | None = None,
) -> Task:
    """Trains a lineage from its root until `epochs` epochs in all, without any stored state.

    `passed` is called with each task, its epochs and digest, once it has trained all of its part. NotEqual if a state
    on the way is not the one on record: another kind of machine or other versions of libraries, as a rule.
    """
    task = task_of(links[0].identity, policy=links[0].policy)
    for link, following in zip(links, [*links[1:], None], strict=True):
        start = following.start if following else None
        task.fit(start.epochs if start else epochs, None if start else context)
        if passed:
            passed(link, task.epochs, task.digest)
        if following is None or start is None:
            break
        state = task.state_dict()
        found = pack(state).digest
        if found != start.digest:
            raise NotEqual(
                f"after {start.epochs} epochs task {link.uid} must have the digest {start.digest[:12]}, from which "
                f"{following.uid} branches, but trained again it has {found[:12]}; on one kind of machine, with the "
                "same versions of libraries, they are equal"
            )
        task = task_of(following.identity)
        task.load_state_dict(state, perturb=True)
    return task


def bring_start(store: Store, lease: StoreLease) -> None:
    """Makes sure that a branch has the state that it starts from: by its row, or by training it anew."""
    if store.checkpoints(lease.uid):
        return
    [row] = store.tasks([lease.uid])
    if row.identity and (policy := start_of(store, row.identity["start"])):
        store.branch(lease.uid, row.identity, policy)
        return
    *links, last = lineage(store, lease.uid)
    assert last.start is not None
    if store.branch(last.uid, last.identity, last.start):
        return
    packed = pack(retrain(links, last.start.epochs).state_dict())
    if packed.digest != last.start.digest:
        raise NotEqual(
            f"task {last.uid} starts from the state {last.start.digest[:12]} of {last.start.uid}, which is not kept, "
            f"and trained again it is {packed.digest[:12]}: another machine or other libraries than it began with"
        )
    store.save([Write(lease, last.start.epochs, packed.manifest, packed.blobs, packed.digest)])
