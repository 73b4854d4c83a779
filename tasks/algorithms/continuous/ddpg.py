"""Deep deterministic policy gradient (DDPG): Lillicrap et al. (2016), arXiv:1509.02971.

Default values are the paper's (section 7), but for layer sizes, and without its decay of the critic's weights and its
batch normalization. TD3 derives from this file.

Notation: P members, B batch, c critics of a member, k numbers in an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....spaces import log_real, maybe, ordinal
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...networks.optimizers import norms
from ...task import Task
from .actions import DeterministicActions, DeterministicHead
from .learner import ActorCriticLearner, actor_critic_space, check_vectors, check_without_memory, squares
from .networks import Batch, NetworkForm
from .noise import noise_space
from .steps import ActorCriticSteps


class DDPGLearner(ActorCriticLearner):
    """P members of DDPG.

    Attributes:
        copies: c.
    """

    hyperparameters = actor_critic_space(
        lr=1e-4,
        exploration=noise_space("ou", std=0.2),
        critic_lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=1e-3, search=False),
        tau=log_real(0.001, 0.1, default=0.001, accept=(0.0, 1.0)),
        batch_size=ordinal(64, 128, 256, 512, default=64, accept=(2, 65536), structural=True),
    )
    copies: ClassVar[int] = 1
    in_kernel: ClassVar[tuple[str, ...]] = (*ActorCriticLearner.in_kernel, "next_actions")
    actions: DeterministicActions

    @classmethod
    def describe_actions(cls, env: EnvSpec, device: torch.device | str = "cpu") -> DeterministicActions:
        return DeterministicActions(spaces_of(env).action, f"{cls.algorithm()} on {env.id}", device)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        check_without_memory(values, cls.algorithm(), "its target policy has no recurrent states")

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        check_vectors(values, env, cls.algorithm(), "its target policy has no encoder")

    def network_form(self) -> NetworkForm:
        head = DeterministicHead(self.actions, self.hp.exploration)
        return NetworkForm(head, self.copies, target_actor=True)

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        number = self.progress.updates
        moves_actor, tau = self.due(number)
        return self.step(batch, self.update_noise(number), tau, moves_actor, self.measured)

    @captured
    def step(
        self, batch: Batch, noise: Tensor, tau: Tensor | None, moves_actor: bool, measured: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        Args:
            batch: tensors (P, B, ...).
            noise: standard normal numbers for the next actions, (P, B, k).
            tau: fraction by which the targets move, (P, 1); 0 or None leaves them.
            moves_actor: whether the actor moves, too.
            measured: whether metrics include the gradients' norms.
        """
        reward, batch = self.total_reward(batch), self.policy.encode(batch)
        critic_loss, errors, q = self.critic_loss(batch, reward, self.next_actions(batch, noise))
        critics = self.descend_critics(critic_loss)
        report = {"critic_loss": critic_loss.detach().mean(1), "q": q.mean((1, 2))}
        if measured:
            report |= norms(critics, self.critic_spans)
        if moves_actor:
            actor_loss = self.actor_loss(batch)
            actor = self.descend_actor(actor_loss)
            report |= {"actor_loss": actor_loss.detach().mean(1), **(norms(actor, "actor") if measured else {})}
        self.follow(None, tau)
        return report, errors[:, 0]

    def next_actions(self, batch: Batch, noise: Tensor) -> Tensor:
        """Return the actions for the next observations, μ'(s'), (P, B, k)."""
        return torch.tanh(self.policy.target_outputs(batch))

    def critic_loss(self, batch: Batch, reward: Tensor, next_actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' losses (P, B), errors and values (P, c, B).

            J = mean Σᵢ ½ (y - qᵢ(s, a))²,   y = r + discount minᵢ q'ᵢ(s', a')

        The paper's section 3 for c = 1; arXiv:1802.09477, eq. 10, for c = 2. `critic_loss` may replace the square.
        """
        numbers, _ = self.actions.normalize(batch["action"])
        q, next_q = self.policy.q_and_target(batch, numbers, next_actions)
        targets = reward + batch["discount"] * next_q.amin((1, 3))
        return squares(q, None, targets, batch.get("weight"), self.limit)

    def actor_loss(self, batch: Batch) -> Tensor:
        """Return the policy's losses (P, B).

            J = -mean q₁(s, μ(s))

        No gradient passes to the critic.
        """
        return -self.policy.q(batch, torch.tanh(self.policy.learning_outputs(batch)))[:, 0, :, 0]

    def kernel(self) -> ActorCriticSteps | None:
        return ActorCriticSteps.covering(self, self.perceptrons, heard=1)

    @torch.no_grad()
    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's critic loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). The next actions have no noise.
        """
        reward, batch = self.total_reward(batch), self.policy.encode(batch)
        next_actions = torch.tanh(self.policy.target_outputs(batch))
        losses, _, q = self.critic_loss(batch, reward, next_actions)
        return losses.mean(1), {"q": q.mean((1, 2))}


class DDPG(Task):
    """Deep deterministic policy gradient for bounded Boxes.

    Lillicrap et al. (2016), arXiv:1509.02971. It acts in Dicts and Tuples
    of Boxes, too. Prioritized replay, n-step targets, a running reward scale, signals and cloning are options, as in
    SAC. It has no memory, and takes no images.
    """

    name = "ddpg"
    version = 2
    learner = DDPGLearner
