"""Base class of all algorithms that learn in environments.

An algorithm declares `hyperparameters` and `parts`, builds its parts in `build`, and does one iteration of its paper's
pseudocode in `iterate`. This module adds environments, episodes and evaluation; `base_learner` has everything that is
not specific to reinforcement learning.

Metrics of an epoch, for each member. `env_steps` and `updates` (gradient steps) are totals; `episodes` counts those
that ended in the epoch, and `episode_return` and `episode_length` are their means. The others are means over the
epoch's iterations; losses and the like come from the last gradient step of each iteration:

    info.NAME                               entries of the environment's info that its spec names
    policy_loss, value_loss, entropy, value, explained_variance, approx_kl, clip_fraction, lr    on-policy
    rollouts                                rollouts per update, for members that wait for whole episodes
    loss, q, lr; critic_loss, actor_loss, q, alpha, entropy, lr                                  DQN; SAC
    icm_reward, icm_value, icm_loss, icm_value_loss, ...; cloning_loss    each signal (icm, rnd, gail), with rewards
                                            times strength; behavioral cloning
    grad_norm.NET, grad_norm_clipped.NET    each network's gradient norm, before and after clipping to max_grad_norm,
                                            if that is set; algorithms of many short iterations measure every 16th

An epoch that was evaluated also has `return`, the mean return of greedy episodes on seeds that training never uses, see
`evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from .base_learner import BaseLearner
from .checkpoint.member_state import Part
from .checkpoint.retention import RETURN
from .checkpoint.state import Tree
from .checkpoint.storage import Metrics
from .envs import Envs, EnvSpec, make_envs, spaces_of
from .envs.base.images import is_scaled
from .envs.base.observations import Observations
from .errors import StateMismatch, UnsupportedSpace
from .experience.normalizers import ObservationNormalizer
from .experience.rollout import Agent
from .rng import streams
from .runtime.episode_window import EpisodeWindow


class ParametersByName(Protocol):
    """Parameters of P members' networks, by name."""

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the live data."""


class Policy(Protocol):
    """Networks of P members."""

    @property
    def parameters(self) -> ParametersByName:
        """All trained parameters, excluding target networks."""

    def copy_target(self, member: int) -> None:
        """Copy one member's networks into its target networks, if it has any."""


class Contest(Protocol):
    """Evaluation against opponents, for a policy that learned against itself."""

    def reported(self, env: EnvSpec) -> EnvSpec:
        """Return the environment with what `credited` reads in its info."""

    def actor(self, episodes: int, deterministic: bool, keys: streams.Keys) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that acts for both sides, see `Learner.actor`."""

    def credited(self, returns: np.ndarray, info: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the policy's own returns and info, (P, episodes) each."""


