"""CrossQ: Bhatt et al. (2024), arXiv:1902.05605.

It is SAC without target networks: policy and critics have batch renormalization, whose moments in the critics are those
of a batch and its next observations together. Policy and entropy coefficients move once in `policy_delay` gradient
steps. Default values are those of sb3-contrib, except for `learning_starts` (100 there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....spaces import integer, ordinal
from ...envs import EnvSpec, spaces_of
from ...networks.optimizers import optimizer_space
from ...task import Task
from .actions import SoftActions, SoftHead, check_continuous
from .entropy import entropy_space
from .learner import actor_critic_space, check_vectors, check_without_memory, model_space
from .networks import NetworkForm
from .renorm_networks import RenormActorCritics
from .sac import SACLearner
from .steps import ActorCriticSteps


class CrossQLearner(SACLearner):
    """P members of CrossQ."""

    networks = RenormActorCritics
    hyperparameters = actor_critic_space(
        lr=1e-3,
        optimizer=optimizer_space(lr=1e-3, eps=1e-8, beta1=0.5),
        model=model_space(
            critic_width=ordinal(
                256,
                512,
                1024,
                2048,
                default=1024,
                accept=(2, 65536),
                structural=True,
                search=False,
                when={"critic_hidden": None},
                help="width of the critics' layers",
            )
        ),
        critic=None,  # its layers' inputs are renormalized
        entropy=entropy_space(),
        policy_delay=integer(
            1,
            4,
            default=3,
            accept=(1, 1000),
            structural=True,
            search=False,
            help="gradient steps of the critics for each of the actor",
        ),
        tau=None,  # there are no targets
        target_update_interval=None,
    )

    @classmethod
    def describe_actions(cls, env: EnvSpec, device: torch.device | str = "cpu") -> SoftActions:
        actions = super().describe_actions(env, device)
        check_continuous(actions, spaces_of(env).action, f"{cls.algorithm()} on {env.id}")
        return actions

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        check_without_memory(values, cls.algorithm(), "batch renormalization is of single steps")

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        check_vectors(values, env, cls.algorithm(), "batch renormalization has no encoder")

    def network_form(self) -> NetworkForm:
        return NetworkForm(SoftHead(self.actions))

    def due(self, number: int) -> tuple[bool, Tensor | None]:
        return number % self.hp.policy_delay == 0, None

    def kernel(self) -> ActorCriticSteps | None:
        return ActorCriticSteps.covering(self, self.perceptrons)


class CrossQ(Task):
    """CrossQ, soft actor-critic without target networks, for bounded Boxes.

    Bhatt et al. (2024), arXiv:1902.05605. It acts in Dicts and Tuples of Boxes, too. Prioritized replay, n-step
    targets, a running reward scale, signals and cloning are options, as in SAC. It has no memory, and takes no images.
    """

    name = "crossq"
    version = 3
    learner = CrossQLearner
