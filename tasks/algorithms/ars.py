"""Augmented random search (ARS): Mania et al. (2018), arXiv:1803.07055.

There are no gradients: each generation perturbs the policy's weights in random directions, plays an episode on both
sides of each, and moves along the directions in which the two returns differ. Default values are those of sb3-contrib.

An environment that ends its episode takes the next perturbed policy of its member's generation; when none is left, it
plays the unperturbed policy until the others have ended. With `num_envs` 1, no step is spent so.

Notation: P members, N environments, n directions, D numbers in a policy's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, ordinal, real, sizes
from ..checkpoint.member_state import Stacked
from ..checkpoint.state import Tree
from ..envs import EnvSpec, spaces_of
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..experience.normalizers import ObservationNormalizer
from ..learner import Learner
from ..networks.distributions import distribution_for, finite
from ..networks.mlp import MLP, Parameters, actor_layers, affine, initialize
from ..rng import streams
from ..rng.streams import Bits, Keys
from ..runtime.episode_window import window_size
from ..task import Task

REST = -1  # direction of an environment that plays the unperturbed policy


class SearchedPolicy(Stacked):
    """Deterministic policies of P members: a linear map, or a perceptron."""

    def __init__(self, learner: Learner):
        """Initialize the weights, all 0 with `zero_policy`."""
        hp, envs, subject = learner.hp, learner.envs, f"{learner.algorithm()} on {learner.env.id}"
        self.distribution = distribution_for(envs.action_space, subject)
        widths = [envs.obs_shape[0], *actor_layers(hp.model), self.distribution.outputs]
        self.network = MLP("actor", widths, hp.model.activation, last_gain=1.0)
        self.parameters = Parameters(self.network.shapes, learner.members, learner.device)
        if not hp.zero_policy:
            initialize([self.network], self.parameters, learner.seeds)
        self.tensors = self.parameters.tensors

    def act(self, vectors: Tensor, obs: Tensor) -> Tensor:
        """Return actions (M, B, ...) of policies (M, D).

        Observations are (M, B, numbers).
        """
        layers = self.network.layers(dict(zip(self.parameters.shapes, self.parameters.views_of(vectors), strict=True)))
        z = self.network.hidden(layers, obs)
        log_std = z.new_zeros(self.distribution.log_std_shape) if self.distribution.log_std_shape else None
        return finite(self.distribution.mode(self.distribution.params(affine(z, *layers[-1]), z, log_std)))

    def copy_target(self, member: int) -> None:
        """Do nothing, since there are no target networks."""


class Generations:
    """Directions that are tried, and their returns so far.

    Direction k of n is tried as k with a positive sign, and as n + k with a negative one.

    Attributes:
        numbers: generations that are complete, (P,).
        handed: directions of the generation that were begun, (P,).
        direction: those that the environments play, (P, N), or `REST`.
        running: returns of the running episodes, (P, N).
        returns: returns of the directions, (P, 2 n).
        done: directions whose episode has ended, (P, 2 n).
        mean: mean return of the last complete generation, (P,).
    """

    arrays = ("numbers", "handed", "direction", "running", "returns", "done", "mean")
    scratch = ("_vectors", "_deltas")

    def __init__(self, keys: Bits, directions: int, num_envs: int, size: int):
        """Begin the first generation.

        Args:
            keys: random streams of the members, (P,).
            directions: n.
            num_envs: N.
            size: D.
        """
        members = len(keys)
        self.keys, self.n, self.size = keys, directions, size
        self.numbers, self.handed = np.zeros(members, np.int64), np.zeros(members, np.int64)
        self.direction = np.full((members, num_envs), REST)
        self.running, self.returns = np.zeros((members, num_envs)), np.zeros((members, 2 * directions))
        self.done = np.zeros(self.returns.shape, np.bool_)
        self.mean = np.zeros(members)
        self._vectors: Tensor | None = None
        self._deltas: dict[int, NDArray[np.float32]] = {}
        for member in range(members):
            self.hand_out(member)

    def hand_out(self, member: int) -> None:
        """Give the next directions to environments that rest."""
        self._vectors = None
        for env in np.flatnonzero(self.direction[member] == REST)[: 2 * self.n - self.handed[member]]:
            self.direction[member, env] = self.handed[member]
            self.handed[member] += 1

    def deltas(self, member: int) -> NDArray[np.float32]:
        """Return the directions of a member's generation, (n, D), standard normal."""
        if member not in self._deltas:
            count = self.n * self.size
            first = 2 * count * int(self.numbers[member])
            u, v = streams.open_uniform(self.keys[member], np.arange(first, first + 2 * count)).reshape(2, count)
            normal = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)  # Box and Muller (1958)
            self._deltas[member] = normal.astype(np.float32).reshape(self.n, self.size)
        return self._deltas[member]

    def vectors(self, policy: Tensor, std: Tensor) -> Tensor:
        """Return the environments' policies, (P N, D).

        The unperturbed ones are (P, D), and deviations (P, 1).
        """
        if self._vectors is None:
            rows = policy.unsqueeze(1).repeat(1, self.direction.shape[1], 1)
            for member, directions in enumerate(self.direction):
                deltas = torch.from_numpy(self.deltas(member)).to(policy.device)
                for env in np.flatnonzero(directions != REST):
                    k, sign = directions[env] % self.n, 1 if directions[env] < self.n else -1
                    rows[member, env] += sign * std[member] * deltas[k]
            self._vectors = rows.flatten(0, 1)
        return self._vectors

    def record(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> list[int]:
        """Add a step's rewards (P, N), and return members with complete generations."""
        self.running += rewards
        for member, env in zip(*np.nonzero(ended), strict=True):
            if (direction := self.direction[member, env]) != REST:
                self.returns[member, direction], self.done[member, direction] = self.running[member, env], True
                self.direction[member, env] = REST
            self.running[member, env] = 0
        finished: list[int] = np.flatnonzero(ended.any(1)).tolist()
        for member in finished:
            self.hand_out(member)
        return [member for member in finished if self.done[member].all()]

    def begin(self, member: int) -> None:
        """Begin a member's next generation."""
        self.mean[member] = self.returns[member].mean()
        self.numbers[member] += 1
        self.handed[member], self.done[member], self.running[member] = 0, False, 0
        self.direction[member] = REST
        self._deltas.pop(member, None)
        self.hand_out(member)

    def member_state(self, member: int) -> Tree:
        return {name: torch.from_numpy(np.array(getattr(self, name)[member])) for name in self.arrays}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name in self.arrays:
            getattr(self, name)[member] = tree[name].numpy()
        self._vectors, self._deltas = None, {}


class ARSLearner(Learner):
    """P members of ARS.

    Attributes:
        policy: policies of the members.
        generations: directions that are tried.
        bonus: number that is added to each reward, (P, 1).
        top: b, the number of directions that are followed.
    """

    hyperparameters = Space(
        lr=log_real(0.01, 0.03, default=0.02, accept=(0.0, 100.0), help="step length (SB3: learning_rate)"),
        delta_std=log_real(
            0.01, 0.05, default=0.05, accept=(1e-9, 100.0), help="standard deviation of the directions' weights"
        ),
        deltas=ordinal(
            4, 8, 16, 32, 64, default=8, accept=(1, 100_000), structural=True,
            help="directions of a generation, each played on both sides (SB3: n_delta)",
        ),
        top_fraction=real(
            0.1, 1.0, default=1.0, accept=(0.0, 1.0), structural=True,
            help="share of the directions that are followed, those with the best returns (SB3: n_top)",
        ),
        zero_policy=categorical(True, False, default=True, structural=True, help="begin with weights of 0"),
        alive_bonus_offset=real(
            -1.0, 0.0, default=0.0, accept=(-1e6, 1e6), search=False,
            help="added to each reward, against bonuses for being alive",
        ),
        model=Space(
            layers=integer(0, 2, default=0, accept=(0, 16), structural=True, search=False),
            width=ordinal(16, 32, 64, default=64, accept=(1, 65536), structural=True, search=False),
            hidden=sizes(1, 65536, silent=True),
            activation=categorical("tanh", "relu", "elu", default="tanh", structural=True, search=False),
        ),
        num_steps=integer(1, 10**6, default=64, structural=True, search=False),
        num_envs=integer(1, 65536, default=1, structural=True, search=False),
        epoch_steps=integer(1, 10**9, default=4096, structural=True, search=False),
        normalize_obs=categorical(False, True, default=False, structural=True),
        stats_window_size=window_size(),
    )  # fmt: skip
    parts = ("policy", "generations", "obs_normalizer")
    policy: SearchedPolicy

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        subject, observations = f"{cls.algorithm()} on {env.id}", Observations(spaces_of(env).observation, env.id)
        if observations.kind != "vector":
            raise UnsupportedSpace(
                f"{subject}: its policy has no encoder, but observations of shape {observations.shape} need one; use "
                "ppo"
            )
        distribution_for(spaces_of(env).action, subject)

    def build(self) -> None:
        hp, envs = self.hp, self.envs
        self.policy = SearchedPolicy(self)
        size = self.policy.parameters.vector.shape[1]
        self.generations = Generations(self.keys("directions"), hp.deltas, hp.num_envs, size)
        self.bonus = hp.alive_bonus_offset.cpu().double().numpy()
        self.top = max(1, round(hp.top_fraction * hp.deltas))
        if hp.normalize_obs:
            self.obs_normalizer = ObservationNormalizer(self.members, envs.obs_shape[0])

    @torch.inference_mode()
    def iterate(self) -> dict[str, Tensor]:
        hp, envs, generations = self.hp, self.envs, self.generations
        for _ in range(hp.num_steps):
            obs = self.tensor(self.normalize(envs.obs, learn=True)).flatten(0, 1).unsqueeze(1)
            vectors = generations.vectors(self.policy.parameters.vector, hp.delta_std)
            actions = self.policy.act(vectors, obs).squeeze(1)
            step = envs.step(actions.unflatten(0, (self.members, hp.num_envs)).cpu().numpy())
            ended = step.terminated | step.truncated
            complete = generations.record(step.reward + self.bonus, ended)
            unfinished = np.zeros_like(ended)
            for member in complete:
                self.follow(member)
                unfinished[member] = ~ended[member]
                generations.begin(member)
            envs.abandon(unfinished)
        self.env_steps += hp.num_steps * hp.num_envs
        return {"candidate_return": torch.from_numpy(generations.mean).float()}

    def follow(self, member: int) -> None:
        """Move a member's policy by the returns of its generation.

            θ ← θ + lr / (b σ) Σₖ (r(θ + ν δₖ) - r(θ - ν δₖ)) δₖ

        Algorithm 2 of the paper. The sum is over the b directions with the greatest max of both returns, and σ is the
        standard deviation of their returns.
        """
        returns = self.generations.returns[member].reshape(2, -1)
        best = np.argsort(-returns.max(0), kind="stable")[: self.top]
        plus, minus = returns[:, best]
        length = float(self.hp.lr[member]) / (self.top * returns[:, best].std(ddof=1) + 1e-6)
        change = (length * (plus - minus)) @ self.generations.deltas(member)[best].astype(np.float64)
        self.policy.parameters.vector[member] += torch.from_numpy(change).to(self.policy.parameters.vector)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return an array on the learner's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def normalize(self, obs: NDArray[Any], learn: bool = False) -> NDArray[Any]:
        """Scale observations (P, N, D), if the hyperparameters ask for it."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn)

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        @torch.inference_mode()
        def act(obs: np.ndarray) -> np.ndarray:
            rows = self.tensor(self.normalize(obs))
            return self.policy.act(self.policy.parameters.vector, rows).cpu().numpy()

        return act

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        obs = obs if self.obs_normalizer is None else self.obs_normalizer.of_batch(obs)
        return self.policy.act(self.policy.parameters.vector, obs), None

    def updates(self) -> list[int]:
        return [int(number) for number in self.generations.numbers]

    def truncate_all(self) -> None:
        """Count the running episodes from 0 again, with the same directions."""
        self.generations.running[:] = 0


class ARS(Task):
    """Augmented random search for discrete and Box actions, Dicts and Tuples.

    Mania et al. (2018), arXiv:1803.07055: linear policies by default (version V1-t, and V2-t with `normalize_obs`), or
    perceptrons with `model.layers`.
    """

    name = "ars"
    version = 1
    learner = ARSLearner
