"""The state of a task as data: taken out, checked, and taken over, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .checkpoint.state import Packed, Tree, pack, settled
from .errors import NotInitialized, StateMismatch
from .identity import EnvLike, Identified
from .learner import Learner, check_counters
from .runtime.guard import BadResumeGuard
from .signals.demonstrations import Demonstrations
from .warm_start import Taken, WarmStart, adopt, demonstrations_of, networks_of, policy_of, policy_tree, take

STATE_FORMAT = 1


class Seat(NamedTuple):
    """Where a task's state lives while it trains."""

    learner: Learner
    member: int


class Stateful(Identified):
    """A task's state: in its seat, a member of a learner; before that is built, a tree; at first, none."""

    def __init__(self, env: EnvLike, seed: int, device: str, fixed: Mapping[str, Any]):
        super().__init__(env, seed, device, fixed)
        self.bad: BaseException | None = None
        self.between_steps = True
        self.seat: Seat | None = None
        self._state: Tree | None = None  # of a learner that is not built yet
        self.taken: Taken | None = None

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

    def build_learner(self, tasks: Sequence[Stateful]) -> Learner:
        """A learner that holds these tasks' states, this one's among them; all are moved into it."""
        seeds, values = [t.seed for t in tasks], [t._values() for t in tasks]
        learner = self.learner(self.env, seeds, values, self.device, max(t.env_processes for t in tasks))
        for member, task in enumerate(tasks):
            state = task._member_state()
            if state is not None:
                learner.load_member(member, state)
        for member, task in enumerate(tasks):
            task.seat, task._state = Seat(learner, member), None
        return learner

    def _begin_with(self, start: WarmStart | None, shown: Demonstrations | None) -> Packed:
        """Seats the task in a new learner whose networks are those of the source, and which is shown demonstrations.

        Both become part of its identity.
        """
        learner = self._new_learner()
        policy, networks = policy_of(learner, 0), list(networks_of(learner, 0))
        taken, self.taken = ({}, Taken()) if start is None else take(start, policy, networks, str(self))
        if shown is not None:
            parts = shown.parts(demonstrations_of(learner, 0), learner.envs.action_space, str(self))
            taken, self.taken = {**taken, **parts}, replace(self.taken, loaded=[*self.taken.loaded, *parts])
        packed = pack(policy_tree(taken))
        if self._start not in (None, packed.digest):
            raise StateMismatch(
                f"{self}: init was told to start from {str(self._start)[:12]}, but warm_start is "
                f"{packed.digest[:12]}; give one of them"
            )
        adopt(learner, 0, taken)
        self.seat, self._start = Seat(learner, 0), packed.digest
        return packed

    def beginning(self) -> Tree:
        """What a task that has not trained was given to begin with, as the tree that is stored and named by its digest.

        None of it is there if neither a warm start nor demonstrations were given.
        """
        seat, names = self._seated(), [] if self.taken is None else self.taken.loaded
        views = {**policy_of(*seat), **demonstrations_of(*seat)}
        return policy_tree({name: views[name].detach().to("cpu", copy=True) for name in names})

    def probe(self) -> None:
        """Makes environments and networks once, and raises what keeps this machine from training the task."""
        self._new_learner()

    def _new_learner(self) -> Learner:
        return self.learner(self.env, [self.seed], [self._values()], self.device, self.env_processes)

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
                "load_state_dict(state, perturb=True) brings it, or warm_start=... if it is a policy"
            )
        if self.seat is None and self._state is None and self._values().get("demonstrated_steps"):
            raise NotInitialized(
                f"{self} learns from demonstrations, which it has not got; give demonstrations=FILE when it is made"
            )
        return self.seat.learner.member_state(self.seat.member) if self.seat is not None else self._state

    def fail(self, error: BaseException) -> None:
        """Marks the task bad: its state is never used again."""
        self.bad = error

    def state_dict(self) -> Tree:
        """All that the future depends on, as a tree of copied tensors and JSON values; see `tasks.state`."""
        self._values()  # outside of the guard: asking too early breaks nothing
        with BadResumeGuard(self):
            return settled(self._live_state())

    def _live_state(self) -> Tree:
        """The state with views of live data in it, see `tasks.segments`."""
        seat = self._seated()
        return {
            "format": STATE_FORMAT,
            "identity": self.identity,
            "structure": self.structure,
            "learner": seat.learner.member_state(seat.member),
        }

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
            fresh = self._new_learner()
            unknown = sorted(learner_state.keys() - fresh.member_state(0).keys())
            if unknown and strict:
                raise StateMismatch(
                    f"{self}: the state has unknown {', '.join(unknown)}; pass strict=False to leave it out"
                )
            fresh.load_member(0, {name: part for name, part in learner_state.items() if name not in unknown})
            if perturb and state["identity"] != self.identity:
                self._branch_from(state)
            self.seat, self._state = Seat(fresh, 0), None

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

    def _branch_from(self, state: Mapping[str, Any]) -> bool:
        """Gives the task the identity of "these hyperparameters, from that state on"; False if it has it already."""
        start = pack(state).digest
        if start == self._start:
            return False
        self._start = start
        self.uid = self._hash()
        return True

    @property
    def digest(self) -> str:
        """sha256 over the canonical form of the whole state: equal for equal bits."""
        return pack(self.state_dict()).digest


def _difference(name: str, mine: Any, theirs: Any) -> str:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return f"{name}.{key} is {theirs.get(key)!r} in the state and {mine.get(key)!r} in the task"
    return f"{name} is {theirs!r} in the state and {mine!r} in the task"
