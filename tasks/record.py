"""How a task is kept: its lease on the storage, what it finds there, and what it writes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Self

from .checkpoint.retention import Keep, snapshots
from .checkpoint.state import Packed, pack, settled, unpack
from .checkpoint.storage import Lease, Metrics, Saved, Storage, Write, policy_uid
from .errors import TaskError
from .identity import EnvLike, uid_of
from .runtime.fingerprint import changes, fingerprint
from .runtime.guard import BadResumeGuard
from .task_state import Seat, Stateful
from .warm_start import adopt, is_policy, policy_in


class Kept(Stateful):
    """A task with a record, its history and events, which a storage keeps beside its checkpoints if there is one."""

    def __init__(
        self,
        env: EnvLike,
        seed: int,
        device: str,
        fixed: Mapping[str, Any],
        storage: Storage | None,
        mode: str | int | Keep | None,
    ):
        super().__init__(env, seed, device, fixed)
        self.storage = storage
        self.keep = None if mode is None else snapshots(mode)  # None: what the storage keeps by itself
        self.saves = mode is None or self.keep is not None
        self.resumed = False
        self.inexact: list[str] = []
        self.history: list[tuple[int, Metrics]] = []
        self.written = 0  # how many rows of the history are in the storage
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._lease: Lease | None = None

    def _take_lease(self) -> Lease:
        assert self.storage is not None
        lease = self._lease = self.storage.open(self.uid, self.identity)
        weakref.finalize(self, lease.release)
        return lease

    def _open(self, policy: Packed | None, name: str) -> None:
        """Takes the lease, and the last checkpoint if there is one; of a warm start the policy is the first one."""
        if self.storage is None:
            return
        lease = self._take_lease()
        saved = lease.load()
        now = fingerprint(self.device)
        if self.keep is not None or not self.saves:
            now["snapshots"] = asdict(self.keep) if self.keep else "no"
        if saved is None and policy is not None:
            self._begin(lease, policy, name)
        if saved is None or not self._take(saved):
            self.events.append(("init", now))
            return
        self.resumed = True
        self.inexact = changes(saved.fingerprint, now)
        self.events.append(("init", {"epochs": saved.epochs, "digest": saved.digest, "inexact": self.inexact, **now}))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, perturb: bool = False) -> None:
        super().load_state_dict(state, strict, perturb)
        self.history = [row for row in self.history if row[0] <= self.epochs]
        self.written = min(self.written, len(self.history))

    def _branch_from(self, state: Mapping[str, Any]) -> bool:
        if not super()._branch_from(state):
            return False
        origin = dict(state["identity"])
        self.events.append(
            (
                "branch",
                {
                    "from": origin,
                    "parent": uid_of(origin),
                    "epochs": state["learner"]["counters"]["epochs"],
                    "state": self._start,
                    "uid": self.uid,
                },
            )
        )
        self.release()
        self.history, self.written = [], 0
        if self.storage is not None:
            self._take_lease()
        return True

    def _take(self, saved: Saved) -> bool:
        """Takes over a stored checkpoint; StateMismatch if it is of another task. False if it is only its policy."""
        state = unpack(saved.manifest, saved.fetch)
        if is_policy(state) and saved.digest == self._start:
            if self.seat is None:
                learner = self._new_learner()
                adopt(learner, 0, policy_in(state))
                self.seat = Seat(learner, 0)
            return False
        self._refuse_foreign(state, perturb=saved.digest == self._start)
        self._state, self.seat = state["learner"], None
        self.history, self.written = list(saved.metrics), len(saved.metrics)
        return True

    def _begin(self, lease: Lease, policy: Packed, name: str) -> None:
        """Stores the policy of a warm start as the first checkpoint, and where it is from."""
        assert self.storage is not None
        assert self.taken is not None
        note = {"parent": policy_uid(policy.digest), "epochs": 0, "state": policy.digest, "source": name}
        events = [("branch", {**note, "taken": self.taken.to_json()})]
        if self.saves:
            self.storage.save([Write(lease, 0, policy.manifest, policy.blobs, policy.digest, events=events)])
        else:
            self.events += events

    def best(self) -> Self:
        """The task as it was at the best of its kept checkpoints, as one without a storage: to look at and to use.

        The best is that with the highest return, or whichever metric its `snapshots` name; TaskError if none of the
        kept ones has it.
        """
        keep = self.keep or Keep()
        for epochs in keep.ranked(dict(self.history)) if self.storage is not None else ():
            saved = self.storage.load(self.uid, epochs)  # type: ignore[union-attr]
            if saved is not None:
                best = self._copy()
                best._take(saved)
                return best
        raise TaskError(
            f"{self} must have a checkpoint with the metric {keep.metric!r} to say which is the best, but has none; "
            'give it a storage and snapshots="best" before it trains'
        )

    def check_lease(self) -> None:
        """Raises TaskError if the task has a storage but let go of it, so that nothing it learned could be kept."""
        if self.storage is not None and self._lease is None:
            raise TaskError(
                f"{self} let go of its storage, where another process may train it by now. Build a new task with the "
                "same hyperparameters: it carries on from the last checkpoint"
            )

    def fail(self, error: BaseException) -> None:
        """Marks the task bad and lets go of its lease: a clean one can then carry on from the last good checkpoint."""
        super().fail(error)
        self.release()

    def release(self) -> None:
        """Lets go of the storage's lease; the checkpoints stay."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def finish(self) -> None:
        """Saves a last time and lets go of the storage and of the environments."""
        if self._lease is not None and self.storage is not None and self.bad is None and self.seat is not None:
            self.storage.save([self.pending_write()])
            self.written = len(self.history)
        self.release()
        if self.seat is not None:
            self._state = settled(self._member_state() or {})
            self.seat = None

    def pending_write(self) -> Write:
        """The metrics and events since the last write, and the state unless none is kept, for the storage."""
        assert self._lease is not None
        with BadResumeGuard(self):
            packed: Packed | None = pack(self._live_state()) if self.saves else None
        events, self.events = self.events, []
        write = Write(self._lease, self.epochs, metrics=self.history[self.written :], events=events, keep=self.keep)
        if packed is None:
            return write
        return replace(write, manifest=packed.manifest, blobs=packed.blobs, digest=packed.digest)