class Learner(BaseLearner):
    """P members of equal structure that learn in environments.

    Attributes:
        parts: names of attributes that may hold state, besides those of the agent.
        env_steps: environment steps done so far.
        agent: acts for the members; None if the algorithm overrides `actor` and `truncate_all`.
        policy: networks of the members; None if nothing is learned or the agent has them.
        obs_normalizer: running statistics that scale observations; None if observations are not scaled or the agent has
            it.
        demonstrations: demonstrations that the members learn from, or None.
        particles: learner whose members act for this one's, `num_particles` each; None if the members act themselves.
        evaluation_envs: environments of the last evaluation, kept for the next.
        contest: how evaluation plays; None for `actor` alone.
        knows_masks: whether the algorithm never takes actions that a mask forbids, see `envs.base.masks`.
        in_kernel: names of the methods whose work `kernel` describes.
    """

    scratch: ClassVar[tuple[str, ...]] = ("evaluation_envs",)
    knows_masks: ClassVar[bool] = False
    objective = RETURN
    unit, needs_env = "env_steps", True
    env_steps: int
    agent: Agent | None = None
    policy: Policy | None = None
    obs_normalizer: ObservationNormalizer | None = None
    demonstrations: ParametersByName | None = None
    particles: Learner | None = None
    num_particles: int = 1
    evaluation_envs: Envs | None = None
    contest: Contest | None = None
    in_kernel: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Clear the kernel of a class that overrides what it computes."""
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            if "kernel" in vars(base):
                return
            if any(name in vars(base) for name in cls.in_kernel):
                cls.kernel = Learner.kernel  # type: ignore[method-assign]  # as if the class had defined it
                return

    def kernel(self) -> Any:
        """Return what compiled kernels need in place of methods `in_kernel`.

        None if they do not cover these hyperparameters. A class defines it beside the methods.
        """
        return None

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        values: Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
        env_processes: int = 0,
        envs: Envs | None = None,
    ):
        """Build the members, see `BaseLearner`.

        Args:
            env: environment.
            seeds: one seed per member.
            values: complete hyperparameters of each member; the structural ones must be equal.
            device: torch device.
            env_processes: number of processes that step the environments; 0 steps them in this process.
            envs: the members' environments, such as a behaviour's view; None to create them.
        """
        self.shared_envs = envs
        super().__init__(env, seeds, values, device, env_processes)

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.envs: Envs = self.shared_envs or make_envs(
            self.env, self.seeds, self.hp.num_envs, processes=self.env_processes
        )
        self.epoch_size = self.hp.epoch_steps
        size = vars(self.hp).get("stats_window_size")
        self.window = EpisodeWindow(self.members, size) if size else None
        if self.window is not None:
            self.envs.on_episode_end = self.window.add
        try:
            super().assemble(values)
        except BaseException:
            self.envs.close()
            raise

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        """Raise UnsupportedSpace if the algorithm cannot act in the environment."""
        if not cls.knows_masks and Observations(spaces_of(env).observation, env.id).mask is not None:
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id} knows no action masks, but the environment has one; use ppo, a2c or dqn"
            )

    @classmethod
    def units(cls, env: EnvSpec) -> tuple[str, ...]:
        return ("images",) if is_scaled(spaces_of(env).observation) else ()

    def actor(
        self, episodes: int, deterministic: bool = True, keys: streams.Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that acts, called at each step.

        It maps observations (P, episodes, ...), as the environments give them, to actions (P, episodes, ...).

        Args:
            episodes: number of episodes that are played side by side.
            deterministic: greedy actions; False samples them as in training.
            keys: random streams; None for those of evaluation, which are the same for every member and every call, see
                `evaluation.seeds.evaluation_keys`.
            memory: recurrent states from `acting_memory`, which acting advances; None for new ones.
        """
        assert self.agent is not None
        return self.agent.actor(episodes, deterministic, keys, memory)

    def acting_memory(self, episodes: int) -> Any:
        """Return the recurrent states at the start of episodes.

        For recurrent policies these are `States`; others may return anything.
        """
        return None if self.agent is None else self.agent.policy.states(episodes)

    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        """Return v(s), (P, N), of observations (P, N, ...).

        Args:
            obs: observations as the environments give them.
            memory: recurrent states before the observations; they are not advanced.

        Raises:
            UnsupportedSpace: this algorithm estimates no values.
        """
        if self.agent is None:
            raise UnsupportedSpace(f"{self.algorithm()} on {self.env.id} estimates no values; ask a task with a critic")
        return self.agent.state_values(obs, memory)

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return greedy actions and the next recurrent states, in torch operations only.

        `deployment.exporting` traces this method.

        Args:
            obs: observations (P, N, ...) as the environments give them.
            state: recurrent states (P, N, S) before them, if the policy has a memory.

        Raises:
            UnsupportedSpace: there is no policy to export.
        """
        if self.agent is None:
            raise UnsupportedSpace(f"{self.algorithm()} on {self.env.id} has no policy to export; save its weights")
        return self.agent.greedy(obs, state)

    def of_behaviour(self, name: str | None) -> Learner:
        """Return the learner of a behaviour, or this one.

        Raises:
            ValueError: there is none of this name.
        """
        if name is not None:
            raise ValueError(f"{self.algorithm()} has one policy, but got the behaviour {name!r}; leave it out")
        return self

    def score(self) -> np.ndarray | None:
        """Return None, since `evaluation` measures episodes instead."""
        return None

    def begin_epoch(self) -> None:
        self.open(self.envs)
        self.envs.begin_epoch(np.full(self.members, self.epochs))

    def end_epoch(self) -> None:
        if self.envs.mode == "restart":
            self.truncate_all()

    def is_whole(self) -> bool:
        return self.envs.mode != "restart"  # in this mode environments can be saved only at the end of an epoch

    def take_metrics(self) -> list[Metrics]:
        return take_epoch_metrics(self)

    def updates(self) -> list[int]:
        """Return each member's gradient steps so far; empty if not counted."""
        return []

    def truncate_all(self) -> None:
        """Truncate all running episodes, because their environments are rebuilt."""
        if self.agent is not None:
            self.agent.truncate_all()

    def inexact(self, member: int) -> list[str]:
        rows = self.envs.num_members // self.members  # more than one with particles
        reasons = (self.envs.inexact(i) for i in range(member * rows, (member + 1) * rows))
        return list(dict.fromkeys(chain.from_iterable(reasons)))

    def advice(self) -> tuple[str, ...]:
        return self.envs.advice

    def with_new_episodes(self, tree: Mapping[str, Any], member: int = 0) -> Tree:
        with self.envs.restarts():
            self.load_member(member, tree)
        (self.particles or self).truncate_all()
        return self.member_state(member)

    def surroundings(self, member: int) -> Tree:
        return {"envs": self.envs.member_state(member)}

    def load_surroundings(self, member: int, tree: Mapping[str, Any]) -> None:
        try:
            self.envs.load_member(member, tree["envs"])
        except StateMismatch:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StateMismatch(f"the state of {self.env.id} has another form: {error!r}") from None

    @property
    def live_parts(self) -> dict[str, Part]:
        parts = {} if self.agent is None else self.agent.parts
        parts = {**parts, **{name: getattr(self, name) for name in (*self.parts, "window")}}
        # isinstance would be slow, since `Part` is a protocol
        return {name: cast(Part, part) for name, part in parts.items() if hasattr(part, "load_member")}

    def close(self) -> None:
        self.envs.close()
        for learner in filter(None, (self, self.particles)):
            if learner.evaluation_envs is not None:
                learner.evaluation_envs.close()

    def cure(self, member: int) -> str:
        evaluated = {} if self.evaluation_envs is None else self.evaluation_envs.faults
        return {**evaluated, **self.envs.faults}.get(member) or super().cure(member)

    # --- warm starts ---

    def network_views(self, member: int) -> dict[str, Tensor]:
        if self.particles is not None:
            return self._by_particle(self.particles.network_views, member)
        policy = (self.agent or self).policy
        return {} if policy is None else policy.parameters.of(member)

    def policy_views(self, member: int) -> dict[str, Tensor]:
        if self.particles is not None:
            return self._by_particle(self.particles.policy_views, member)
        normalizer = (self.agent or self).obs_normalizer
        moments = {} if normalizer is None else normalizer.of(member)
        return self.network_views(member) | {f"obs_normalizer.{name}": view for name, view in moments.items()}

    def _by_particle(self, of: Callable[[int], dict[str, Tensor]], member: int) -> dict[str, Tensor]:
        particles = (of(member * self.num_particles + j) for j in range(self.num_particles))
        return {f"{j}.{name}": view for j, views in enumerate(particles) for name, view in views.items()}

    def demonstration_views(self, member: int) -> dict[str, Tensor]:
        if self.particles is not None:
            return self.particles.demonstration_views(member * self.num_particles)
        return {} if self.demonstrations is None else self.demonstrations.of(member)

    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        super().adopt(member, policy)
        if self.particles is not None:
            demonstrations = self.demonstration_views(member)
            for particle in range(member * self.num_particles, (member + 1) * self.num_particles):
                self.particles.adopt(particle, demonstrations)
        elif (network := (self.agent or self).policy) is not None:
            network.copy_target(member)
        self.warm_started(member)

    def warm_started(self, member: int) -> None:
        """Note that a new member starts from a trained policy."""


def take_epoch_metrics(learner: Learner) -> list[Metrics]:
    """Return each member's metrics of the epoch, and reset their sums."""
    episodes, infos = learner.envs.take_episodes(), learner.envs.info.take_metrics()
    rows, updates = [], learner.updates()
    for member, means in enumerate(learner.tally.take()):
        row = {"env_steps": float(learner.env_steps)} | ({"updates": float(updates[member])} if updates else {}) | means
        row |= episodes.metrics(member)
        if learner.window is not None:
            row |= learner.window.metrics(member)
        rows.append(row | infos[member] | learner.envs.member_metrics(member))
    return rows
