"""Base of every algorithm: P members trained as one batched computation.

An algorithm declares `hyperparameters` and `parts`, makes its parts in `build`, and does one iteration of its paper's
box in `iterate`. Seeds, environments, counters, tallies, evaluation and state are here.

What is reported of an epoch, by member: `env_steps` and `updates` (gradient steps) are totals; `episodes` ended in it,
with the means `episode_return` and `episode_length`; and means over its iterations, of what each algorithm knows:

    policy_loss, value_loss, entropy, value, explained_variance, approx_kl, clip_fraction, lr    on-policy
    rollouts                                of A2C that waits for whole episodes: how many its updates were on
    loss, q, lr; critic_loss, actor_loss, q, alpha, entropy, lr                                  DQN; SAC
    icm_reward, icm_value, icm_loss, icm_value_loss, ...; cloning_loss    of what is beside the environment's reward: of
                                            each signal (icm, rnd, gail), rewards times strength; and of cloning
    grad_norm.NET, grad_norm_clipped.NET    of each network's gradient, before and after max_grad_norm, where there is
                                            one; an algorithm of many short iterations measures every 16th

`return`, of greedy episodes on seeds that no training uses, stands beside those of epochs that were evaluated; see
`evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, flatten, unflatten
from .checkpoint.member_state import Part
from .checkpoint.state import Tree, check_same_form
from .checkpoint.storage import Metrics
from .envs import Envs, EnvSpec, make_envs, spaces_of
from .errors import StateMismatch, UnsupportedSpace
from .experience.normalizers import ObservationNormalizer
from .experience.rollout import Agent
from .rng import streams
from .runtime.episode_window import EpisodeWindow
from .runtime.metric_means import Tally
from .signals.demonstrations import Examples


def stack_hyperparameters(
    space: Space, values: Sequence[Mapping[str, Any]], device: torch.device | str
) -> SimpleNamespace:
    """Stack the hyperparameters of P members.

    Structural ones are plain values, all others tensors (P, 1).

    The record has every hyperparameter of the space, nested; those that do not apply are None.
    """
    columns = [space.dynamic(member) for member in values]
    flat: dict[str, Any] = {**dict.fromkeys(space.flat()), **flatten(values[0])}
    for name in columns[0]:
        flat[name] = torch.tensor([column[name] for column in columns], dtype=torch.float32, device=device).unsqueeze(1)
    return _namespace(unflatten(flat))


def _namespace(values: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: _namespace(x) if isinstance(x, dict) else x for name, x in values.items()})


COUNTERS = ("env_steps", "iterations", "epochs")


def check_counters(tree: Any, where: str) -> None:
    """Raise StateMismatch unless a member's state has all counters."""
    counters = tree.get("counters") if isinstance(tree, Mapping) else None
    for name in COUNTERS:
        count = counters.get(name) if isinstance(counters, Mapping) else None
        if not isinstance(count, int) or not 0 <= count < 2**62:
            raise StateMismatch(f"{where}: counters/{name} must be a int of at least 0, but got {str(count)[:40]}")


class ParametersByName(Protocol):
    """Networks' parameters of P members."""

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the live data."""


class Policy(Protocol):
    """The networks of P members."""

    @property
    def parameters(self) -> ParametersByName:
        """All trained parameters, without those of target networks."""

    def copy_target(self, member: int) -> None:
        """Copy one member's networks into its target networks, if it has any."""


class MemberRef(NamedTuple):
    """One member of a learner."""

    learner: Learner
    member: int


