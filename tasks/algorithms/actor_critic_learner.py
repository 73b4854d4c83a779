"""An actor-critic that acts, in rollouts and in evaluation, and that goes through what it did again with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..envs import EnvSpec, spaces_of
from ..evaluation import evaluation_keys
from ..experience.normalizers import ObservationNormalizer
from ..experience.rollout import draw_noise, permutations, shuffled
from ..learner import Learner
from ..networks.actor_critic import ActorCritic
from ..networks.distributions import distribution_for
from ..networks.encoders import check_encoder
from ..networks.goal_conditioning import goal_of
from ..networks.recurrent import Memory
from ..networks.sde import Perturbations, StateDependentGaussian, state_dependent
from ..rng.streams import Bits


class ActingLearner(Learner):
    """P members that act; what they learn from that is a subclass's matter.

    Attributes:
        policy: the actors and the critics.
        memory: what they remember of the running episodes, if they do.
        obs_normalizer: what standardizes the vectors that they see, if anything does; images are left as they are.
        perturbations: the noise of actions, where it depends on the state.
    """

    policy: ActorCritic

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        distribution_for(spaces_of(env).action, f"{cls.algorithm()} on {env.id}")

    @classmethod
    def check_use(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        place = f"{cls.algorithm()} on {env.id}"
        check_encoder(values["model"], env, place)
        goal_of(values["model"], env, place)
        if values["use_sde"]:
            state_dependent(spaces_of(env).action, values["model"]["width"], place)

    def build(self) -> None:
        hp, place = self.hp, f"{self.algorithm()} on {self.env.id}"
        goal, space = goal_of(vars(hp.model), self.env, place), self.envs.action_space
        self.policy = ActorCritic(
            self.envs.obs_shape, space, hp.model, self.seeds, place, self.device, hp.use_sde, goal
        )
        vectors = hp.normalize_obs and self.envs.obs_kind == "vector"
        self.obs_normalizer = ObservationNormalizer(self.members, self.envs.obs_shape[0]) if vectors else None
        self.memory = Memory(self.policy, hp.num_envs) if self.policy.core is not None else None
        self.action_keys = self.keys("action")
        self.perturbations: Perturbations | None = None
        if isinstance(self.policy.distribution, StateDependentGaussian):
            self.perturbations = Perturbations(
                self.keys("sde"), hp.num_envs, self.policy.distribution, hp.num_steps, hp.sde_sample_freq, self.device
            )

    def noise(self) -> Sequence[Tensor] | Tensor:
        """What the actions of this iteration are sampled with, step by step."""
        if self.perturbations is not None:
            return self.perturbations(self.iterations, self.policy.parameters.views["actor.log_std"])
        form = (self.hp.num_steps, self.hp.num_envs)
        return draw_noise(self.policy, self.action_keys, self.iterations, form, self.device)

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The distribution's parameters and v(s), (P, B), of a batch, with gradients."""
        if self.memory is None:
            return self.policy(batch["obs"])
        return self.policy.sequences(batch["obs"], batch["begins"], batch["memory"])[:2]

    def minibatches(self, batch: Mapping[str, Tensor], hp: SimpleNamespace, keys: Bits) -> Iterator[dict[str, Tensor]]:
        """`num_minibatches` parts of the batch in random order, `update_epochs` times, each (P, B, ...)."""
        if self.memory is None:
            for order in permutations(keys, self.iterations, hp.update_epochs, batch["returns"].shape[1]):
                yield from shuffled(batch, order, hp.num_minibatches)
            return
        num_envs = batch["memory"].shape[1]
        rows = {name: x if name == "memory" else x.unflatten(1, (num_envs, -1)) for name, x in batch.items()}
        for order in permutations(keys, self.iterations, hp.update_epochs, num_envs):
            for part in shuffled(rows, order, hp.num_minibatches):
                yield {name: x if name == "memory" else x.flatten(1, 2) for name, x in part.items()}

    def actor(self, episodes: int, deterministic: bool = True) -> Callable[[np.ndarray], np.ndarray]:
        parameters, noise = self.parameters(episodes), self.evaluation_noise(episodes)

        @torch.inference_mode()
        def greedy(obs: np.ndarray) -> np.ndarray:
            return self.policy.distribution.mode(parameters(obs)).cpu().numpy()

        @torch.inference_mode()
        def explore(obs: np.ndarray) -> np.ndarray:
            actions = self.policy.distribution.sample(parameters(obs), next(noise))
            return torch.nan_to_num(actions).cpu().numpy() if actions.is_floating_point() else actions.cpu().numpy()

        return greedy if deterministic else explore

    def parameters(self, episodes: int) -> Callable[[np.ndarray], Tensor]:
        """The distribution's parameters (P, N, ...) for what is seen in so many episodes from their beginnings."""
        policy = self.policy if self.memory is None else Memory(self.policy, episodes)

        def parameters(obs: np.ndarray) -> Tensor:
            seen = obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn=False)
            return policy.policy(torch.from_numpy(np.ascontiguousarray(seen)).to(self.device))

        return parameters

    def evaluation_noise(self, episodes: int) -> Iterator[Tensor]:
        """What the actions of each step of evaluation are sampled with, (P, N, ...)."""
        hp, distribution = self.hp, self.policy.distribution
        if isinstance(distribution, StateDependentGaussian):
            keys = evaluation_keys(self.members, "sde")
            made = Perturbations(keys, episodes, distribution, hp.num_steps, hp.sde_sample_freq, self.device)
            for rollout in count():
                yield from made(rollout, self.policy.parameters.views["actor.log_std"])
        for step in count():
            yield draw_noise(self.policy, evaluation_keys(self.members, "action"), step, (1, episodes), self.device)[0]
