"""Base of every algorithm: P members that learn in environments.

An algorithm declares `hyperparameters` and `parts`, makes its parts in `build`, and does one iteration of its paper's
box in `iterate`. Environments, episodes and evaluation are here, and what is not of reinforcement learning in
`base_learner`.

What is reported of an epoch, by member: `env_steps` and `updates` (gradient steps) are totals; `episodes` ended in it,
with the means `episode_return` and `episode_length`; and means over its iterations of what each algorithm knows,
of an iteration's last gradient step where that is measured:

    info.NAME                               of what the environment says of an episode, where its spec names it
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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from torch import Tensor

from .base_learner import BaseLearner
from .checkpoint.member_state import Part
from .checkpoint.retention import RETURN
from .checkpoint.state import Tree
from .checkpoint.storage import Metrics
from .envs import Envs, EnvSpec, make_envs, spaces_of
from .errors import StateMismatch, UnsupportedSpace
from .experience.normalizers import ObservationNormalizer
from .experience.rollout import Agent
from .rng import streams
from .runtime.episode_window import EpisodeWindow
from .signals.demonstrations import Examples


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


class Learner(BaseLearner):
    """P members of one structure that learn in environments.

    Attributes:
        parts: names of the attributes that may hold state, beside those of the agent.
        env_steps: done so far.
        agent: acts for the members; None where `actor` and `truncate_all` are overridden.
        policy: the members' networks; None where nothing is learned, or if an agent has them.
        obs_normalizer: the statistics that scale observations; None where they are not scaled, or if an agent has them.
        demonstrations: those that the members learn from, None without.
        particles: the learner whose members act for these, `num_particles` for each; None: the members act themselves.
        evaluation_envs: the environments of the last evaluation, to be used again.
    """

    scratch = ("evaluation_envs",)
    objective = RETURN
    unit, needs_env = "env_steps", True
    env_steps: int
    agent: Agent | None = None
    policy: Policy | None = None
    obs_normalizer: ObservationNormalizer | None = None
    demonstrations: Examples | None = None
    particles: Learner | None = None
    num_particles: int = 1
    evaluation_envs: Envs | None = None

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.envs: Envs = make_envs(self.env, self.seeds, self.hp.num_envs, processes=self.env_processes)
        self.epoch_size = self.hp.epoch_steps
        size = vars(self.hp).get("stats_window_size")
        self.window = EpisodeWindow(self.members, size) if size else None
        if self.window is not None:
            self.envs.on_episode_end = self.window.add
        super().assemble(values)

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        """Raise UnsupportedSpace for an environment that the algorithm cannot act in."""
        spaces_of(env)

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

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return greedy actions and recurrent states, computed by torch alone.

        Programs that run elsewhere are recorded from it, see `deployment.exporting`.

        Args:
            obs: (P, N, ...), as the environments give them.
            state: the recurrent states before them, (P, N, S), if the policy has a memory.
        """
        if self.agent is None:
            raise UnsupportedSpace(f"{self.algorithm()} on {self.env.id} has no policy to export; save its weights")
        return self.agent.greedy(obs, state)

    def score(self) -> np.ndarray | None:
        """Return None: `evaluation` measures returns."""
        return None

    def begin_epoch(self) -> None:
        self.envs.begin_epoch(np.full(self.members, self.epochs))

    def end_epoch(self) -> None:
        if self.envs.mode == "restart":
            self.truncate_all()

    def is_whole(self) -> bool:
        return self.envs.mode != "restart"  # that mode's environments can be saved at epoch ends only

    def take_metrics(self) -> list[Metrics]:
        return take_epoch_metrics(self)

    def updates(self) -> list[int]:
        """Gradient steps of each member so far; none if nobody counts them."""
        return []

    def truncate_all(self) -> None:
        """Truncate all running episodes, since their environments are made anew."""
        if self.agent is not None:
            self.agent.truncate_all()

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

    def cure(self, member: int) -> str:
        """Return what to do about a member's number that is not finite."""
        evaluated = {} if self.evaluation_envs is None else self.evaluation_envs.faults
        return {**evaluated, **self.envs.faults}.get(member, "try a lower learning rate")

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
        """Note that a new member begins with a trained policy."""


def take_epoch_metrics(learner: Learner) -> list[Metrics]:
    """Return the metrics of each member since its epoch began.

    Their sums are reset.
    """
    episodes, infos = learner.envs.take_episodes(), learner.envs.info.take_metrics()
    rows, updates = [], learner.updates()
    for member, means in enumerate(learner.tally.take()):
        row = {"env_steps": float(learner.env_steps)} | ({"updates": float(updates[member])} if updates else {}) | means
        if count := int(episodes.count[member]):
            row |= {
                "episodes": float(count),
                "episode_return": float(episodes.return_sum[member]) / count,
                "episode_length": float(episodes.length_sum[member]) / count,
            }
        if learner.window is not None:
            row |= learner.window.metrics(member)
        rows.append(row | infos[member] | learner.envs.member_metrics(member))
    return rows
