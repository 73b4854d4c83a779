"""Base class of everything that trains, with or without environments.

A learner declares `hyperparameters` and `parts`, builds its parts in `build`, does one iteration in `iterate`, and
measures the result in `score`. This module adds seeds, counters, epochs, mean metrics and the state. `Learner` adds
environments; a task without one derives from this class, as `examples.digits` does.

The metrics of an epoch are the total work done, under the name of its unit, and the means of the values that `iterate`
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from ..spaces import Space, flatten
from .checkpoint.member_state import Part
from .checkpoint.state import Tree, check_same_form
from .checkpoint.storage import Metrics
from .checkpoint.torch_state import part_of
from .cuda.graphs import collect_graphs
from .cuda.loading import use_batch_invariant_operators
from .envs import EnvSpec
from .envs.base.envs import Envs, StepResult
from .envs.classic.envs import is_classic
from .errors import LARGEST, LOWER_RATES, EpisodesLost, StateMismatch, TaskError, UnsupportedSpace
from .explanations import explanation
from .hyperparameters import stack_hyperparameters
from .learner_state import check_counters
from .rng import streams
from .runtime import EVALUATION_ENVS, EVALUATION_EPISODES
from .runtime.jax_programs import forget_programs
from .runtime.metric_means import Tally
from .runtime.own_code import named_digest
from .runtime.progress import tick


def statistics_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the running statistics of a module by name; views."""
    yield from ((name, x) for name, x in module.named_buffers() if x.is_floating_point())


class MemberRef(NamedTuple):
    """A learner and the index of one of its members."""

    learner: BaseLearner
    member: int