class Learner:
    """P members of one structure.

    Attributes:
        hyperparameters: the algorithm's space, with its defaults.
        parts: names of the attributes that may hold state, see `Part`, beside those of the agent.
        hp: the members' values: structural ones plain, the others (P, 1) tensors.
        env_steps, iterations, epochs: done so far; members of one learner are always at the same point.
        agent: acts for the members; None where `actor` and `truncate_all` are overridden.
        policy: the members' networks; None where nothing is learned, or if an agent has them.
        obs_normalizer: the statistics that scale observations; None where they are not scaled, or if an agent has them.
        demonstrations: those that the members learn from, None without.
        particles: the learner whose members act for these, `num_particles` for each; None: the members act themselves.
        evaluation_envs: the environments of the last evaluation, to be used again.
    """

    hyperparameters: ClassVar[Space]
    parts: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[tuple[str, ...]] = ("evaluation_envs",)  # caches, not state
    agent: Agent | None = None
    policy: Policy | None = None
    obs_normalizer: ObservationNormalizer | None = None
    demonstrations: Examples | None = None
    particles: Learner | None = None
    num_particles: int = 1
    evaluation_envs: Envs | None = None

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        values: Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
        env_processes: int = 0,
    ):
        """Make the members.

        Args:
            env: the environment.
            seeds: of the members.
            values: the complete hyperparameters of each member, equal in their structural part.
            device: a torch device.
            env_processes: the number of processes that step the environments, 0 for this one alone.
        """
        self.env, self.seeds, self.device = env, list(seeds), torch.device(device)
        self.members, self.env_processes = len(self.seeds), env_processes
        self.hp = stack_hyperparameters(self.hyperparameters, values, self.device)
        self.assemble(values)

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Make environments, counters and parts.

        Args:
            values: as the constructor takes them.
        """
        self.envs: Envs = make_envs(self.env, self.seeds, self.hp.num_envs, processes=self.env_processes)
        self.env_steps = self.iterations = self.epochs = 0
        self.tally = Tally(self.members)  # since the epoch began
        self._at_epoch_start = True
        size = vars(self.hp).get("stats_window_size")  # only on-policy algorithms have it
        self.window = EpisodeWindow(self.members, size) if size else None
        if self.window is not None:
            self.envs.on_episode_end = self.window.add
        self.build()

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Raise ValueError for values that contradict each other."""

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        """Raise UnsupportedSpace for an environment that the algorithm cannot act in."""
        spaces_of(env)

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        """Raise UnsupportedSpace for hyperparameters that need another environment."""

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> Collection[str]:
        """Return searched hyperparameters that change nothing in an environment.

        Args:
            env: the environment.
            fixed: values that are not searched, by dotted name.
        """
        return ()

    @classmethod
    def open_space(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> Space:
        """Return the hyperparameters beside the fixed ones.

        Those without effect are not searched, so that one result has one uid.
        """
        return cls.hyperparameters.fix(fixed).unsearched(cls.without_effect(env, flatten(fixed)))

    @classmethod
    def algorithm(cls) -> str:
        """Return the algorithm's name for messages."""
        return cls.__name__.removesuffix("Learner")

    def build(self) -> None:
        """Make the parts, from the members' own streams."""
        raise NotImplementedError

    def iterate(self) -> Mapping[str, Tensor]:
        """Do one iteration, advance `env_steps`, and return metrics, each (P,)."""
        raise NotImplementedError

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss and its metrics.

        Args:
            batch: tensors (P, B, ...).

        Returns:
            The losses (P,), and the metrics (P,).
        """
        raise NotImplementedError

    def actor(
        self, episodes: int, deterministic: bool = True, keys: streams.Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from observations to actions.

        It takes observations (P, episodes, ...) as the environments give them, step by step, and returns actions
        (P, episodes, ...).

        Args:
            episodes: how many are played side by side.
            deterministic: greedy actions, or random ones as in training.
            keys: of the random numbers; None: those of evaluation, the same for every member and every call, see
                `evaluation.evaluation_keys`.
            memory: the recurrent states, as `acting_memory` makes them, which acting advances; None: new ones.
        """
        assert self.agent is not None
        return self.agent.actor(episodes, deterministic, keys, memory)

    def acting_memory(self, episodes: int) -> Any:
        """Return the recurrent states of episodes at their beginnings.

        They are `States`, or anything else without a recurrent policy.
        """
        return None if self.agent is None else self.agent.policy.states(episodes)

    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        """Return v(s), (P, N), of observations (P, N, ...).

        Args:
            obs: as the environments give them.
            memory: the recurrent states before them; they are not advanced.

        Raises:
            UnsupportedSpace: nothing here estimates values.
        """
        if self.agent is None:
            raise UnsupportedSpace(f"{self.algorithm()} on {self.env.id} estimates no values; ask a task with a critic")
        return self.agent.state_values(obs, memory)

    def known_returns(self) -> np.ndarray | None:
        """Return returns (P,) that are known without acting, else None."""
        return None

    def warm_started(self, member: int) -> None:
        """Note that a new member begins with a trained policy."""

    def keys(self, purpose: str) -> streams.Bits:
        """Return the members' keys (P,) of the random stream with this purpose."""
        return streams.keys(self.seeds, purpose)

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        """Train to the end of the epoch, and return each member's metrics.

        None is returned if `stop` asked to stop at a step before the end.
        """
        if self._at_epoch_start:
            self.envs.begin_epoch(np.full(self.members, self.epochs))
            self._at_epoch_start = False
        while self.env_steps < (self.epochs + 1) * self.hp.epoch_steps:
            self.tally.add(self.iterate())
            self.iterations += 1
            if stop() and self.envs.mode != "restart":  # that mode's environments can be saved at epoch ends only
                return None
        self.epochs += 1
        self._at_epoch_start = True
        if self.envs.mode == "restart":
            self.truncate_all()
        return take_epoch_metrics(self)

    def updates(self, member: int) -> int | None:
        """Gradient steps of a member so far; None if nobody counts them."""
        return None

    def truncate_all(self) -> None:
        """Truncate all running episodes, since their environments are made anew."""
        if self.agent is not None:
            self.agent.truncate_all()

    def member_state(self, member: int) -> Tree:
        """Everything that one member's future depends on; copies."""
        tree: Tree = {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "tally": self.tally.member_state(member),
            "envs": self.envs.member_state(member),
        }
        return tree | {name: part.member_state(member) for name, part in self.live_parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        """Load a state into one member's place.

        Raises:
            StateMismatch: it does not fit; the learner is unusable then.
        """
        expected = self.member_state(member)
        if missing := [name for name in expected if name not in tree]:
            raise StateMismatch(f"{type(self).__name__}: the state lacks {', '.join(missing)}")
        for name in ("counters", *self.live_parts):
            check_same_form({name: expected[name]}, {name: tree[name]}, type(self).__name__)
        check_counters(tree, type(self).__name__)
        counters = tree["counters"]
        if member > 0 and counters["env_steps"] != self.env_steps:
            steps = f"{counters['env_steps']} and {self.env_steps} env_steps"
            raise StateMismatch(f"members must be at the same point, but got {steps}")
        self.env_steps, self.iterations, self.epochs = (counters[name] for name in COUNTERS)
        self.tally.load_member(member, tree["tally"])
        self._at_epoch_start = self.tally.count == 0
        try:
            self.envs.load_member(member, tree["envs"])
        except StateMismatch:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StateMismatch(f"the state of {self.env.id} has another form: {error!r}") from None
        for name, part in self.live_parts.items():
            part.load_member(member, tree[name])

    @property
    def live_parts(self) -> dict[str, Part]:
        """Parts that hold state with these hyperparameters.

        The others are None or null objects.
        """
        parts = {} if self.agent is None else self.agent.parts
        parts = {**parts, **{name: getattr(self, name) for name in (*self.parts, "window")}}
        return {name: part for name, part in parts.items() if isinstance(part, Part)}

    def cure(self, member: int) -> str:
        """Return what to do about a member's number that is not finite."""
        evaluated = {} if self.evaluation_envs is None else self.evaluation_envs.faults
        return {**evaluated, **self.envs.faults}.get(member, "try a lower learning rate")

    def find_nonfinite(self, member: int, metrics: Metrics) -> str | None:
        """Return the name of a member's first non-finite number, or None."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                return f"{name} became {value}"
        for name, part in self.live_parts.items():
            for path, tensor in getattr(part, "tensors", {}).items():
                if tensor.is_floating_point() and not bool(tensor[member].isfinite().all()):
                    return f"{name}.{path} holds a number that is not finite"
        return None


def take_epoch_metrics(learner: Learner) -> list[Metrics]:
    """Return the metrics of each member since its epoch began.

    Their sums are reset.
    """
    episodes = learner.envs.take_episodes()
    rows = []
    for member, means in enumerate(learner.tally.take()):
        updates = learner.updates(member)
        row = {"env_steps": float(learner.env_steps)} | ({} if updates is None else {"updates": float(updates)}) | means
        if count := int(episodes.count[member]):
            row |= {
                "episodes": float(count),
                "episode_return": float(episodes.return_sum[member]) / count,
                "episode_length": float(episodes.length_sum[member]) / count,
            }
        if learner.window is not None:
            row |= learner.window.metrics(member)
        rows.append(row | learner.envs.member_metrics(member))
    return rows
