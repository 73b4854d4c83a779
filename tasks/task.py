"""Resumable training of one configuration: the face of an algorithm."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..spaces import Space, flatten, unflatten
from .base_learner import BaseLearner, MemberRef
from .checkpoint.policy_files import write_policy
from .checkpoint.retention import Keep
from .checkpoint.state import Packed, Tree, materialized, pack, unpack
from .checkpoint.storage import Metrics, Saved, Storage, Write
from .cohort import Cohort
from .deployment.acting import Predictor, player
from .deployment.exporting import format_of, write_program
from .deployment.video import film
from .envs import EnvSpec
from .errors import NotInitialized, StateMismatch
from .evaluation import (
    EVALUATION_EPISODES,
    EVALUATION_SEED,
    acting,
    evaluate,
    evaluate_episodes,
    measure_episodes,
    one_thread,
    other_env,
    record,
)
from .identity import STATE_FORMAT, EnvLike, TaskIdentity, check_seed, device_of
from .record import TaskRecord
from .runtime.guard import BadResumeGuard
from .runtime.notebook import html_table
from .runtime.observers import Context, EpochEvent, Until
from .signals.demonstrations import Demonstrations, Recorder
from .warm_start import LoadReport, WarmStart, is_policy, match_beginning, policy_in, policy_tree

FIDELITY = "epochs"
SHOWN = ("return", "episode_return", "env_steps")  # metrics that a notebook shows
FIRST = ("gamma", "optimizer", "lr_schedule", "model")  # of init by position


class Task:
    """A resumable training with one seed.

    It is of an algorithm in an environment, or of anything else that learns.

        task = PPO("CartPole-v1", seed=1, storage=Store("sqlite:///studies.db"))
        task.init(gamma=0.98, optimizer={"lr": 1e-3})
        task.fit(epochs=9)      # up to 9 epochs in all
        task.fit(epochs=27)     # 18 more

    Attributes:
        name, version: of the algorithm; a version changes when the same hyperparameters would give other results.
        learner: the algorithm's mathematics.
        fixed: the hyperparameters that the constructor took out of the space, by dotted name.
        uid: the name of the result: a hash of everything that it depends on but the number of epochs.
        stored: history, events and checkpoints.
        ref: the learner that holds the task's state, and its member there; None until one is needed.
        load_report: the parts of a warm start that were loaded.
        bad: the exception that broke the task, or None.
        between_steps: whether the state is whole at this moment.
    """

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
        storage: Storage | None = None,
        snapshots: str | int | Keep | None = None,
        warm_start: Any = None,
        demonstrations: Any = None,
        logger: Callable[[EpochEvent], None] | None = None,
        **fixed: Any,
    ):
        """Make a task of an environment and a seed, without hyperparameters.

        Args:
            env: a Gymnasium id, or an EnvSpec, or its JSON; None for a task without an environment.
            seed: of all randomness; 0 to 2**63 - 1.
            device: a torch device, or "auto". It is no part of the identity, but results differ in their last bits.
            env_processes: the number of processes that step the environments, 0 for this one alone; it changes no
                result.
            storage: keeps checkpoints, metrics and events under the uid.
            snapshots: which checkpoints it keeps: "latest"; "best", which evaluates at each epoch's end and keeps the
                best one too ("best:5": each fifth); "every:5", which keeps each fifth too ("every:5:3": the last three
                of these); "initial", which keeps the untrained agent too; "all" epochs; the number of the latest
                epochs; "no-replay", which leaves replay memories out, to be filled again on resuming, not bit for bit;
                several of these with commas between; "no", after which a task that stopped begins again; or a
                Keep. None leaves it to the storage. It is no part of the identity, as it changes no state.
            warm_start: a policy that the networks begin with, from a task, a state, a stored checkpoint, a vector or a
                file, see `WarmStart`. Optimizers, counters and statistics of rewards begin fresh. The identity has its
                digest, and the storage the policy, so that the source is needed once.
            demonstrations: a file or `Demonstrations`, for cloning and GAIL. They are in the identity and in the
                storage as a warm start's policy is.
            logger: is called with an EpochEvent at each epoch's end.
            fixed: hyperparameters to take out of the space, nested like it.
        """
        seed = check_seed(self.name, seed)
        if isinstance(storage, str):
            raise ValueError(
                f"{self.name}: storage must be a Store, such as rekindle.Store({storage!r}), but got a text"
            )
        if isinstance(env_processes, bool) or not isinstance(env_processes, int) or env_processes < 0:
            raise ValueError(f"{self.name}: env_processes must be an integer of at least 0, but got {env_processes!r}")
        self.env, self.seed, self.device = EnvSpec.of(env), seed, device_of(device, self.name)
        self.env_processes, self.logger = env_processes, logger
        self.warm_start, self.demonstrations = warm_start, demonstrations
        self.learner.check_presence(self.env)
        self.learner.space_in(self.env).fix(fixed)  # refuses what is not in the space
        self.fixed = flatten(fixed)
        self._identity: TaskIdentity | None = None
        self.uid = ""
        self.stored = TaskRecord(storage, snapshots, self.learner.objective, self.learner.direction)
        self.ref: MemberRef | None = None
        self.load_report: LoadReport | None = None
        self._acting: Predictor | None = None
        self.suggested_epochs: int | None = None
        self.bad: BaseException | None = None
        self.between_steps = True

    def __str__(self) -> str:
        where = f" on {self.env.id}" if self.env else ""
        return f"{self.name}{where}, seed {self.seed}" + (f" ({self.uid[:8]})" if self.uid else "")

    def _repr_html_(self) -> str:
        values = self._identity.values if self._identity else {}
        own = {"epochs": self.epochs, **{name: self.metrics.get(name) for name in SHOWN if name in self.metrics}}
        return html_table(str(self), own | dict(values))

    # --- what and how ---

    def get_space(self, **fidelities: Any) -> Space:
        """Return the open hyperparameters, nested, and the fidelities named, e.g. ``epochs=fidelity(1, 27)``."""
        return self.learner.open_space(self.env, self.fixed).searched().extend(**fidelities)

    @property
    def identity(self) -> TaskIdentity:
        """Everything that the result depends on but the epochs; NotInitialized before `init`."""
        if self._identity is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        return self._identity

    @property
    def hyperparameters(self) -> dict[str, Any] | None:
        """The complete nested values, None before `init`."""
        return None if self._identity is None else self._identity.hyperparameters

    def init(self, *first: Any, uid: str | None = None, start: str | None = None, **hyperparameters: Any) -> Self:
        """Set the hyperparameters, and resume from the storage if possible.

        Missing hyperparameters take their defaults; None for a group means all its defaults. With a storage that holds
        a checkpoint of this uid the task resumes from it, and `resumed` is true. Errors name the parameter, its range
        and the nearest known name.

        Args:
            first: values of gamma, optimizer, lr_schedule and model, in this order, instead of by name.
            uid: a name instead of the hash.
            start: makes it a branch of another task: the digest of the state that it starts from, which the storage
                holds as its first checkpoint, or `load_state_dict` brings; or of the policy of a warm start, whose
                source is not needed then.
            hyperparameters: nested, with the epochs of a sampled space if it has them.
        """
        with BadResumeGuard(self):
            pass
        if self._identity is not None:
            raise StateMismatch(f"{self} is initialized already; build a new task to train with other hyperparameters")
        if len(first) > len(FIRST) or hyperparameters.keys() & set(FIRST[: len(first)]):
            raise TypeError(
                f"{self}: init takes {', '.join(FIRST)} in this order, each value once, but got {len(first)} values "
                f"and {', '.join(hyperparameters) or 'none'} by name; give all by name"
            )
        values = flatten({**dict(zip(FIRST, first, strict=False)), **hyperparameters})
        self.suggested_epochs = values.pop(FIDELITY, None)
        for name in values.keys() & self.fixed.keys():
            if values[name] != self.fixed[name]:
                raise ValueError(
                    f"{self}: {name} was fixed to {self.fixed[name]!r} when the task was made, but init got "
                    f"{values[name]!r}"
                )
        demonstrations = None if self.demonstrations is None else Demonstrations.load(self.demonstrations)
        if demonstrations is not None:
            if "demonstrated_steps" not in self.learner.space_in(self.env):
                raise ValueError(f"{self}: {self.name} does not learn from demonstrations; leave demonstrations out")
            values.setdefault("demonstrated_steps", demonstrations.steps)
        warm = self.warm_start if isinstance(self.warm_start, WarmStart | None) else WarmStart(self.warm_start)
        self._identity = TaskIdentity.of(type(self), self.env, self.seed, {**values, **self.fixed}, start)
        try:
            policy = None if warm is None and demonstrations is None else self._begin(warm, demonstrations)
            self.uid = uid or self.identity.uid
            self._resume(policy, warm.name if warm else "")
            self.warm_start = self.demonstrations = None  # they are in the state now
        except BaseException:
            self.stored.release()  # so that another try, or another process, finds the task free
            self._identity, self.uid, self.ref, self.stored.state = None, "", None, None
            raise
        return self

    def _begin(self, start: WarmStart | None, demonstrations: Demonstrations | None) -> Packed:
        """Make a learner that begins with a policy and demonstrations.

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

        Of a warm start the policy is the first checkpoint.
        """
        lease = self.stored.take_lease(self.uid, self.identity)
        if lease is None:
            return
        saved = lease.load()
        if saved is None and policy is not None:
            assert self.load_report is not None
            self.stored.begin(policy, self.load_report, source)
        resumed = saved is not None and self._load(saved)
        left_out = {*self.learner.refillable} if self.stored.state else set()
        refilled = bool(left_out) and not left_out & (self.stored.state or {}).keys()
        self.stored.note_init(self.device, saved if resumed else None, refilled)

    def _load(self, saved: Saved) -> bool:
        """Load a stored checkpoint, and return whether it is a state.

        The first checkpoint of a warm start is a policy. StateMismatch refuses a checkpoint of another task.
        """
        state = unpack(saved.manifest, saved.fetch)
        if is_policy(state) and saved.digest == self.identity.start:
            if self.ref is None:
                self.ref = MemberRef(self._new_learner(), 0)
                self.ref.learner.adopt(0, policy_in(state))
            return False
        self.identity.check_state(state, str(self), perturb=saved.digest == self.identity.start)
        self.ref = None
        self.stored.resume(saved, state["learner"])
        return True

    # --- training ---

    def fit(self, epochs: int | None = None, context: Context | None = None, until: Until | None = None) -> Metrics:
        """Train to `epochs` epochs in all, and return the last epoch's metrics.

        SIGTERM and SIGINT are obeyed between two steps, after the state is saved.

        Args:
            epochs: the total; None for those that `init` was given with the sampled space.
            context: is called with an EpochEvent at each epoch's end; or a mapping, which the logger finds in it. What
                it or a logger raises ends the training, and leaves the task as it is, saved.
            until: ends training earlier: it returns whether the history so far is enough, see `observers`.
        """
        total = self.suggested_epochs if epochs is None else epochs
        if total is None:
            raise ValueError(f"{self}: fit needs epochs, the total to reach, unless init(epochs=...) gave them")
        _ = self.identity
        Cohort([self]).fit(total, context, until)
        return self.metrics

    def build_learner(self, tasks: Sequence[Task]) -> BaseLearner:
        """Return a learner that holds these tasks.

        Their states move into it.
        """
        states = [task._learner_state() for task in tasks]
        values = [task.identity.hyperparameters for task in tasks]
        processes = max(task.env_processes for task in tasks)
        learner = self.learner(self.env, [task.seed for task in tasks], values, self.device, processes)
        for member, state in enumerate(states):
            if state is not None:
                learner.load_member(member, state)
        for member, task in enumerate(tasks):
            task.ref, task.stored.state = MemberRef(learner, member), None
        return learner

    def probe(self) -> None:
        """Make environments and networks once, and raise what prevents training."""
        self._new_learner()

    def fail(self, error: BaseException) -> None:
        """Mark the task bad and release its lease.

        A new task can then resume from the last good checkpoint.
        """
        self.bad = error
        self.stored.release()

    def release(self) -> None:
        """Release the storage's lease; the checkpoints stay."""
        self.stored.release()

    def finish(self) -> None:
        """Save a last time and release the storage and the environments."""
        stored = self.stored
        if stored.lease is not None and stored.storage is not None and self.bad is None and self.ref is not None:
            stored.storage.save([self.take_pending_write()])
            stored.written = len(stored.history)
        self.release()
        if self.ref is not None:
            stored.state, self.ref = materialized(self.ref.learner.member_state(self.ref.member)), None

    def set_device(self, device: str) -> None:
        """Move the task to another torch device.

        Across device types it resumes, but not bit for bit.
        """
        _ = self.identity
        named, state = device_of(device, str(self)), self._learner_state()
        self.device, self.ref, self.stored.state = named, None, state

    # --- state ---

    def _new_learner(self) -> BaseLearner:
        return self.learner(self.env, [self.seed], [self.identity.hyperparameters], self.device, self.env_processes)

    def _learner_state(self) -> Tree | None:
        """Return the state for a learner, None for a fresh one."""
        if self.ref is not None:
            return self.ref.learner.member_state(self.ref.member)
        if self.stored.state is None and self.identity.start is not None:
            raise NotInitialized(
                f"{self} starts from the state {self.identity.start[:12]} of another task, which it has not got; "
                "load_state_dict(state, perturb=True) brings it, or warm_start=... if it is a policy"
            )
        if self.stored.state is None and self.identity.hyperparameters.get("demonstrated_steps"):
            raise NotInitialized(
                f"{self} learns from demonstrations, which it has not got; give demonstrations=FILE when it is made"
            )
        return self.stored.state

    def member_ref(self) -> MemberRef:
        """Return the learner and the member that hold the state.

        The learner is built if there is none; BadResume refuses the half-changed state of a bad task.
        """
        with BadResumeGuard(self):
            pass
        if self.ref is None:
            self.build_learner([self])
        assert self.ref is not None
        return self.ref

    def live_state(self) -> Tree:
        """Return the state with views of live data in it, see `checkpoint.chunks`."""
        learner, member = self.member_ref()
        return {
            "format": STATE_FORMAT,
            "identity": self.identity.to_json(),
            "structure": self.identity.structure,
            "learner": learner.member_state(member),
        }

    def state_dict(self, destination: Tree | None = None, prefix: str = "", keep_vars: bool = False) -> Tree:
        """Return everything that the future depends on, as a tree of copies.

        Its leaves are tensors and JSON values, see `checkpoint.state`. The arguments are those of
        `torch.nn.Module.state_dict`.

        Args:
            destination: receives the state's parts, and is returned; None: a new dict.
            prefix: is put before their names.
            keep_vars: changes nothing, as copies have no gradients to keep.
        """
        _ = self.identity  # outside of the guard: asking too early breaks nothing
        with BadResumeGuard(self):
            state = materialized(self.live_state())
        destination = {} if destination is None else destination
        destination.update({f"{prefix}{name}": part for name, part in state.items()})
        return destination

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, perturb: bool = False) -> None:
        """Load a state, or change nothing if it does not fit.

        The argument is left alone.

        StateMismatch refuses a state of another algorithm, version, environment, structure or format.

        Args:
            state: as `state_dict` returns it.
            strict: whether a state with more than is needed is refused too.
            perturb: allows other hyperparameters and another seed: the task then gets an identity, and a uid, that
                names the state it started from.
        """
        identity = self.identity
        with BadResumeGuard(self):
            identity.check_state(state, str(self), perturb)
            learner_state = {**state["learner"]}
            fresh = self._new_learner()
            unknown = sorted(learner_state.keys() - fresh.member_state(0).keys())
            if unknown and strict:
                raise StateMismatch(f"{self}: the state has unknown {', '.join(unknown)}; pass strict=False to drop it")
            fresh.load_member(0, {name: part for name, part in learner_state.items() if name not in unknown})
            if perturb and state["identity"] != identity.to_json():
                self.branch_from(state)
            self.ref, self.stored.state = MemberRef(fresh, 0), None
        self.stored.truncate(self.epochs)

    def branch_from(self, state: Mapping[str, Any]) -> None:
        """Take the identity of "these hyperparameters, from that state on".

        Nothing changes if the task has it already.
        """
        start = pack(state).digest
        if start != self.identity.start:
            self._identity = replace(self.identity, start=start)
            self.uid = self.identity.uid
            epochs = state["learner"]["counters"]["epochs"]
            self.stored.branch(state["identity"], epochs, self.uid, self.identity)

    def take_pending_write(self) -> Write:
        """Return the metrics, events and state that the storage lacks."""
        with BadResumeGuard(self):
            state = self.live_state() if self.stored.saves else None
            return self.stored.take_pending_write(self.epochs, state, self.learner.refillable)

    @property
    def digest(self) -> str:
        """Sha256 over the canonical form of the whole state."""
        return pack(self.state_dict()).digest

    def beginning(self) -> Tree:
        """Return the policy and demonstrations that a fresh task began with."""
        (learner, member), names = self.member_ref(), [] if self.load_report is None else self.load_report.loaded
        views = {**learner.policy_views(member), **learner.demonstration_views(member)}
        return policy_tree({name: views[name].detach().to("cpu", copy=True) for name in names})

    def best(self) -> Self:
        """Return a copy of the task at its best kept checkpoint.

        The copy has no storage.

        The best has the highest return, or whichever metric `snapshots` name; TaskError if no kept one has it.
        """
        saved = self.stored.best(self.uid, str(self))
        best = type(self)(self.env, seed=self.seed, device=str(self.device))
        best._identity, best.uid = self.identity, self.uid
        best._load(saved)
        return best

    # --- looking ---

    @property
    def epochs(self) -> int:
        """Epochs done so far."""
        return self._counter("epochs")

    @property
    def env_steps(self) -> int:
        """Environment steps done so far; 0 without an environment."""
        return self.work if self.learner.unit == "env_steps" else 0

    @property
    def objective(self) -> str:
        """The name of what `evaluate` returns."""
        return self.learner.objective

    @property
    def work(self) -> int:
        """Work done so far, in units of the learner."""
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
    def recent_returns(self) -> list[float]:
        """Returns of the last `stats_window_size` episodes, the oldest first.

        They are those of training; of SVPG those of one particle after another.
        """
        learner, member = self.member_ref()
        acting: Any = getattr(learner, "particles", None) or learner
        if getattr(acting, "window", None) is None:
            raise ValueError(
                f"{self}: recent_returns are those of the last stats_window_size episodes, but it is None; set it, to "
                "100 for instance"
            )
        count = acting.members // learner.members
        return [value for i in range(member * count, (member + 1) * count) for value in acting.window.recent(i)]

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
        """Versions or hardware that changed since the checkpoint.

        Last bits may differ from there on.
        """
        return self.stored.inexact

    def evaluate(
        self,
        episodes: int = EVALUATION_EPISODES,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> float:
        """Return the mean undiscounted return of episodes on fixed seeds.

        No training uses these seeds, and no state changes.

        Args:
            episodes: their number.
            deterministic: greedy actions, or random ones as in training, with numbers that are the same each time.
            env: another environment with the same spaces; a mapping without an id changes the task's own, such as
                ``{"parameters": {"gravity": 5.0}}``.
            seed: of other episodes.
        """
        if not deterministic:
            return statistics.fmean(self.returns(episodes, deterministic, env, seed))
        learner, member = self._evaluated(episodes)
        return float(evaluate(learner, episodes, **self._elsewhere(env, seed))[member])

    def returns(
        self,
        episodes: int = EVALUATION_EPISODES,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> list[float]:
        """Return the return of each episode that `evaluate` averages.

        Of SVPG they are those of one particle after another. The arguments are those of `evaluate`.
        """
        learner, member = self._evaluated(episodes)
        rows = evaluate_episodes(learner, episodes, deterministic, **self._elsewhere(env, seed))
        returns: list[float] = rows[member].tolist()
        return returns

    def measure(
        self,
        episodes: int = EVALUATION_EPISODES,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> dict[str, list[float]]:
        """Return the `return` of each episode, and each reported `info.NAME`.

        An entry of info is NaN of an episode that did not have it. The arguments are those of `evaluate`.
        """
        learner, member = self._evaluated(episodes)
        measured = measure_episodes(learner, episodes, deterministic, **self._elsewhere(env, seed))
        info = {f"info.{name}": values[member].tolist() for name, values in measured.info.items()}
        return {"return": measured.returns[member].tolist(), **info}

    def _elsewhere(self, env: EnvLike | None, seed: int | None) -> dict[str, Any]:
        """Return the arguments for an evaluation elsewhere."""
        if seed is not None:
            seed = check_seed(str(self), seed)
        given = {"env": None if env is None else other_env(self.env, env, str(self)), "seed": seed}
        return {name: value for name, value in given.items() if value is not None}

    def record(
        self,
        episodes: int = EVALUATION_EPISODES,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> Demonstrations:
        """Return observations and actions of evaluation episodes, as demonstrations.

        The arguments are those of `evaluate`.
        """
        return record(*self._evaluated(episodes), episodes, deterministic, **self._elsewhere(env, seed))

    def film(
        self, path: str | Path, deterministic: bool = True, env: EnvLike | None = None, seed: int | None = None
    ) -> float:
        """Write an evaluation episode as a video (.mp4), and return its return.

        The arguments are those of `evaluate`.

        Raises:
            NoVideo: the file cannot be written, a library is missing, or the environment cannot be drawn.
        """
        acting(self.member_ref().learner)
        found = {"env": self.env, "seed": EVALUATION_SEED, **self._elsewhere(env, seed)}
        predict = partial(self.predict, deterministic=deterministic)
        return film(found["env"], found["seed"], predict, Path(path))

    def recorder(self) -> Recorder:
        """Record what the policy observes and does in training from now on.

        Its `demonstrations()` are all steps so far, for cloning, GAIL and `Replayed`. It records this task alone.
        """
        return Recorder(acting(self.member_ref().learner).envs)

    def _evaluated(self, episodes: int) -> MemberRef:
        if episodes < 1:
            raise ValueError(f"{self}: episodes must be at least 1, but got {episodes!r}")
        return self.member_ref()

    def act(self, observation: Any) -> Any:
        """Return the greedy action for one observation.

        Both are as the Gymnasium environment gives and takes them.
        """
        return self.player()(observation)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return actions and recurrent states, as Stable-Baselines3's `predict` does.

        Args:
            observation: one, or a batch with one more axis in front (in each part of a Dict or Tuple), as the
                Gymnasium environment gives them; the actions are as it takes them, a batch of them for a batch.
            state: the recurrent states (N, S) that the last call returned; None at the beginning of all episodes.
            episode_start: (N,), where an episode begins, so that its state is reset.
            deterministic: greedy actions, or random ones as in training, other ones at each call.

        Returns:
            The actions, and the recurrent states after them, None of a policy without a memory.
        """
        return self._predictor(self.member_ref())(observation, state, episode_start, deterministic)

    def value(self, observation: Any, state: Any = None) -> Any:
        """Return v(s) of one observation, or of a batch (N,).

        It is the estimate of the critic; of DQN the largest q(s, a), of SAC the smaller q of its critics for the greedy
        action. `normalize_reward` scales it as it scales rewards.

        Args:
            observation: as of `predict`.
            state: the recurrent states (N, S) before it, from `predict`; None at the beginnings of episodes.
        """
        return self._predictor(self.member_ref()).value(observation, state)

    def _predictor(self, ref: MemberRef) -> Predictor:
        if self._acting is None or self._acting.ref != ref:
            self._acting = Predictor(*ref, str(self))
        return self._acting

    def player(self) -> Callable[[Any], Any]:
        """Return a function that acts greedily through one episode.

        A recurrent policy remembers what it observed.
        """
        return player(Predictor(*self.member_ref(), str(self)))

    def eval_loss(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the loss and its parts on a batch.

        The batch is tensors (B, ...), in the form that the algorithm's `loss` takes.
        """
        learner, member = self.member_ref()
        stacked = {name: x.unsqueeze(0).expand(learner.members, *x.shape) for name, x in batch.items()}
        with torch.no_grad(), one_thread():
            losses, report = learner.loss(stacked)
        return {name: float(x[member]) for name, x in {"loss": losses, **report}.items()}

    @property
    def model(self) -> dict[str, Tensor]:
        """The networks' parameters by name; copies."""
        learner, member = self.member_ref()
        return {name: view.detach().clone() for name, view in learner.network_views(member).items()}

    def parameters(self) -> list[Tensor]:
        """Return the networks' parameters; copies."""
        return list(self.model.values())

    def policy(self) -> dict[str, Tensor]:
        """Return `model` with the statistics of observations; copies, by name."""
        learner, member = self.member_ref()
        return {name: view.detach().to("cpu", copy=True) for name, view in learner.policy_views(member).items()}

    def save_policy(self, path: str | os.PathLike[str]) -> Path:
        """Write `policy` as safetensors: weights only, not resumable."""
        return write_policy(path, self.policy(), self.about())

    def export_policy(self, path: str | os.PathLike[str], format: str | None = None, particle: int = 0) -> Path:
        """Write the policy to a file, and return its path.

        Args:
            path: of the file.
            format: "safetensors", weights as of `save_policy`; or "torchscript" or "onnx", programs from observations
                to greedy actions that run without Rekindle, see `deployment.exporting`; None: as the ending says,
                .safetensors, .pt or .onnx.
            particle: which of SVPG's acts; the weights are those of all.
        """
        form = format_of(path, format, str(self))
        if form == "safetensors":
            return self.save_policy(path)
        policy = self.policy()
        alone = self.learner(self.env, [self.seed], [self.identity.hyperparameters])  # on the CPU, without the others
        alone.adopt(0, policy)
        return write_program(path, form, alone, particle, self.about())

    def about(self) -> dict[str, Any]:
        """Return the notes that are written with a policy."""
        return {"task": self.name, "env": self.env.id, "uid": self.uid, "epochs": self.epochs, "state": self.digest}

    def report(self) -> dict[str, Any]:
        """Return what is known of the task, as JSON."""
        return {
            "uid": self.uid,
            "task": self.name,
            "env": self.env.to_json(),
            "seed": self.seed,
            "epochs": self.epochs,
            self.learner.unit: self.work,
            "resumed": self.resumed,
            "inexact": self.inexact,
            "bad": str(self.bad) if self.bad else None,
            "hyperparameters": None if self._identity is None else unflatten(self._identity.values),
            "metrics": self.metrics,
        }

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = [
            f"{self}: {self.epochs} epochs, {self.work} {self.learner.unit.replace('_', ' ')}"
            + (", resumed" if self.resumed else "")
        ]
        lines += [f"  not bit-exact since {change}" for change in self.inexact]
        lines += [f"  {name} = {value}" for name, value in (self._identity.values if self._identity else {}).items()]
        lines += [f"  {name}: {value:.6g}" for name, value in self.metrics.items()]
        return "\n".join(lines)
