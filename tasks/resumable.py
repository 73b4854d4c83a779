"""A resumable training: identity, hyperparameters, state and storage."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, Self

from ..spaces import Space, flatten, unflatten
from ..spaces.arguments import at_least, checked
from ..spaces.values import plain
from .base_learner import BaseLearner, MemberRef
from .catalog import label
from .checkpoint.retention import Keep
from .checkpoint.state import Packed, Tree, materialized, pack, unpack
from .checkpoint.storage import Metrics, Saved, Storage, Write
from .envs import EnvSpec
from .errors import EpisodesLost, NotInitialized, StateMismatch
from .identity import STATE_FORMAT, EnvLike, TaskIdentity, check_seed, device_of
from .learner_state import inexact_in, lies_within_epoch
from .record import TaskRecord
from .registry import load, sendable
from .runtime import EVALUATION_ENVS, EVALUATION_EPISODES, EVALUATION_SEED
from .runtime.fingerprint import InexactWarning, code_of
from .runtime.guard import BadResumeGuard
from .runtime.observers import EpochEvent
from .runtime.progress import at_work
from .signals.demonstrations import Demonstrations
from .warm_start import LoadReport, WarmStart, is_policy, located, match_beginning, policy_in, policy_tree

FIDELITY = "epochs"
POSITIONAL = ("gamma", "optimizer", "lr_schedule", "model")  # hyperparameters that init takes by position
MEASURING = ("eval_episodes", "eval_envs")  # how evaluation measures: attributes of tasks and of learners


class Resumable:
    """A training that stops and resumes; `Task` describes its attributes."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    learner: ClassVar[type[BaseLearner]]

    def __init__(
        self,
        env: EnvLike = None,
        *,
        seed: int = 0,
        device: str = "cpu",
        env_processes: int = 0,
        eval_episodes: int = EVALUATION_EPISODES,
        eval_envs: int = EVALUATION_ENVS,
        storage: Storage | None = None,
        snapshots: str | int | Keep | None = None,
        warm_start: Any = None,
        demonstrations: Any = None,
        logger: Callable[[EpochEvent], None] | None = None,
        **fixed: Any,
    ):
        """Create a task; `init` sets its hyperparameters.

        Args:
            env: Gymnasium id, EnvSpec or its JSON; None for a task without an environment.
            seed: seed of all random streams, 0 to 2**63 - 1.
            device: torch device, or "auto" for the first available of CUDA, MPS and CPU. The device is not part of the
                identity, but results on different devices differ in their last bits.
            env_processes: number of processes that step the environments; 0 steps them in this process. It does not
                change the result.
            eval_episodes: number of episodes of an evaluation, unless `evaluate` gets another one.
            eval_envs: most environments that an evaluation steps at the same time, of all members of a cohort together.
                It does not change the result.
            storage: where checkpoints, metrics and events are stored under the task's uid, such as a `Store`.
            snapshots: which checkpoints the storage keeps. It does not change the result and is not part of the
                identity. None leaves the choice to the storage; a `Keep` gives the rule itself; otherwise one of these,
                or several joined by commas:
                - "latest": the newest two.
                - "best": also the best so far; the task is evaluated at the end of each epoch ("best:5": every fifth).
                - "every:5": also every fifth epoch ("every:5:3": only the newest three of these).
                - "initial": also the untrained agent.
                - "all": every epoch.
                - a number: that many of the newest epochs.
                - "no-replay": leave replay buffers out. A resumed task refills its buffer, so it is no longer
                  bit-exact.
                - "no": no checkpoint; a task that stopped starts from scratch.
            warm_start: policy that initializes the networks: a task, a state, a stored checkpoint, a vector or a file,
                see `WarmStart`. Optimizers, counters and reward statistics start fresh. The policy's digest becomes
                part of the identity. The storage keeps the policy, so you need the source only once.
            demonstrations: file or `Demonstrations` for behavioral cloning and GAIL. Like a warm start, they become
                part of the identity and the storage keeps them.
            logger: function called with an EpochEvent at the end of each epoch.
            fixed: hyperparameters to take out of the search space, nested like the space.

        Raises:
            ValueError: the seed, device, storage or `env_processes` is invalid, or `fixed` does not fit the space.
            UnsupportedSpace: the algorithm needs an environment and got none, or the reverse.
        """
        seed = check_seed(self.name, seed)
        if storage is not None and not callable(getattr(storage, "open", None)):
            example = f", such as rekindle.Store({storage!r})" if isinstance(storage, str) else ""
            raise ValueError(f"{self.name}: storage must be a Store or None{example}, but got {storage!r}")
        processes = at_least(self.name, "env_processes", env_processes, 0)
        episodes = at_least(self.name, "eval_episodes", eval_episodes, 1)
        envs = at_least(self.name, "eval_envs", eval_envs, 1)
        if self.learner.needs_env is False and episodes != EVALUATION_EPISODES:
            raise ValueError(f"{self.name} is measured without episodes; leave eval_episodes out")
        self.eval_episodes, self.eval_envs = episodes, envs
        self.env, self.seed, self.device = EnvSpec.of(env), seed, device_of(device, self.name)
        self.env_processes, self.logger = processes, logger
        self.warm_start, self.demonstrations = located(warm_start), located(demonstrations)
        self.learner.check_presence(self.env)
        self.learner.space_in(self.env).fix(fixed)  # raises for names and values that the space does not allow
        self.fixed = flatten(plain(fixed))
        self._identity: TaskIdentity | None = None
        self.uid = ""
        self.stored = TaskRecord(storage, snapshots, self.learner.objective, self.learner.direction)
        self._ref: MemberRef | None = None
        self.load_report: LoadReport | None = None
        self.suggested_epochs: int | None = None
        self.bad: BaseException | None = None
        self.between_steps = True
        self._sent = False  # by another process, so it has no lease yet

    def __str__(self) -> str:
        suffix = f" on {self.env.id}" if self.env else ""
        return f"{label(self.name)}{suffix}, seed {self.seed}" + (f" ({self.uid[:8]})" if self.uid else "")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs to make this task, with its state.

        A stored task takes its lease there when it trains, and resumes from its last checkpoint.
        """
        options = {name: getattr(self, name) for name in ("seed", "env_processes", *MEASURING, "logger")}
        options |= {"warm_start": self.warm_start, "demonstrations": self.demonstrations}
        options |= {"device": str(self.device), "storage": self.stored.storage, "snapshots": self.stored.snapshots}
        if self._identity is None:
            return _unpickled, (sendable(type(self)), self.env, options, self.fixed, None)
        rest = (
            self._identity,
            self.uid,
            self.suggested_epochs,
            self.load_report,
            self.state_dict(),
            self.stored.portable(),
        )
        return _unpickled, (sendable(type(self)), self.env, options, self.fixed, rest)

    def arrive(self) -> None:
        """Resume from the storage if another process sent the task."""
        if self._sent:
            reasons = self.stored.inexact
            self._resume(None, "")
            self.stored.inexact = list(dict.fromkeys([*reasons, *self.stored.inexact]))
            self._sent = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}, {f'epoch {self.epochs}' if self.uid else 'not initialized'}>"

    # --- identity and hyperparameters ---

    def get_space(self, **fidelities: Any) -> Space:
        """Return the search space: open hyperparameters, nested, plus the given fidelities.

        Args:
            fidelities: fidelities by name, such as ``epochs=fidelity(1, 27)``.
        """
        return self.learner.open_space(self.env, self.fixed).searched().extend(**fidelities)

    @property
    def identity(self) -> TaskIdentity:
        """Everything the result depends on except the epochs.

        Raises:
            NotInitialized: `init` was not called yet.
        """
        if self._identity is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        return self._identity

    @property
    def hyperparameters(self) -> dict[str, Any] | None:
        """Values of all hyperparameters, nested; None before `init`."""
        return None if self._identity is None else self._identity.hyperparameters

    def init(self, *positional: Any, uid: str | None = None, start: str | None = None, **hyperparameters: Any) -> Self:
        """Set the hyperparameters, and resume from a stored checkpoint if any.

        Missing hyperparameters take their defaults; None for a group means all of its defaults. If the storage holds a
        checkpoint of this uid, the task resumes from it and `resumed` is true. Error messages name the parameter, its
        range and the closest known name.

        Args:
            positional: gamma, optimizer, lr_schedule and model, in this order.
            uid: name to use instead of the hash.
            start: digest of the state or policy that the task starts from; it makes the task a branch. A state must be
                the first checkpoint in the storage, or be given to `load_state_dict`. A policy that the storage holds
                needs no `warm_start`.
            hyperparameters: nested values; a sampled space's epochs may be among them.

        Returns:
            The task itself.

        Raises:
            SpaceError: a name is unknown, or a value is missing, out of range or of the wrong type.
            ValueError: values contradict each other, or one that the constructor fixed.
            UnsupportedSpace: the algorithm cannot act in this environment with these values.
            StateMismatch: the task is already initialized, or the stored checkpoint belongs to another task.
            DamagedState: the stored checkpoint is damaged.
        """
        with BadResumeGuard(self):
            pass
        if self._identity is not None:
            raise StateMismatch(f"{self} is initialized already; build a new task to train with other hyperparameters")
        values = self._values_by_name(positional, hyperparameters)
        self.suggested_epochs = values.pop(FIDELITY, None)
        if (demonstrations := self._load_demonstrations()) is not None:
            values.setdefault("demonstrated_steps", demonstrations.steps)
        warm = self.warm_start if isinstance(self.warm_start, WarmStart | None) else WarmStart(self.warm_start)
        self._identity = TaskIdentity.of(type(self), self.env, self.seed, {**values, **self.fixed}, start)
        try:
            policy = None if warm is None and demonstrations is None else self._begin(warm, demonstrations)
            self.uid = uid or self.identity.uid
            self._resume(policy, warm.name if warm else "")
            self.warm_start = self.demonstrations = None  # they are in the state now
        except BaseException:
            self.stored.release()  # so that another attempt, or another process, can take the task
            self._identity, self.uid, self.ref, self.stored.state = None, "", None, None
            raise
        return self

    def _load_demonstrations(self) -> Demonstrations | None:
        """Return the demonstrations, if the task was given some.

        Raises:
            ValueError: the algorithm does not learn from them.
        """
        if self.demonstrations is None:
            return None
        demonstrations = Demonstrations.load(self.demonstrations)
        if "demonstrated_steps" not in self.learner.space_in(self.env):
            raise ValueError(f"{self}: {self.name} does not learn from demonstrations; leave demonstrations out")
        return demonstrations

    def _values_by_name(self, positional: Sequence[Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that `init` got, by dotted name.

        Raises:
            TypeError: there are too many values by position, or a value is given twice.
            ValueError: a value differs from the one that the constructor fixed.
        """
        if len(positional) > len(POSITIONAL) or hyperparameters.keys() & set(POSITIONAL[: len(positional)]):
            raise TypeError(
                f"{self}: init takes {', '.join(POSITIONAL)} in this order, each value once, but got {len(positional)} "
                f"values and {', '.join(hyperparameters) or 'none'} by name; give all by name"
            )
        values = flatten({**dict(zip(POSITIONAL, positional, strict=False)), **hyperparameters})
        for name in values.keys() & self.fixed.keys():
            if values[name] != self.fixed[name]:
                raise ValueError(
                    f"{self}: {name} was fixed to {self.fixed[name]!r} when the task was made, but init got "
                    f"{values[name]!r}"
                )
        return values

    def _begin(self, start: WarmStart | None, demonstrations: Demonstrations | None) -> Packed:
        """Build a learner that starts with the given policy and demonstrations.

        Their digest becomes part of the identity.
        """
        learner = self._new_learner()
        beginning, self.load_report = match_beginning(learner, start, demonstrations, str(self))
        packed = pack(policy_tree(beginning))
        if self.identity.start not in (None, packed.digest):
            raise StateMismatch(
                f"{self}: init was told to start from {str(self.identity.start)[:12]}, but warm_start is "
                f"{packed.digest[:12]}; give one of them"
            )
        learner.adopt(0, beginning)
        self.ref, self._identity = MemberRef(learner, 0), replace(self.identity, start=packed.digest)
        return packed

    def _resume(self, policy: Packed | None, source: str) -> None:
        """Take the lease and load the last checkpoint, if there is one.

        The first checkpoint of a warm start is its policy; a task that has no other starts rather than resumes.
        """
        lease = self.stored.take_lease(self.uid, self.identity)
        if lease is None:
            return
        saved = lease.load()
        if saved is None and policy is not None:
            assert self.load_report is not None
            self.stored.begin(policy, self.load_report, source)
        state = None if saved is None else self._load(saved)
        refillable = self.learner.refillable
        refilled = state is not None and bool(refillable) and not state.keys() & refillable
        compiled = self.learner.uses_kernels(self.env)
        self.stored.note_init(self.device, self._code(), None if state is None else saved, refilled, compiled)

    def _code(self) -> dict[str, str]:
        """Return digests of the user's code that the task runs, by description."""
        files = {f"code of {name}": digest for name, digest in self.learner.files().items()}
        modules = [*self.env.modules, *([] if files else [type(self).__module__, self.learner.__module__])]
        return {**code_of(modules), **self.learner.code, **files}

    def _load(self, saved: Saved) -> Tree | None:
        """Load a stored checkpoint, and return the learner's state in it.

        It is None if the checkpoint is only a policy.

        Raises:
            StateMismatch: the checkpoint belongs to another task.
        """
        state = unpack(saved.manifest, saved.fetch)
        if is_policy(state) and saved.digest == self.identity.start:
            if self.ref is None:
                self.ref = MemberRef(self._new_learner(), 0)
                self.ref.learner.adopt(0, policy_in(state))
            return None
        self.identity.check_state(state, str(self), perturb=saved.digest == self.identity.start)
        self.ref = None
        self.stored.resume(saved, state["learner"])
        return self.stored.state

    # --- training ---

    def build_learner(self, tasks: Sequence[Resumable]) -> BaseLearner:
        """Build one learner for these tasks, and move their states into it."""
        states = [task._learner_state() for task in tasks]
        learner = self._new_learner(tasks)
        try:
            for member, state in enumerate(states):
                if state is not None:
                    tasks[member]._load_into(learner, member, state)
        except BaseException:
            learner.close()
            raise
        for member, task in enumerate(tasks):
            task.ref, task.stored.state = MemberRef(learner, member), None
            task.stored.note_played(task.env, learner.played(), learner.epochs)
        return learner

    def _load_into(self, learner: BaseLearner, member: int, state: Mapping[str, Any]) -> None:
        """Load a state, and begin new episodes if its own are lost."""
        try:
            learner.load_member(member, state)
        except EpisodesLost as lost:
            warnings.warn(f"{self}: {lost}. They begin anew, so it is not bit-exact from here on", InexactWarning, 3)
            with closing(self._new_learner()) as other:
                learner.load_member(member, other.with_new_episodes(state))

    def probe(self) -> None:
        """Build environments and networks once, to raise early whatever prevents training."""
        self._new_learner().close()

    def fail(self, error: BaseException) -> None:
        """Mark the task as bad and release its lease.

        A new task can then resume from the last good checkpoint.
        """
        self.bad = error
        self.stored.release()

    def release(self) -> None:
        """Release the storage's lease; the checkpoints stay."""
        self.stored.release()

    def close(self) -> None:
        """Release the storage, and close the environments until they are used again."""
        self.release()
        if self.ref is not None:
            with at_work():  # a simulator may hang
                self.ref.learner.close()

    def finish(self) -> None:
        """Save one last time, then release storage, environments and networks."""
        stored = self.stored
        if stored.lease is not None and stored.storage is not None and self.bad is None and self.ref is not None:
            stored.save(self.pending_write())
        self.close()
        if self.ref is not None:
            stored.state, self.ref = materialized(self.ref.learner.member_state(self.ref.member)), None

    def set_device(self, device: str) -> None:
        """Move the task to another torch device.

        On another type of device the task resumes, but not bit for bit.

        Raises:
            ValueError: torch or this machine lacks the device.
        """
        _ = self.identity
        named, state = device_of(device, str(self)), self._learner_state()
        self.device, self.ref, self.stored.state = named, None, state

    # --- state ---

    @property
    def ref(self) -> MemberRef | None:
        """Learner that holds the state, and the task's index in it."""
        return self._ref

    @ref.setter
    def ref(self, ref: MemberRef | None) -> None:
        """Move to another learner; the last to leave one closes it."""
        before, self._ref = self._ref, ref
        if ref is not None:
            ref.learner.holders.add(self)
        if before is not None and ref is not None and ref.learner is before.learner:
            return
        self.moved()
        if before is None:
            return
        before.learner.holders.discard(self)
        if not before.learner.holders:
            with at_work():  # a simulator may hang
                before.learner.close()

    def moved(self) -> None:
        """Note that another learner, or none, holds the state."""

    def _new_learner(self, tasks: Sequence[Resumable] = ()) -> BaseLearner:
        """Return an untrained learner for these tasks, by default for this one."""
        tasks = tasks or [self]
        values = [task.identity.hyperparameters for task in tasks]
        processes = max(task.env_processes for task in tasks)
        learner = self.learner(self.env, [task.seed for task in tasks], values, self.device, processes)
        for name in MEASURING:
            if getattr(self, name) != getattr(learner, name):
                setattr(learner, name, getattr(self, name))
        return learner

    def _learner_state(self) -> Tree | None:
        """Return the state for a learner; None for a fresh task."""
        if self.ref is not None:
            return self.ref.learner.member_state(self.ref.member)
        if self.stored.state is None and self.identity.start is not None:
            raise NotInitialized(
                f"{self} starts from the state {self.identity.start[:12]} of another task, which is missing; "
                "pass it to load_state_dict(state, perturb=True), or give warm_start=... if it is a policy"
            )
        if self.stored.state is None and self.identity.hyperparameters.get("demonstrated_steps"):
            raise NotInitialized(f"{self} learns from demonstrations, but has none; create it with demonstrations=FILE")
        return self.stored.state

    def member_ref(self) -> MemberRef:
        """Return the learner and member index that hold the state.

        The learner is built if there is none.

        Raises:
            BadResume: the task broke earlier, so its state may be half-changed.
        """
        with BadResumeGuard(self):
            pass
        if self.ref is None:
            self.build_learner([self])
        assert self.ref is not None
        return self.ref

    def live_state(self) -> Tree:
        """Return the state, with views of live data in it, see `checkpoint.chunks`."""
        learner, member = self.member_ref()
        return {
            "format": STATE_FORMAT,
            "identity": self.identity.to_json(),
            "structure": self.identity.structure,
            "learner": learner.member_state(member),
        }

    @checked()
    def state_dict(self, destination: Tree | None = None, prefix: str = "", keep_vars: bool = False) -> Tree:
        """Return a copy of the complete state: everything the future depends on.

        The state is a tree whose leaves are tensors and JSON values, see `checkpoint.state`. The signature is that of
        `torch.nn.Module.state_dict`.

        Args:
            destination: dict that receives the parts and is returned; None for a new one.
            prefix: prefix of the parts' names.
            keep_vars: ignored, since copies carry no gradients.

        Raises:
            NotInitialized: `init` was not called yet.
            BadResume: the task broke earlier.
        """
        _ = self.identity  # outside the guard: a call before `init` must not mark the task as bad
        with BadResumeGuard(self):
            state = materialized(self.live_state())
        destination = {} if destination is None else destination
        destination.update({f"{prefix}{name}": part for name, part in state.items()})
        return destination

    @checked()
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, perturb: bool = False) -> None:
        """Load a state; if it does not fit, change nothing.

        The argument is not modified.

        Args:
            state: state as `state_dict` returns it.
            strict: whether to refuse a state with unknown parts; False drops them.
            perturb: allow other hyperparameters and another seed. The task then becomes a branch, with a new uid that
                names the state it started from.

        Raises:
            StateMismatch: the state has another algorithm, version, environment, structure or format; or, without
                `perturb`, other hyperparameters or another seed.
            NotInitialized: `init` was not called yet.
            BadResume: the task broke earlier.
        """
        identity = self.identity
        with BadResumeGuard(self):
            identity.check_state(state, str(self), perturb)
            learner_state = {**state["learner"]}
            fresh = self._new_learner()
            try:
                unknown = sorted(learner_state.keys() - fresh.member_state(0).keys())
                if unknown and strict:
                    raise StateMismatch(
                        f"{self}: the state has unknown {', '.join(unknown)}; pass strict=False to drop it"
                    )
                parts = {name: part for name, part in learner_state.items() if name not in unknown}
                self._load_into(fresh, 0, parts)
                if perturb and state["identity"] != identity.to_json():
                    self.branch_from(state)
            except BaseException:
                fresh.close()
                raise
            self.ref, self.stored.state = MemberRef(fresh, 0), None
        self.stored.truncate(self.epochs)

    @checked()
    def branch_from(self, state: Mapping[str, Any]) -> None:
        """Make the task a branch: these hyperparameters, starting from that state.

        Nothing changes if the task already starts from it.
        """
        start = pack(state).digest
        if start != self.identity.start:
            self._identity = replace(self.identity, start=start)
            self.uid = self.identity.uid
            epochs = state["learner"]["counters"]["epochs"]
            self.stored.branch(state["identity"], epochs, self.uid, self.identity)

    def pending_write(self) -> Write:
        """Return the metrics, events and state that the storage lacks."""
        with BadResumeGuard(self):
            state = self.live_state() if self.stored.saves else None
            return self.stored.pending_write(self.epochs, state, self.learner.refillable)

    @property
    def digest(self) -> str:
        """Sha256 of the complete state; equal digests mean equal bits."""
        return pack(self.state_dict()).digest

    def beginning(self) -> Tree:
        """Return the policy and demonstrations that a fresh task started with."""
        (learner, member), names = self.member_ref(), [] if self.load_report is None else self.load_report.loaded
        views = {**learner.policy_views(member), **learner.demonstration_views(member)}
        return policy_tree({name: views[name].detach().to("cpu", copy=True) for name in names})

    def best(self) -> Self:
        """Return a copy of the task, without storage, at its best checkpoint.

        The best checkpoint has the highest return, or the best value of the metric that `snapshots` names.

        Raises:
            TaskError: no kept checkpoint has that metric.
        """
        saved = self.stored.best(self.uid, str(self))
        measuring = {name: getattr(self, name) for name in MEASURING}
        best = type(self)(self.env, seed=self.seed, device=str(self.device), **measuring)
        best._identity, best.uid = self.identity, self.uid
        best._load(saved)
        return best

    # --- progress ---

    @property
    def epochs(self) -> int:
        """Epochs done so far."""
        return self._counter("epochs")

    def is_beyond(self, epochs: int) -> bool:
        """Return whether more than this number of epochs is done.

        A part of the next epoch counts: it is done where a signal ended training. No further training leads to the end
        of `epochs` epochs.
        """
        if self.epochs != epochs:
            return self.epochs > epochs
        if self.ref is not None:
            return self.ref.learner.within_epoch
        return self.stored.state is not None and lies_within_epoch(self.stored.state)

    @property
    def env_steps(self) -> int:
        """Environment steps done so far; 0 without an environment."""
        return self.work if self.learner.unit == "env_steps" else 0

    @property
    def objective(self) -> str:
        """Name of the quantity that `evaluate` returns."""
        return self.learner.objective

    @property
    def work(self) -> int:
        """Work done so far, in the learner's unit."""
        return self._counter(self.learner.unit)

    def _counter(self, name: str) -> int:
        if self.ref is not None:
            return int(getattr(self.ref.learner, name))
        return int(self.stored.state["counters"][name]) if self.stored.state else 0

    @property
    def history(self) -> list[tuple[int, Metrics]]:
        """(epoch, metrics) of every epoch done."""
        return self.stored.history

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """(kind, data) of each event since the last write to the storage."""
        return self.stored.events

    @property
    def metrics(self) -> Metrics:
        """Metrics of the last epoch; empty before the first."""
        return self.history[-1][1] if self.history else {}

    @property
    def resumed(self) -> bool:
        """True if `init` found a checkpoint."""
        return self.stored.resumed

    @property
    def inexact(self) -> list[str]:
        """Reasons why the task is not bit-exact; empty if it is.

        These are changes of versions or hardware since the checkpoint was written, and environments that cannot be
        restored exactly. The latter are known once the task has trained.
        """
        if self.ref is not None:
            return [*self.stored.inexact, *self.ref.learner.inexact(self.ref.member)]
        return [*self.stored.inexact, *(inexact_in(self.stored.state) if self.stored.state else ())]

    @property
    def advice(self) -> list[str]:
        """Advice about the environment; empty before the task trains."""
        return [] if self.ref is None else [*self.ref.learner.advice()]

    def score_in(self, metrics: Metrics) -> float | None:
        """Return the objective in metrics, if measured in this task's episodes."""
        expected = self._facts_of_episodes(self.eval_episodes, EVALUATION_SEED)
        is_comparable = all(metrics.get(name, usual) == value for name, (value, usual) in expected.items())
        return metrics.get(self.objective) if is_comparable else None

    def score_metrics(self, score: float, episodes: int | None = None, seed: int = EVALUATION_SEED) -> Metrics:
        """Return metrics of a measured objective, and unusual facts of its episodes.

        Args:
            score: the objective.
            episodes: number of episodes; None for the task's `eval_episodes`.
            seed: their seed.
        """
        facts = self._facts_of_episodes(self.eval_episodes if episodes is None else episodes, seed)
        unusual = {name for name, (value, usual) in facts.items() if value != usual or name in self.metrics}
        return {self.objective: score} | {name: float(facts[name][0]) for name in facts if name in unusual}

    def _facts_of_episodes(self, episodes: int, seed: int) -> dict[str, tuple[int, int]]:
        """Return number and seed of evaluation episodes, and their usual values.

        Keys are the names of their metrics.
        """
        return {
            f"{self.objective}_episodes": (episodes, EVALUATION_EPISODES),
            f"{self.objective}_seed": (seed, EVALUATION_SEED),
        }


def _unpickled(
    algorithm: type[Resumable] | str, env: EnvSpec, options: Mapping[str, Any], fixed: Mapping[str, Any], rest: Any
) -> Resumable:
    """Return the task that `Task.__reduce__` describes."""
    task_class = load(algorithm) if isinstance(algorithm, str) else algorithm
    task: Resumable = task_class(env, **options, **unflatten(fixed))
    if rest is not None:
        task._identity, task.uid, task.suggested_epochs, task.load_report, state, record = rest
        task.load_state_dict(state)
        vars(task.stored).update(record)
        task._sent = True
    return task
