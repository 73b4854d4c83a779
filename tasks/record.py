"""The record of a task: its history, events, lease and pending writes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

import torch

from .checkpoint.retention import RETURN, Keep, keep_of
from .checkpoint.state import Packed, Tree, pack
from .checkpoint.storage import Lease, Metrics, Saved, Storage, Write, policy_uid
from .envs.base.spec import EnvSpec
from .errors import ADVICE, INEXACT, PLAYED, TaskError, other_episodes
from .identity import TaskIdentity, uid_of
from .runtime.fingerprint import changes, fingerprint
from .warm_start import LoadReport

REFILLED = "the replay buffer, which the checkpoint leaves out, is filled again"
PORTABLE = ("history", "written", "events", "resumed", "before", "inexact", "played", "labelled")


class TaskRecord:
    """History and events of one task, and its link to a storage.

    Attributes:
        storage: keeps checkpoints, metrics and events; None for a task that is not stored.
        keep: retention rule for checkpoints; None leaves it to the storage.
        snapshots: the rule as it was given.
        ranking: rule by which checkpoints rank without one.
        saves: whether states are stored at all.
        lease: right to write; None before `take_lease` and after `release`.
        history: (epoch, metrics) of every epoch done.
        written: number of history rows that are stored.
        events: events that are not stored yet.
        resumed: whether the storage had a checkpoint.
        before: versions and digests of code with which the task was started last; empty for a new task.
        inexact: changes of versions or hardware since that checkpoint was written.
        played: the environment, and the digest of the episodes that its self-test played, where it was trained last.
        labelled: reasons why it is not exact, and advice, that an event has stored already.
        state: learner state that no learner holds right now: just read from the storage, or of a finished task.
        training: whether `fit` is training the task right now.
        replaced: whether a newer task object of this process has taken the lease.
        thread: thread that created the task.
    """

    def __init__(
        self,
        storage: Storage | None,
        snapshots: str | int | Keep | None,
        objective: str = RETURN,
        direction: str = "maximize",
    ):
        self.storage, self.snapshots = storage, snapshots
        self.ranking = Keep(metric=objective, minimize=direction == "minimize")
        self.keep = None if snapshots is None else keep_of(snapshots, objective, self.ranking.minimize)
        self.saves = snapshots is None or self.keep is not None
        self.lease: Lease | None = None
        self.history: list[tuple[int, Metrics]] = []
        self.written = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.resumed = False
        self.before: Mapping[str, Any] = {}
        self.inexact: list[str] = []
        self.played: Mapping[str, str] = {}
        self.labelled: set[str] = set()
        self.state: Tree | None = None
        self.training = self.replaced = False
        self.thread = threading.current_thread()

    def portable(self) -> dict[str, Any]:
        """Return copies of what another process gets with the task."""
        return {name: copy(getattr(self, name)) for name in PORTABLE}

    def take_lease(self, uid: str, identity: TaskIdentity) -> Lease | None:
        """Take the lease of a task, if there is a storage.

        The lease is released when this object is garbage-collected, if not before.
        """
        if self.storage is None:
            return None
        lease = self.lease = self.storage.open(uid, identity.to_json())
        weakref.finalize(self, lease.release)
        if lease.give_up is None:
            lease.give_up = _giving_up(weakref.ref(self))
        return lease

    def give_up(self) -> bool:
        """Release the lease to a newer task object unless this is busy.

        A task is busy if it trains, or if another living thread created it and may be about to train it.

        Returns:
            Whether the lease was released.
        """
        if self.training or (self.thread is not threading.current_thread() and self.thread.is_alive()):
            return False
        self.release()
        self.replaced = True
        return True

    def begin(self, policy: Packed, report: LoadReport, source: str) -> None:
        """Store a warm start's policy as the first checkpoint, and its source."""
        assert self.storage is not None
        assert self.lease is not None
        note = {"parent": policy_uid(policy.digest), "epochs": 0, "state": policy.digest, "source": source}
        events = [("branch", {**note, "taken": report.to_json()})]
        if self.saves:
            self.storage.save([Write(self.lease, 0, policy.manifest, policy.blobs, policy.digest, events=events)])
        else:
            self.events += events

    @property
    def keeps_initial(self) -> bool:
        """True if the untrained agent has yet to be stored."""
        return self.lease is not None and self.keep is not None and self.keep.initial and not self.resumed

    def note_init(
        self,
        device: torch.device,
        code: Mapping[str, str],
        saved: Saved | None,
        refilled: bool = False,
        compiled: bool = True,
    ) -> None:
        """Note versions, hardware and code at the start or resume.

        Args:
            device: device of the task.
            code: digests of the user's code that the task runs.
            saved: checkpoint that the task resumes from, None for a fresh start.
            refilled: whether the checkpoint lacks the replay buffer.
            compiled: whether kernels compute something of it.
        """
        now = {**fingerprint(device, compiled), **code}
        if self.keep is not None or not self.saves:
            now["snapshots"] = asdict(self.keep) if self.keep else "no"
        if saved is None:
            self.events.append(("init", now))
            return
        self.resumed, self.before, self.played = True, saved.fingerprint, saved.played
        self.inexact = changes(saved.fingerprint, now) + ([REFILLED] if refilled else [])
        self.events.append(("init", {"epochs": saved.epochs, "digest": saved.digest, "inexact": self.inexact, **now}))
        self.label(saved.epochs, [f"not bit-exact since {change}" for change in self.inexact])

    def note_played(self, env: EnvSpec, digest: str, epochs: int) -> None:
        """Note the digest of the self-test's episodes, and label a change."""
        before, now = self.played, {"env": env.canonical, "digest": digest}
        if self.lease is None or not digest or before == now:
            return
        self.played = now
        self.events.append((PLAYED, now))
        if before:
            change = other_episodes(env.id, "where it was trained before")
            self.inexact.append(change)
            self.label(epochs, [f"not bit-exact since {change}"])

    def label(self, epochs: int, inexact: Sequence[str], advice: Sequence[str] = ()) -> None:
        """Note new reasons for not being exact, and advice, as events."""
        for category, texts in ((INEXACT, inexact), (ADVICE, advice)):
            if new := [text for text in texts if text not in self.labelled]:
                self.events.append((category, {"epochs": epochs, category: new}))
                self.labelled.update(new)

    def resume(self, saved: Saved, learner_state: Tree) -> None:
        """Adopt the history of a checkpoint, and hold its state."""
        self.state = learner_state
        self.history, self.written = list(saved.metrics), len(saved.metrics)

    def branch(self, parent: Mapping[str, Any], epochs: int, uid: str, identity: TaskIdentity) -> None:
        """Start the record of a branch, with a lease of its own."""
        note = {"from": dict(parent), "parent": uid_of(parent), "epochs": epochs, "state": identity.start, "uid": uid}
        self.events.append(("branch", note))
        self.release()
        self.history, self.written = [], 0
        self.take_lease(uid, identity)
        self.events += [(PLAYED, dict(self.played))] if self.played else []

    def truncate(self, epochs: int) -> None:
        """Drop the history after an epoch."""
        self.history = [row for row in self.history if row[0] <= epochs]
        self.written = min(self.written, len(self.history))

    def best(self, uid: str, subject: str) -> Saved:
        """Return the kept checkpoint with the best value of the rule's metric.

        Without a rule, that is the objective.

        Raises:
            TaskError: no kept checkpoint has the metric.
        """
        keep = self.keep or self.ranking
        for epochs in keep.ranked(dict(self.history)) if self.storage is not None else ():
            saved = self.storage.load(uid, epochs)  # type: ignore[union-attr]
            if saved is not None:
                return saved
        raise TaskError(
            f"{subject} must have a checkpoint with the metric {keep.metric!r} to say which is the best, but has none; "
            'give it a storage and snapshots="best" before it trains'
        )

    def check_lease(self, subject: str) -> None:
        """Raise TaskError unless the task may train and write."""
        if self.replaced:
            raise TaskError(
                f"{subject} was created again in this process, and the newer task holds the lease; use that one, or "
                "create another, which resumes from the last checkpoint"
            )
        if self.storage is not None and self.lease is None:
            raise TaskError(
                f"{subject} has released its lease, so another process may be training it. Build a new task with the "
                "same hyperparameters: it resumes from the last checkpoint"
            )

    def release(self) -> None:
        """Release the lease; the checkpoints stay."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None

    def add_metrics(self, metrics: Metrics) -> None:
        """Add metrics to those of the last epoch, in the storage, too."""
        epochs, row = self.history[-1]
        self.history[-1] = epochs, {**row, **metrics}
        self.written = min(self.written, len(self.history) - 1)
        if self.lease is not None and self.storage is not None:
            self.save(self.pending_write(epochs, None))

    def pending_write(self, epochs: int, state: Tree | None, refillable: Collection[str] = ()) -> Write:
        """Return everything to store since the last write; `note_written` follows it.

        Args:
            epochs: epochs done.
            state: state to store; None stores metrics and events only.
            refillable: parts to drop from the state if the rule keeps no replay buffers.
        """
        assert self.lease is not None
        if state is not None and self.keep is not None and not self.keep.replay:
            state = {**state, "learner": {k: part for k, part in state["learner"].items() if k not in refillable}}
        packed = None if state is None else pack(state)
        events, new = [*self.events], self.history[self.written :]
        if packed is None:
            return Write(self.lease, epochs, metrics=new, events=events, keep=self.keep)
        return Write(self.lease, epochs, packed.manifest, packed.blobs, packed.digest, new, events, self.keep)

    def save(self, write: Write) -> None:
        """Store a pending write by itself."""
        assert self.storage is not None
        self.storage.save([write])
        self.note_written(write)

    def note_written(self, write: Write) -> None:
        """Note that a write is stored; one that failed is made again."""
        self.events = self.events[len(write.events) :]
        self.written = len(self.history)


def _giving_up(record: weakref.ref[TaskRecord]) -> Callable[[], bool]:
    """Return a `give_up` that does not keep the record alive."""

    def give_up() -> bool:
        holder = record()
        return holder is None or holder.give_up()

    return give_up
