"""CrossQ: Bhatt et al. (2024), arXiv:1902.05605.

It is SAC without target networks: policy and critics have batch renormalization, whose moments in the critics are those
of a batch and its next observations together. Policy and entropy coefficients move once in `policy_delay` gradient
steps. Default values are those of sb3-contrib, except for `learning_starts` (100 there).

Notation: P members, B batch, k numbers in an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....spaces import integer, ordinal
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...networks.optimizers import norms, optimizer_space
from ...task import Task
from .actions import SoftActions, SoftHead, check_continuous
from .entropy import entropy_space
from .learner import actor_critic_space, check_vectors, check_without_memory, model_space
from .networks import Batch, NetworkForm
from .renorm_networks import RenormActorCritics
from .sac import SACLearner


class CrossQLearner(SACLearner):
    """P members of CrossQ."""

    policy: RenormActorCritics
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

    def new_policy(self, seeds: list[int]) -> RenormActorCritics:
        inputs = self.envs.obs_shape[0]
        return RenormActorCritics(inputs, self.actions, self.network_form(), self.hp, seeds, self.device)

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        number = self.progress.updates
        return self.delayed_step(batch, self.update_noise(number), number % self.hp.policy_delay == 0, self.measured)

    @captured
    def delayed_step(
        self, batch: Batch, noise: Tensor, moves_actor: bool, measured: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        Args:
            batch: tensors (P, B, ...).
            noise: standard normal numbers for the actions, (P, 2 B, k).
            moves_actor: whether policy and entropy coefficients move, too.
            measured: whether metrics include the gradients' norms.
        """
        policy, rows = self.policy, self.hp.batch_size
        reward, alpha = self.total_reward(batch), self.coefficients.alpha
        with torch.no_grad():
            next_sample = self.actions.sample(policy.outputs(batch["next_obs"]), noise[:, rows:])
        critic_loss, errors, q = self.critic_loss(batch, reward, next_sample, alpha)
        critics = self.descend_critics(critic_loss)
        report = {"critic_loss": critic_loss.detach().mean(1), "q": q.detach(), "alpha": alpha.mean(1)}
        if measured:
            report |= norms(critics, self.critic_spans)
        if moves_actor:
            sample = self.actions.sample(policy.learning_outputs(batch), noise[:, :rows])
            actor_loss = self.actor_loss(batch, sample, alpha)
            actor = self.descend_actor(actor_loss)
            entropies = sample.entropies.detach().mean(1)
            self.coefficients.descend(entropies, self.scheduled(self.entropy_lr))
            report |= {"actor_loss": actor_loss.detach().mean(1), "entropy": entropies.sum(1)}
            report |= norms(actor, "actor") if measured else {}
        return report, errors[:, 0]


class CrossQ(Task):
    """CrossQ, soft actor-critic without target networks, for bounded Boxes.

    Bhatt et al. (2024), arXiv:1902.05605. It acts in Dicts and Tuples of Boxes, too. Prioritized replay, n-step
    targets, a running reward scale, signals and cloning are options, as in SAC. It has no memory, takes no images, and
    is computed by torch alone.
    """

    name = "crossq"
    version = 2
    learner = CrossQLearner