class BaseLearner:
    """P members of equal structure that train as one batched computation.

    Attributes:
        hyperparameters: search space with its defaults.
        parts: names of attributes that may hold state: implementations of `Part`, torch modules and optimizers.
        refillable: names of parts that a checkpoint may leave out, because training fills them again.
        scratch: names of attributes that are caches, not state.
        objective: name of the quantity that `score` measures.
        direction: "maximize" or "minimize".
        bounds: least and greatest value that the objective can have, such as (0, 1) for an accuracy; None where none is
            known. Intervals end there.
        unit: name of the counter of work done, an attribute that starts at 0. `iterate` advances it, unless it is
            "iterations", which `run_epoch` counts.
        code: digests of code that the learner runs and that its module does not contain, by description.
        batched: whether members can train in one computation. If not, each trains alone, so P is 1 and hyperparameters
            are (1, 1).
        needs_env: whether the algorithm learns in an environment; None if an environment is optional.
        compiled: whether it may compute with kernels.
        hp: the members' hyperparameters: structural ones as plain values, the others as (P, 1) tensors.
        epoch_size: units of work in an epoch; set in `build`.
        iterations, epochs: counts so far; all members of a learner are always at the same point.
        holders: tasks whose states it has; what its surroundings use is freed with the last.
        eval_episodes: number of episodes of an evaluation, unless it is asked for others.
        eval_envs: most environments that an evaluation steps at the same time.
    """

    hyperparameters: ClassVar[Space]
    parts: ClassVar[tuple[str, ...]] = ()
    refillable: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[tuple[str, ...]] = ()
    objective: ClassVar[str]
    direction: ClassVar[str] = "maximize"
    bounds: ClassVar[tuple[float | None, float | None]] = (None, None)
    unit: ClassVar[str] = "iterations"
    code: ClassVar[Mapping[str, str]] = MappingProxyType({})
    batched: ClassVar[bool] = True
    needs_env: ClassVar[bool | None] = False
    compiled: ClassVar[bool] = True
    epoch_size: int = 1
    iterations: int
    epochs: int
    eval_episodes: int = EVALUATION_EPISODES
    eval_envs: int = EVALUATION_ENVS

    def __init_subclass__(cls, **options: Any) -> None:
        """Explain hyperparameters that bring no text of their own."""
        super().__init_subclass__(**options)
        if isinstance(space := vars(cls).get("hyperparameters"), Space):
            cls.hyperparameters = space.explained(explanation)

    @classmethod
    def files(cls) -> Mapping[str, str]:
        """Return digests of the user's code that trains, by file or definition."""
        return named_digest(cls)

    @classmethod
    def resume_differs(cls) -> str | None:
        """Return what a resume was measured to change; "" for nothing.

        It is None unless it was measured.
        """
        return None

    @classmethod
    def uses_kernels(cls, env: EnvSpec) -> bool:
        """Return whether kernels compute its networks or its environments."""
        return cls.compiled or is_classic(env)

    @classmethod
    def check_machine(cls) -> None:
        """Raise TaskError if this machine lacks what training starts."""

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        values: Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
        env_processes: int = 0,
    ):
        """Build the members.

        Args:
            env: environment; `EnvSpec.none()` without one.
            seeds: one seed per member.
            values: complete hyperparameters of each member; the structural ones must be equal.
            device: torch device.
            env_processes: number of processes that step the environments; 0 steps them in this process.
        """
        self.env, self.seeds, self.device = env, list(seeds), torch.device(device)
        if self.device.type == "cuda":
            # Also for a learner of one member: the operators are replaced for the whole process, so without them here
            # its bits would depend on whether another task has replaced them.
            use_batch_invariant_operators()
            collect_graphs()
        self.members, self.env_processes = len(self.seeds), env_processes
        self.refilling = False  # whether the members were loaded without what is `refillable`
        self.holders = WeakSet[Any]()
        self.hp = stack_hyperparameters(self.space_in(env), values, self.device, self.batched)
        self.assemble(values)

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Create counters and parts.

        Args:
            values: complete hyperparameters of each member.
        """
        for name in self.counters():
            setattr(self, name, 0)
        self.tally = Tally(self.members)  # since the epoch began
        self.build()

    @classmethod
    def counters(cls) -> tuple[str, ...]:
        """Return the names of the counters."""
        return tuple(dict.fromkeys((cls.unit, "iterations", "epochs")))

    @classmethod
    def space_in(cls, env: EnvSpec) -> Space:
        """Return the hyperparameters for an environment."""
        return cls.hyperparameters

    @classmethod
    def units(cls, env: EnvSpec) -> tuple[str, ...]:
        """Return the names of data in units of the bounds of spaces."""
        return ()

    @classmethod
    def most_epochs(cls, env: EnvSpec) -> int | None:
        """Return the largest number of epochs; None if there is no limit."""
        return None

    @classmethod
    def further_objectives(cls, env: EnvSpec) -> list[str]:
        """Return further quantities that evaluation measures.

        These are, for example, the returns of behaviours.
        """
        return []

    @classmethod
    def rewards_in(cls, envs: Envs) -> Callable[[StepResult], np.ndarray]:
        """Return a function from a step to rewards, (P, N, A).

        A is the number of agents that get rewards of their own, usually 1.
        """
        return lambda step: step.reward[..., None]

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Raise ValueError if hyperparameters contradict each other."""

    @classmethod
    def check_presence(cls, env: EnvSpec) -> None:
        """Raise UnsupportedSpace if an environment is missing or not wanted."""
        if cls.needs_env and not env:
            raise UnsupportedSpace(f"{cls.algorithm()} learns in an environment, such as CartPole-v1, but got none")
        if cls.needs_env is False and env:
            raise UnsupportedSpace(f"{cls.algorithm()} learns without an environment, but got {env.id}; leave it out")

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        """Raise UnsupportedSpace if the algorithm cannot learn in the environment."""

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        """Raise UnsupportedSpace if the hyperparameters do not suit the environment."""

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> Collection[str]:
        """Return searched hyperparameters that have no effect in an environment.

        Args:
            env: environment.
            fixed: values that are not searched, by dotted name.
        """
        return ()

    @classmethod
    def open_space(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> Space:
        """Return the hyperparameters that are not fixed.

        Those without effect are not searched; otherwise equal results would have several uids.
        """
        return cls.space_in(env).fix(fixed).unsearched(cls.without_effect(env, flatten(fixed)))

    @classmethod
    def algorithm(cls) -> str:
        """Return the algorithm's name for error messages."""
        return cls.__name__.removesuffix("Learner")

    # --- what a task declares ---

    def build(self) -> None:
        """Create the parts, using the members' own random streams only."""
        raise NotImplementedError

    def iterate(self) -> Mapping[str, Tensor]:
        """Do one iteration, and return its metrics, each (P,).

        It must advance the unit's counter, unless the unit is "iterations".
        """
        raise NotImplementedError

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,), and its metrics, each (P,).

        Args:
            batch: tensors (P, B, ...) by name.
        """
        raise NotImplementedError

    def score(self) -> np.ndarray | None:
        """Return each member's objective, (P,).

        It uses only data that training never uses, and changes no state. None means that it takes episodes to measure.
        """
        raise NotImplementedError

    # --- random numbers ---

    def keys(self, purpose: str) -> streams.Bits:
        """Return the members' keys (P,) of the random stream with this purpose."""
        return streams.keys(self.seeds, purpose)

    @contextmanager
    def torch_seed(self, *purpose: str | int) -> Iterator[None]:
        """Seed torch's own generator from the first member's stream, then restore it.

        Use it for torch's initializations, permutations and dropout, in learners whose members train alone. Pass a
        counter to get new numbers each time: ``with self.torch_seed("order", self.epochs):``.

        Args:
            purpose: path of the random stream.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(streams.keys(self.seeds, *purpose)[0] >> np.uint64(1)))
            yield

    # --- epochs ---

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        """Train to the end of the epoch, and return each member's metrics.

        Args:
            stop: called after each iteration; if it returns true and the state can be saved there, training stops.

        Returns:
            The metrics, or None if training stopped before the end of the epoch.
        """
        forget_programs()
        if not self.tally.count:
            self.begin_epoch()
        while getattr(self, self.unit) < (self.epochs + 1) * self.epoch_size:
            self.tally.add(self.iterate())
            self.iterations += 1
            tick()
            if stop() and self.is_whole():
                return None
        self.epochs += 1
        self.end_epoch()
        return self.take_metrics()

    @contextmanager
    def training(self, epochs: int) -> Iterator[None]:
        """Prepare for training to a total of epochs, and clean up."""
        yield

    def begin_epoch(self) -> None:
        """Prepare the next epoch."""

    def end_epoch(self) -> None:
        """Finish the epoch that was just counted."""

    def is_whole(self) -> bool:
        """Return whether the state can be saved within an epoch."""
        return True

    @property
    def within_epoch(self) -> bool:
        """True if the state lies within an epoch, as after a signal."""
        return self.tally.count > 0

    def take_metrics(self) -> list[Metrics]:
        """Return each member's metrics of the epoch, and reset their sums."""
        return [{self.unit: float(getattr(self, self.unit))} | means for means in self.tally.take()]

    # --- state ---

    @property
    def live_parts(self) -> dict[str, Part]:
        """Parts that hold state under these hyperparameters, by name.

        The other names in `parts` refer to None or null objects.
        """
        parts = {name: part_of(getattr(self, name)) for name in self.parts}
        return {name: part for name, part in parts.items() if part is not None}

    def network_views(self, member: int) -> dict[str, Tensor]:
        """Return one member's network parameters by name; views."""
        modules = self._modules().items()
        return {f"{name}.{path}": x.detach() for name, part in modules for path, x in part.named_parameters()}

    def policy_views(self, member: int) -> dict[str, Tensor]:
        """Return the tensors that a warm start loads, by name; views.

        Besides parameters these are running statistics, such as those of batch normalization.
        """
        statistics = {f"{name}.{path}": x for name, part in self._modules().items() for path, x in statistics_of(part)}
        return self.network_views(member) | statistics

    def _modules(self) -> dict[str, nn.Module]:
        return {name: module for name in self.parts if isinstance(module := getattr(self, name), nn.Module)}

    def demonstration_views(self, member: int) -> dict[str, Tensor]:
        """Return one member's demonstrations by name; views."""
        return {}

    @torch.no_grad()
    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        """Load parts of a policy and demonstrations into a new member.

        Raises:
            StateMismatch: a name or a shape does not fit.
        """
        views = {**self.policy_views(member), **self.demonstration_views(member)}
        for name, tensor in policy.items():
            if name not in views or not isinstance(tensor, Tensor) or views[name].shape != tensor.shape:
                have = tuple(views[name].shape) if name in views else "none"
                raise StateMismatch(
                    f"{self.algorithm()}: the policy that it starts from has {name} of shape "
                    f"{tuple(getattr(tensor, 'shape', ()))}, but the task has {have}"
                )
        for name, tensor in policy.items():
            views[name].copy_(tensor)

    def member_state(self, member: int) -> Tree:
        """Return one member's complete state: everything its future depends on.

        Tensors may be copies or views, see `checkpoint.chunks`.
        """
        counters = {name: getattr(self, name) for name in self.counters()}
        tree = {"counters": counters, "tally": self.tally.member_state(member), **self.surroundings(member)}
        return tree | {name: part.member_state(member) for name, part in self.live_parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        """Load a state into one member.

        Raises:
            StateMismatch: the state does not fit; the learner must not be used afterwards.
        """
        subject, expected, parts = type(self).__name__, self.member_state(member), self.live_parts
        left_out = self.left_out(tree)
        if missing := [name for name in expected if name not in tree and name not in left_out]:
            raise StateMismatch(f"{subject}: the state lacks {', '.join(missing)}")
        if member > 0 and bool(left_out) != self.refilling:
            raise StateMismatch(
                f"{subject}: members must agree on whether their checkpoints have replay buffers; train those without "
                "in cohorts of their own"
            )
        self.refilling = bool(left_out)
        parts = {name: part for name, part in parts.items() if name not in left_out}
        for name in ("counters", *parts):
            if not getattr(parts.get(name), "checks_form", False):
                check_same_form({name: expected[name]}, {name: tree[name]}, subject)
        check_counters(tree, subject, self.counters())
        counters = tree["counters"]
        if member > 0 and counters[self.unit] != getattr(self, self.unit):
            work = f"{counters[self.unit]} and {getattr(self, self.unit)} {self.unit}"
            raise StateMismatch(f"members must be at the same point, but got {work}")
        for name in self.counters():
            setattr(self, name, counters[name])
        self.load_surroundings(member, tree)
        for name, part in {"tally": self.tally, **parts}.items():
            try:
                part.load_member(member, tree[name])
            except TaskError:
                raise
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise StateMismatch(f"{subject}: the state of {name} has another form: {error!r}") from None
        if left_out:
            self.refill(member)

    def left_out(self, tree: Mapping[str, Any]) -> list[str]:
        """Return the parts that the state was stored without.

        These are all refillable parts or none.
        """
        names = [name for name in self.refillable if name in self.live_parts]
        return [] if any(name in tree for name in names) else names

    def refill(self, member: int) -> None:
        """Prepare a new member to refill the parts that its state lacks."""
        raise NotImplementedError

    def surroundings(self, member: int) -> Tree:
        """Return the state of one member's surroundings, such as environments, by name."""
        return {}

    def load_surroundings(self, member: int, tree: Mapping[str, Any]) -> None:
        """Load the state of one member's surroundings."""

    def inexact(self, member: int) -> list[str]:
        """Return reasons why a member is not bit-exact, with remedies."""
        return []

    def advice(self) -> tuple[str, ...]:
        """Return what users should know about the members' surroundings."""
        return ()

    def played(self) -> str:
        """Return the digest of the self-test's episodes, or ""."""
        return str(getattr(getattr(self, "envs", None), "played", ""))

    def with_new_episodes(self, tree: Mapping[str, Any], member: int = 0) -> Tree:
        """Load a state with new episodes in place of its running ones.

        Returns:
            The state then. The old episodes are truncated in it, and it says that it is no longer exact.
        """
        raise NotImplementedError

    def open(self, envs: Envs) -> None:
        """Open environments again, with new episodes if need be."""
        try:
            envs.open()
        except EpisodesLost:
            for member in range(self.members):
                self.with_new_episodes(self.member_state(member), member)

    def close(self) -> None:
        """Free what the surroundings use, until they are used again."""

    def cure(self, member: int) -> str:
        """Return advice for a member whose numbers are not finite."""
        return LOWER_RATES

    def find_nonfinite(self, metrics: Sequence[Metrics]) -> list[str | None]:
        """Return a description of each member's first non-finite number, or None.

        The members' metrics are searched first, then their state.
        """
        problems: list[str | None] = [
            next((f"{name} became {value}" for name, value in row.items() if not abs(value) <= LARGEST), None)
            for row in metrics
        ]
        for name, part in self.live_parts.items():
            for path, tensor in getattr(part, "tensors", {}).items():
                if not tensor.is_floating_point():
                    continue
                finite = tensor.isfinite().reshape(self.members, -1).all(1).tolist()
                for member in (i for i, whole in enumerate(finite) if not whole):
                    problems[member] = problems[member] or f"{name}.{path} holds a number that is not finite"
        return problems
