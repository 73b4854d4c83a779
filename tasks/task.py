"""The face of an algorithm: what is trained and how, and the contract of resuming it."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, flatten
from .cohort import Cohort, Context, EpochEvent, one_thread
from .envs import EnvSpec, spaces_of
from .envs.encode import Actions, Observations
from .errors import NotInitialized, StateMismatch, TaskError
from .fingerprint import changes, fingerprint
from .guard import BadResumeGuard
from .learner import EVALUATION_EPISODES, Learner, check_counters
from .state import Packed, Tree, canonical_json, pack, settled, unpack
from .storage import Lease, Metrics, Storage, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

STATE_FORMAT = 1
FIDELITY = "epochs"


class Seat(NamedTuple):
    """Where a task's state lives while it trains."""

    learner: Learner
    member: int


class Task:
    """A resumable training of one algorithm, on one environment, with one seed.

        task = PPO("CartPole-v1", seed=1, storage=Store("sqlite:///studies.db"))
        task.init(gamma=0.98, optimizer={"lr": 1e-3})
        task.fit(epochs=9)      # up to 9 epochs in all
        task.fit(epochs=27)     # 18 more

    Attributes:
        name, version: of the algorithm; a version changes when the same hyperparameters would give other results.
        learner: the algorithm's mathematics.
        hyperparameters: the complete nested values, None before `init`.
        uid: names the result: a hash of everything that it depends on but the number of epochs.
        resumed: whether `init` found a checkpoint to carry on from.
        inexact: versions or hardware that changed since it was written, so that the last bits may differ from then on.
        history: (epoch, metrics) of every epoch done.
        bad: the exception that broke the task, or None.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    learner: ClassVar[type[Learner]]

    def __init__(
        self,
        env: str | EnvSpec | Mapping[str, Any],
        *,
        seed: int = 0,
        device: str = "cpu",
        storage: Storage | None = None,
        logger: Callable[[EpochEvent], None] | None = None,
        **fixed: Any,
    ):
        """*What* is trained.

        Args:
            env: a Gymnasium id, or an EnvSpec, or its JSON.
            seed: of all randomness; 0 to 2**63 - 1.
            device: a torch device.
            storage: keeps checkpoints, metrics and events under the uid.
            logger: is called with an EpochEvent at each epoch's end.
            fixed: hyperparameters to take out of the space, nested like it.
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"{self.name}: seed must be an integer from 0 to 2**63 - 1, but got {seed!r}")
        self.env, self.seed, self.storage, self.logger = EnvSpec.of(env), seed, storage, logger
        self.device = torch.device(device)
        self.fixed = flatten(fixed)
        self._space = self.learner.hyperparameters.fix(fixed)
        self.hyperparameters: dict[str, Any] | None = None
        self.uid = ""
        self.suggested_epochs: int | None = None
        self.resumed = False
        self.inexact: list[str] = []
        self.history: list[tuple[int, Metrics]] = []
        self.written = 0  # how many rows of the history are in the storage
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.bad: BaseException | None = None
        self.between_steps = True
        self.seat: Seat | None = None
        self._state: Tree | None = None  # of a learner that is not built yet
        self._start: str | None = None
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return f"{self.name} on {self.env.id}, seed {self.seed}" + (f" ({self.uid[:8]})" if self.uid else "")

    # --- hyperparameters ---

    def get_space(self, **fidelities: Any) -> Space:
        """The hyperparameters still open, nested, and the fidelities named, e.g. ``epochs=fidelity(1, 27)``."""
        return self._space.searched().extend(**fidelities)

    def init(self, *, uid: str | None = None, start: str | None = None, **hyperparameters: Any) -> Self:
        """*How* it is trained. Missing hyperparameters take their defaults; None for a group means all its defaults.

        Errors name the parameter, its range and the nearest known name. With a storage that holds a checkpoint of this
        uid the task carries on from it, and `resumed` is true. `start` makes it a branch of another task: it names the
        digest of the state that it starts from, which the storage holds as its first checkpoint, or `load_state_dict`
        brings.
        """
        with BadResumeGuard(self):
            pass
        if self.hyperparameters is not None:
            raise StateMismatch(f"{self} is initialized already; build a new task to train with other hyperparameters")
        given = {name: value for name, value in hyperparameters.items()
                 if not (value is None and isinstance(self.learner.hyperparameters.get(name), Space))}  # fmt: skip
        self.suggested_epochs = given.pop(FIDELITY, None)
        values = self.learner.hyperparameters.validate({**flatten(given), **self._without_overwriting(given)})
        self.learner.check(values)
        self.learner.check_env(self.env)
        self.hyperparameters, self._start = values, start
        self.uid = uid or self._hash()
        try:
            self._open()
        except BaseException:
            self.release()  # another try, or another process, shall find the task free
            self.hyperparameters, self.uid, self._start = None, "", None
            raise
        return self

    def _without_overwriting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fixed hyperparameters; ValueError if `given` sets one of them to something else."""
        for name, value in flatten(given).items():
            if name in self.fixed and self.fixed[name] != value:
                raise ValueError(f"{self}: {name} was fixed to {self.fixed[name]!r} when the task was made, "
                                 f"but init got {value!r}")  # fmt: skip
        return self.fixed

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on but the epochs, as JSON."""
        if self.hyperparameters is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        identity = {"task": self.name, "version": self.version, "env": self.env.to_json(), "seed": self.seed,
                    "hyperparameters": flatten(self.hyperparameters)}  # fmt: skip
        return identity | ({"start": self._start} if self._start else {})

    def _hash(self) -> str:
        return uid_of(self.identity)

    @property
    def structure(self) -> str:
        """Equal for tasks that can train in one cohort, device aside."""
        structural = self.learner.hyperparameters.structure(self._values())
        return canonical_json([self.name, self.version, self.env.to_json(), structural]).decode()

    def structural_difference(self, other: Task) -> list[str]:
        """Names of what keeps two tasks from training in one cohort."""
        names = [n for n in ("name", "version", "env", "device") if getattr(self, n) != getattr(other, n)]
        mine, theirs = (t.learner.hyperparameters.structure(t._values()) for t in (self, other))
        return names + sorted(k for k in mine.keys() | theirs.keys() if mine.get(k, ...) != theirs.get(k, ...))

    def _values(self) -> dict[str, Any]:
        if self.hyperparameters is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        return self.hyperparameters

    # --- training ---

    @property
    def epochs(self) -> int:
        """Epochs done so far."""
        return self._counter("epochs")

    @property
    def env_steps(self) -> int:
        """Environment steps done so far."""
        return self._counter("env_steps")

    def _counter(self, name: str) -> int:
        if self.seat is not None:
            return int(getattr(self.seat.learner, name))
        return int(self._state["counters"][name]) if self._state else 0

    @property
    def metrics(self) -> Metrics:
        """Those of the last epoch; empty before the first."""
        return self.history[-1][1] if self.history else {}

    def fit(self, epochs: int | None = None, context: Context | None = None) -> Metrics:
        """Trains until `epochs` epochs are done in all, which may need nothing; returns the last epoch's metrics.

        Without `epochs` it takes those that `init` was given with the sampled space. `context` is called with an
        EpochEvent at each epoch's end. SIGTERM and SIGINT are obeyed between two steps, after the state is saved.
        """
        if epochs is None:
            epochs = self.suggested_epochs
        if epochs is None:
            raise ValueError(f"{self}: fit needs epochs, the total to reach, unless init(epochs=...) gave them")
        self._values()
        Cohort([self]).fit(epochs, context)
        return self.metrics

    def evaluate(self, episodes: int = EVALUATION_EPISODES) -> float:
        """Mean undiscounted return of greedy episodes on seeds that no training uses; changes no state."""
        if episodes < 1:
            raise ValueError(f"{self}: episodes must be at least 1, but got {episodes!r}")
        place = self._seated()
        with one_thread():
            return float(place.learner.evaluate(episodes)[place.member])

    def act(self, observation: Any) -> Any:
        """The greedy action for one observation, both as the Gymnasium environment gives and takes them."""
        place, spaces = self._seated(), spaces_of(self.env)
        seen = Observations(spaces.observation, self.env.id)
        batch = np.empty((place.learner.members, 1, *seen.shape), seen.dtype)
        for row in batch:  # the other members' actions are thrown away
            seen.write(observation, row[0])
        with one_thread():
            actions = place.learner.act(batch)[place.member]
        return Actions(spaces.action, self.env.id).decode(actions)[0]

    def eval_loss(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The loss and its parts on a batch of (B, ...) tensors, as the algorithm's `loss` takes them."""
        place = self._seated()
        stacked = {name: x.unsqueeze(0).expand(place.learner.members, *x.shape) for name, x in batch.items()}
        with torch.no_grad(), one_thread():
            losses, report = place.learner.loss(stacked)
        return {name: float(x[place.member]) for name, x in {"loss": losses, **report}.items()}

    def build_learner(self, tasks: Sequence[Task]) -> Learner:
        """A learner that holds these tasks' states, this one's among them; all are moved into it."""
        learner = self.learner(self.env, [t.seed for t in tasks], [t._values() for t in tasks], self.device)
        for member, task in enumerate(tasks):
            state = task._member_state()
            if state is not None:
                learner.load_member(member, state)
        for member, task in enumerate(tasks):
            task.seat, task._state = Seat(learner, member), None
        return learner

    def _seated(self) -> Seat:
        self._values()
        if self.seat is None:
            self.build_learner([self])
        assert self.seat is not None
        return self.seat

    def _member_state(self) -> Tree | None:
        if self._start is not None and self.seat is None and self._state is None:
            raise NotInitialized(
                f"{self} starts from the state {self._start[:12]} of another task, which it has not got; "
                "load_state_dict(state, perturb=True) brings it"
            )
        return self.seat.learner.member_state(self.seat.member) if self.seat is not None else self._state

    # --- state ---

    def state_dict(self) -> Tree:
        """All that the future depends on, as a tree of copied tensors and JSON values; see `tasks.state`."""
        self._values()  # outside of the guard: asking too early breaks nothing
        with BadResumeGuard(self):
            return settled(self._live_state())

    def _live_state(self) -> Tree:
        """The state with views of live data in it, see `tasks.segments`."""
        seat = self._seated()
        return {"format": STATE_FORMAT, "identity": self.identity, "structure": self.structure,
                "learner": seat.learner.member_state(seat.member)}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, perturb: bool = False) -> None:
        """Takes over a state; the argument is left alone, and nothing is changed if it does not fit.

        A state of another algorithm, version, environment, structure or format is refused with StateMismatch; so is one
        of other hyperparameters or another seed, unless `perturb` allows those on purpose: the task then gets an
        identity, and a uid, of its own that names the state it started from. With `strict` false a state may lack
        nothing, but may hold more than is needed.
        """
        self._values()
        with BadResumeGuard(self):
            self._refuse_foreign(state, perturb)
            learner_state = {**state["learner"]}
            fresh = self.learner(self.env, [self.seed], [self._values()], self.device)
            unknown = sorted(learner_state.keys() - fresh.member_state(0).keys())
            if unknown and strict:
                raise StateMismatch(
                    f"{self}: the state has unknown {', '.join(unknown)}; pass strict=False to leave it out"
                )
            fresh.load_member(0, {name: part for name, part in learner_state.items() if name not in unknown})
            if perturb and state["identity"] != self.identity:
                self._branch_from(state)
            self.seat, self._state = Seat(fresh, 0), None
            self.history = [row for row in self.history if row[0] <= self.epochs]
            self.written = min(self.written, len(self.history))

    def _refuse_foreign(self, state: Mapping[str, Any], perturb: bool) -> None:
        if missing := sorted({"format", "identity", "structure", "learner"} - state.keys()):
            raise StateMismatch(
                f"{self}: a state must have format, identity, structure and learner, but lacks {', '.join(missing)}"
            )
        if state["format"] != STATE_FORMAT:
            raise StateMismatch(f"{self}: a state must have format {STATE_FORMAT}, but got {state['format']!r}")
        check_counters(state["learner"], str(self))
        if not isinstance(state["identity"], Mapping):
            raise StateMismatch(f"{self}: a state's identity must be a mapping, but got {str(state['identity'])[:80]}")
        mine, theirs = self.identity, dict(state["identity"])
        names = ("task", "version", "env") if perturb else sorted(mine.keys() | theirs.keys())
        for name in names:
            if mine.get(name) != theirs.get(name):
                cure = "" if perturb else "; pass perturb=True to change it on purpose"
                differs = _difference(name, mine.get(name), theirs.get(name))
                raise StateMismatch(f"{self}: the state is of another task: {differs}{cure}")
        if state["structure"] != self.structure:
            raise StateMismatch(
                f"{self}: the state is of another structure, {state['structure']}; it cannot be perturbed into this one"
            )

    def _branch_from(self, state: Mapping[str, Any]) -> None:
        """Gives the task the identity of "these hyperparameters, from that state on"."""
        start = pack(state).digest
        if start == self._start:
            return
        self._start = start
        uid, origin = self._hash(), dict(state["identity"])
        self.events.append(("branch", {
            "from": origin, "parent": uid_of(origin), "epochs": state["learner"]["counters"]["epochs"],
            "state": start, "uid": uid,
        }))  # fmt: skip
        self.release()
        self.uid = uid
        self.history, self.written = [], 0
        if self.storage is not None:
            self._take_lease()

    @property
    def digest(self) -> str:
        """sha256 over the canonical form of the whole state: equal for equal bits."""
        return pack(self.state_dict()).digest

    def pending_write(self) -> Write:
        """The state, and the metrics and events since the last write, for the storage."""
        assert self._lease is not None
        with BadResumeGuard(self):
            packed: Packed = pack(self._live_state())
        events, self.events = self.events, []
        return Write(
            self._lease, self.epochs, packed.manifest, packed.blobs, packed.digest, self.history[self.written :], events
        )

    # --- storage ---

    def _take_lease(self) -> Lease:
        assert self.storage is not None
        lease = self._lease = self.storage.open(self.uid, self.identity)
        weakref.finalize(self, lease.release)
        return lease

    def _open(self) -> None:
        if self.storage is None:
            return
        lease = self._take_lease()
        saved = lease.load()
        now = fingerprint(self.device)
        if saved is None:
            self.events.append(("init", now))
            return
        state = unpack(saved.manifest, saved.fetch)
        self._refuse_foreign(state, perturb=saved.digest == self._start)
        self._state, self.history, self.written = state["learner"], list(saved.metrics), len(saved.metrics)
        self.resumed = True
        self.inexact = changes(saved.fingerprint, now)
        self.events.append(("init", {"epochs": saved.epochs, "digest": saved.digest, "inexact": self.inexact, **now}))

    def check_lease(self) -> None:
        """Raises TaskError if the task has a storage but let go of it, so that nothing it learned could be kept."""
        if self.storage is not None and self._lease is None:
            raise TaskError(
                f"{self} let go of its storage, where another process may train it by now. Build a new task with the "
                "same hyperparameters: it carries on from the last checkpoint"
            )

    def fail(self, error: BaseException) -> None:
        """Marks the task bad and lets go of its lease: a clean one can then carry on from the last good checkpoint."""
        self.bad = error
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

    # --- looking ---

    @property
    def model(self) -> dict[str, Tensor]:
        """The networks' parameters by name; copies."""
        seat = self._seated()
        policy = getattr(seat.learner, "policy")  # noqa: B009 - every learner of this package names its network so
        named: dict[str, Tensor] = policy.parameters.named(seat.member)
        return named

    def parameters(self) -> list[Tensor]:
        """The networks' parameters; copies."""
        return list(self.model.values())

    def set_device(self, device: str) -> None:
        """Moves the task to another torch device; across device types it resumes, but not bit for bit."""
        self._values()
        state = self._member_state()
        self.device, self.seat, self._state = torch.device(device), None, state

    def report(self) -> dict[str, Any]:
        """What is known of the task, as JSON."""
        return {
            "uid": self.uid,
            "task": self.name,
            "env": self.env.to_json(),
            "seed": self.seed,
            "epochs": self.epochs,
            "env_steps": self.env_steps,
            "resumed": self.resumed,
            "inexact": self.inexact,
            "bad": str(self.bad) if self.bad else None,
            "hyperparameters": self.hyperparameters,
            "metrics": self.metrics,
        }

    def summary(self) -> str:
        """A few lines for people."""
        lines = [f"{self}: {self.epochs} epochs, {self.env_steps} env steps" + (", resumed" if self.resumed else "")]
        lines += [f"  not bit-exact since {change}" for change in self.inexact]
        lines += [f"  {name} = {value}" for name, value in flatten(self.hyperparameters or {}).items()]
        lines += [f"  {name}: {value:.6g}" for name, value in self.metrics.items()]
        return "\n".join(lines)


def _difference(name: str, mine: Any, theirs: Any) -> str:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return f"{name}.{key} is {theirs.get(key)!r} in the state and {mine.get(key)!r} in the task"
    return f"{name} is {theirs!r} in the state and {mine!r} in the task"


def uid_of(identity: Mapping[str, Any]) -> str:
    """The uid of the task with this identity, unless it was given another."""
    return hashlib.sha256(canonical_json(identity)).hexdigest()[:20]
