"""Lineages: the tasks that a task branched from, and their retraining.

A result depends on nothing but the lineage, so a state that was not kept, or is not trusted, can be trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tasks.checkpoint.state import pack, unpack
from ...tasks.checkpoint.storage import POLICY_PREFIX, Saved, Write
from ...tasks.registry import task_of
from ...tasks.runtime import EVALUATION_EPISODES
from ...tasks.runtime.observers import EpochEvent
from ...tasks.signals.demonstrations import split_start
from ...tasks.task import Task
from ...tasks.warm_start import WarmStart, is_policy
from ..errors import StoreError
from ..storage.branches import BRANCH, Start
from ..storage.locks.leases import StoreLease
from ..storage.store import Store
from ..storage.stored_policies import NoPolicy, checkpoint_of, load_policy, start_of


class LineageError(StoreError):
    """A lineage is incomplete in the store, or contradicts it."""


class NotEqual(LineageError):
    """A state that was trained again differs from the recorded one."""


@dataclass(frozen=True)
class LineageTask:
    """A task of a lineage, with its starting state or policy.

    Attributes:
        uid: uid of the task.
        identity: identity of the task.
        start: state or policy that it starts from; None at a fresh root.
        policy: tensors of that policy, at a root with a warm start or demonstrations.
    """

    uid: str
    identity: Mapping[str, Any]
    start: Start | None
    policy: Mapping[str, Any] | None = None


def lineage(store: Store, uid: str) -> list[LineageTask]:
    """Return the tasks from the root to this one.

    Raises:
        LineageError: a task of the lineage is missing, or the lineage is circular.
    """
    links: list[LineageTask] = []
    while uid not in [link.uid for link in links]:
        rows = store.tasks([uid])
        if not rows or rows[0].identity is None:
            raise LineageError(
                f"a lineage leads to its root through tasks of {store.url}, but {uid} is none of them; "
                "import what is missing, or look where the study was run"
            )
        identity = rows[0].identity
        start = _start(store, uid, identity)
        policy = load_policy(store, uid, start) if start is not None and start.uid.startswith(POLICY_PREFIX) else None
        links.insert(0, LineageTask(uid, identity, start, policy))
        if start is None or policy is not None:
            return links
        uid = start.uid
    raise LineageError(f"a lineage leads to a root, but that of task {uid} leads back to itself")


def _start(store: Store, uid: str, identity: Mapping[str, Any]) -> Start | None:
    if (digest := identity.get("start")) is None:
        return None
    for event in store.events(uid):
        if event.kind == BRANCH and event.data.get("state") == digest:
            return Start.of(event.data)
    raise LineageError(
        f"a branch's events say what it starts from, but those of task {uid} do not, and no policy "
        f"{digest[:12]} is stored; give --warm-start again, or import it"
    )


def restore(saved: Saved, device: str = "cpu") -> Task:
    """Return the task of a checkpoint, in that state, without a storage."""
    state = unpack(saved.manifest, saved.fetch)
    task: Task = task_of(state["identity"], device=device)
    task.load_state_dict(state)
    return task


def task_at(store: Store, text: str, device: str = "cpu") -> Task:
    """Return the task in the state of a checkpoint, without a storage.

    Args:
        store: store with the task.
        text: ``UID``, ``UID@EPOCH`` or ``UID@best``; ``UID@0`` need not be stored.
        device: see `Task`.

    Raises:
        ValueError: the checkpoint does not exist, or is only a policy.
    """
    short, _, at = text.partition("@")
    if at == "0":
        return retrain(lineage(store, store.uid(short))[:1], 0, device=device)
    uid, saved = checkpoint_of(store, text, Store.uid)
    if uid.startswith(POLICY_PREFIX):
        raise NoPolicy(
            f"a checkpoint belongs to a task, with an environment to act in, but {uid} is only a policy; "
            "rekindle train --warm-start takes it"
        )
    if is_policy(unpack(saved.manifest, saved.fetch)):  # a warm start that has not been trained yet
        return retrain(lineage(store, uid), 0, device=device)
    return restore(saved, device)


def retrain(
    links: Sequence[LineageTask],
    epochs: int,
    context: Callable[[EpochEvent], None] | None = None,
    at_task_end: Callable[[LineageTask, int, str], None] | None = None,
    device: str = "cpu",
    eval_episodes: int = EVALUATION_EPISODES,
) -> Task:
    """Train a lineage from its root, using no stored state.

    Args:
        links: the lineage.
        epochs: total epochs of the last task.
        context: function called at the end of each epoch of the last task.
        at_task_end: function called with each task, its epochs and its digest, once it is trained.
        device: see `Task`.
        eval_episodes: see `Task`.

    Raises:
        NotEqual: an intermediate state differs from the recorded one, usually because the machine or the library
            versions differ.
    """
    networks, demonstrations = split_start(links[0].policy or {})
    warm = WarmStart(networks, partial=True) if networks else None
    how: dict[str, Any] = {"device": device, "eval_episodes": eval_episodes}
    task: Task = task_of(links[0].identity, warm_start=warm, demonstrations=demonstrations, **how)
    for link, following in zip(links, [*links[1:], None], strict=True):
        start = following.start if following else None
        task.fit(start.epochs if start else epochs, None if start else context)
        if at_task_end:
            at_task_end(link, task.epochs, task.digest)
        if following is None or start is None:
            break
        state = task.state_dict()
        digest = pack(state).digest
        if digest != start.digest:
            raise NotEqual(
                f"after {start.epochs} epochs task {link.uid} must have the digest {start.digest[:12]}, from which "
                f"{following.uid} branches, but trained again it has {digest[:12]}; on one kind of machine, with the "
                "same versions of libraries, they are equal"
            )
        task = task_of(following.identity, **how)
        task.load_state_dict(state, perturb=True)
    return task


def bring_start(store: Store, lease: StoreLease, device: str = "cpu") -> None:
    """Provide a branch's first state, from storage or by training its lineage.

    Raises:
        NotEqual: the state that was trained again differs from the recorded one.
    """
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
    packed = pack(retrain(links, last.start.epochs, device=device).state_dict())
    if packed.digest != last.start.digest:
        raise NotEqual(
            f"task {last.uid} starts from the state {last.start.digest[:12]} of {last.start.uid}, which is not kept, "
            f"and trained again it is {packed.digest[:12]}: another machine or other libraries than it started with"
        )
    store.save([Write(lease, last.start.epochs, packed.manifest, packed.blobs, packed.digest)])
