"""Policies in the store, from which warm starts begin.

A policy is stored like a task that never trains: under "policy/" and part of its digest, with one checkpoint at 0
epochs. A task that starts from it is a branch of it, whose first checkpoint holds the policy, so the policy's source
may be deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...tasks.checkpoint.retention import Keep
from ...tasks.checkpoint.state import Packed, pack, unpack
from ...tasks.checkpoint.storage import POLICY_PREFIX, Saved, Write, policy_uid
from ...tasks.registry import load
from ...tasks.task import Task
from ...tasks.warm_start import WarmStart, is_policy, policy_in
from ..errors import StoreError, TaskBusy
from .branches import Start
from .retention import INIT, last_mode
from .store import Store

STORED, PLAYER = "policy", "player"  # events with the source of a policy, from which tasks start or which plays
POLL = 0.05  # seconds between attempts while another process stores the same policy
FILES = (".npz", ".npy", ".safetensors", ".zip")


class NoPolicy(StoreError, ValueError):
    """The source of a policy does not exist."""


def put_policy(store: Store, task: Task, name: str) -> str:
    """Store the initial policy of a task; return its digest.

    Storing the same policy again changes nothing.
    """
    assert task.load_report is not None
    packed = pack(task.beginning())
    _put(store, packed, STORED, {"source": name, "taken": task.load_report.to_json()})
    return packed.digest


def put_player(store: Store, packed: Packed, name: str) -> str:
    """Store a policy that plays without learning; return its uid.

    Args:
        store: the store.
        packed: the policy, from `NamedPolicy`.
        name: where it came from, for people.
    """
    return _put(store, packed, PLAYER, {"source": name})


def _put(store: Store, packed: Packed, event_kind: str, note: dict[str, Any]) -> str:
    """Store a policy, with an event that says where it came from."""
    uid = policy_uid(packed.digest)
    while not any(
        event.kind == event_kind and event.data.get("source") == note["source"] for event in store.events(uid)
    ):
        try:
            with store.open(uid, {"policy": packed.digest}) as lease:
                manifest, digest = (None, None) if store.checkpoints(uid) else (packed.manifest, packed.digest)
                events, keep = [(event_kind, note)], Keep(latest=None)
                store.save([Write(lease, 0, manifest, packed.blobs, digest, events=events, keep=keep)])
            break
        except TaskBusy:  # another process is storing the same policy; wait, as nothing can start from it before
            time.sleep(POLL)
    return uid


def start_of(store: Store, digest: str) -> Start | None:
    """Return a stored policy as an initial state, None if not stored."""
    uid = policy_uid(digest)
    return Start(uid, 0, digest) if any(row.digest == digest for row in store.checkpoints(uid)) else None


def load_policy(store: Store, uid: str, start: Start) -> Mapping[str, Any]:
    """Return the policy from which a task starts.

    It is read from the task's own first checkpoint, or from the stored policy.

    Raises:
        NoPolicy: it is no longer stored.
    """
    for holder in (uid, start.uid):
        for row in store.checkpoints(holder):
            if row.digest == start.digest:
                saved = store.load(holder, row.epochs, start.digest)
                if saved is not None and is_policy(tree := unpack(saved.manifest, saved.fetch)):
                    return policy_in(tree)
    raise NoPolicy(
        f"task {uid} starts from the policy {start.digest[:12]}, which is not stored any more; import the "
        "task again, or restore the database from a copy"
    )


def find(store: Store, text: str, whole: Any, directory: Path) -> WarmStart:
    """Return the warm start of ``UID``, ``UID@EPOCH``, ``UID@best`` or a file.

    Args:
        store: store with the tasks.
        text: the source.
        whole: completes an abbreviated uid.
        directory: where a relative path begins.

    Raises:
        NoPolicy: the source does not exist; the message lists the checkpoints that do.
    """
    path = directory / text
    if path.suffix in FILES:
        if not path.is_file():
            raise NoPolicy(f"a warm start needs its source, but there is no file {text}")
        return WarmStart(path, name=text)
    if path.suffix or path.exists():
        raise NoPolicy(f"a policy is a task (UID, UID@EPOCH, UID@best) or a file ({', '.join(FILES)}), but got {text}")
    uid, saved = checkpoint_of(store, text, whole)
    return WarmStart(saved, name=f"{uid}@{saved.epochs}")


def checkpoint_of(store: Store, text: str, whole: Any) -> tuple[str, Saved]:
    """Return the uid and checkpoint of ``UID``, ``UID@EPOCH`` or ``UID@best``.

    Raises:
        NoPolicy: the checkpoint does not exist.
    """
    short, _, at = text.partition("@")
    uid = whole(store, short)
    kept = [row.epochs for row in store.checkpoints(uid) if not row.within_epoch]
    if at == "best":
        keep = _ranking_of(store, uid)
        ranked = keep.ranked({epoch: row for epoch, row in store.metrics(uid) if epoch in kept})
        if not ranked:
            extreme = "lowest" if keep.minimize else "highest"
            raise NoPolicy(
                f"the best checkpoint is the one with the {extreme} {keep.metric}, but none of task {uid} has one; "
                "train it with --snapshots best"
            )
        epochs: int | None = ranked[0]
    elif at and not at.isdecimal():
        raise NoPolicy(f"a checkpoint is named UID, UID@EPOCH or UID@best, but got {text!r}")
    else:
        epochs = int(at) if at else None
    saved = store.load(uid, epochs)
    if saved is None:
        epochs_kept = ", ".join(map(str, kept)) or "none"
        raise NoPolicy(
            f"a checkpoint is taken from those that are kept, but task {uid} has none"
            f"{f' at epoch {epochs}' if epochs is not None else ''}; those that are: {epochs_kept}"
        )
    return uid, saved


def _ranking_of(store: Store, uid: str) -> Keep:
    """Return the rule by which a task's checkpoints rank.

    Without `snapshots` that is by its objective.
    """
    mode = last_mode([event.data for event in store.events(uid) if event.kind == INIT])
    [row] = store.tasks([uid])
    if mode is not None or not row.identity or "task" not in row.identity:
        return mode or Keep()
    learner = load(row.identity["task"]).learner
    return Keep(metric=learner.objective, minimize=learner.direction == "minimize")


def begun(store: Store, text: str | None, demonstrations: str | None = None) -> list[str]:
    """Return digests of stored policies from a source, newest last.

    With ``demonstrations``, only policies combined with these demonstrations.
    """
    parts = [] if demonstrations is None else [re.escape(demonstrations)]
    if text is not None:
        short, _, at = text.partition("@")
        of_task = rf"{re.escape(short)}[0-9a-f]*@{at if at.isdecimal() else '[0-9]+'}"
        parts.insert(0, re.escape(text) if Path(text).suffix in FILES else of_task)
    pattern = re.compile(" with ".join(parts))
    digests = []
    for row in store.tasks():
        if row.uid.startswith(POLICY_PREFIX) and row.identity:
            names = [event.data.get("source", "") for event in store.events(row.uid) if event.kind == STORED]
            if any(pattern.fullmatch(name) for name in names):
                digests.append(str(row.identity["policy"]))
    return digests
