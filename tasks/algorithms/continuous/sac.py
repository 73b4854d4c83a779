"""Soft actor-critic (SAC): Haarnoja et al. (2018), arXiv:1812.05905.

The discrete form follows Christodoulou (2019), arXiv:1910.07207.

A gradient step updates critics, actor, entropy coefficient and targets, in this order. The actor sees the updated
critics. The coefficient moves by the entropy that the actor had before its step. The targets follow the updated
critics. Losses are given for each row of a batch, (P, B); gradients are those of their mean.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...errors import UnsupportedSpace
from ...networks.optimizers import norms
from ...rng.draws import Draws
from ...task import Task
from .actions import SoftActions, SoftSample, soft_head
from .ensemble import TWINS, check_subset, delay_space, ensemble_space
from .entropy import FixedEntropy, LearnedEntropy, entropy_space, forbidden_entropy, new_entropy
from .learner import ActorCriticLearner, actor_critic_space, check_mask, masked, squares
from .networks import Batch, NetworkForm
from .noise import sde_space
from .steps import ActorCriticSteps


class SACLearner(ActorCriticLearner):
    """P members of SAC.

    Attributes:
        has_ensemble: whether there are other critics than two, whose lesser value counts.
        follows_mean: whether the policy follows the mean of the critics.
        coefficients: coefficients of the policy's entropies.
    """

    hyperparameters = actor_critic_space(
        lr=3e-4, entropy=entropy_space(), critic=ensemble_space(), policy_delay=delay_space(), **sde_space()
    )
    parts = (*ActorCriticLearner.parts, "coefficients")
    in_kernel: ClassVar[tuple[str, ...]] = (*ActorCriticLearner.in_kernel, "of_subset")
    knows_masks = True
    noise_rows = 2  # for a batch and its next observations
    actions: SoftActions
    coefficients: FixedEntropy | LearnedEntropy

    @classmethod
    def describe_actions(cls, env: EnvSpec, device: torch.device | str = "cpu") -> SoftActions:
        return SoftActions(spaces_of(env).action, f"{cls.algorithm()} on {env.id}", device)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        check_subset(values, cls.algorithm())

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        if values.get("use_sde") and not cls.describe_actions(env).continuous_dim:
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id}: use_sde explores in a Box of floats, but got {spaces_of(env).action}; "
                "leave use_sde out"
            )
        check_mask(values, env, cls.algorithm())

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        actions = cls.describe_actions(env)
        effects = {"entropy.target": actions.continuous_dim > 0, "entropy.choice_target": actions.num_discrete > 1}
        return [name for name, has_effect in effects.items() if not has_effect] + super().without_effect(env, fixed)

    def network_form(self) -> NetworkForm:
        head, critics, choices = soft_head(self.actions, self.hp), self.hp.critic.ensemble, self.actions.num_discrete
        return NetworkForm(head, critics, choices, mask=self.mask)

    def build(self) -> None:
        super().build()
        hp = self.hp
        critic = vars(vars(hp).get("critic", SimpleNamespace()))
        self.has_ensemble = (critic.get("ensemble", TWINS), critic.get("subset", TWINS)) != (TWINS, TWINS)
        self.follows_mean = self.has_ensemble or critic.get("mean", False)
        self.subset_draws = Draws(self.keys("subset"), (self.policy.copies,))
        self.entropy_lr = hp.optimizer.lr if hp.entropy.lr is None else hp.entropy.lr
        self.coefficients = new_entropy(hp, self.actions)

    def new_parts(self, seeds: list[int]) -> dict[str, Stacked]:
        coefficients = new_entropy(self.hp, self.actions)
        learned = {"coefficients": coefficients} if isinstance(coefficients, LearnedEntropy) else {}
        return {**super().new_parts(seeds), **learned}

    def alpha(self) -> Tensor:
        return self.coefficients.alpha

    def follow(self, entropies: Tensor | None, tau: Tensor | None) -> None:
        if entropies is not None:
            self.coefficients.descend(entropies, self.scheduled(self.entropy_lr))
        super().follow(entropies, tau)

    def subset(self, number: int) -> Tensor | None:
        if not self.has_ensemble:
            return None
        return torch.from_numpy(self.subset_draws(number).argsort(-1)[:, : self.hp.critic.subset]).to(self.device)

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        number = self.progress.updates
        if (subset := self.subset(number)) is not None:
            batch = {**batch, "subset": subset}
        moves_actor, tau = self.due(number)
        return self.step(batch, self.update_noise(number), tau, moves_actor, self.measured)

    @captured
    def step(
        self, batch: Batch, noise: Tensor, tau: Tensor | None, moves_actor: bool, measured: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        Args:
            batch: tensors (P, B, ...).
            noise: standard normal numbers for the actions, (P, 2 B, k).
            tau: fraction by which the targets move, (P, 1); 0 or None leaves them.
            moves_actor: whether actor and entropy coefficients move, too.
            measured: whether metrics include the gradients' norms.
        """
        policy, rows, mask = self.policy, self.hp.batch_size, batch.get("mask")
        reward, batch, alpha = self.total_reward(batch), policy.encode(batch), self.alpha()
        with torch.set_grad_enabled(moves_actor):
            outputs, next_outputs = policy.outputs_of(batch)  # of the actor before its step
        sample, next_sample = (
            self.actions.sample(x, z) for x, z in ((outputs, noise[:, :rows]), (next_outputs, noise[:, rows:]))
        )

        critic_loss, errors, q = self.critic_loss(batch, reward, next_sample, alpha)
        critics = self.descend_critics(critic_loss)
        report = {"critic_loss": critic_loss.detach().mean(1), "q": q, "alpha": alpha.mean(1)}
        report |= norms(critics, self.critic_spans) if measured else {}
        entropies = None
        if moves_actor:
            actor_loss = masked(self.actor_loss(batch, sample, alpha), mask)
            actor = self.descend_actor(actor_loss)
            entropies = masked(sample.entropies.detach(), mask).mean(1)
            report |= {"actor_loss": actor_loss.detach().mean(1), "entropy": entropies.sum(1)}
            report |= norms(actor, "actor") if measured else {}
            entropies = (
                entropies + forbidden_entropy(self.hp, self.actions, batch["obs"], policy.mask)
                if policy.mask
                else entropies
            )
        self.follow(entropies, tau)
        return report, errors[:, 0]

    def critic_loss(
        self, batch: Batch, reward: Tensor, next_sample: SoftSample, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' losses, errors and mean values.

            J = mean Σᵢ ½ (y - qᵢ(s, a))²,   y = r + discount V'(s')

        arXiv:1812.05905, eq. 5. V' is the soft value of the target critics. `critic_loss` may replace the square.

        Args:
            batch: tensors (P, B, ...) with the actions that were taken.
            reward: r, the `total_reward`, (P, B).
            next_sample: actions for the next observations.
            alpha: entropy coefficients, (P, terms).

        Returns:
            Losses (P, B), errors y - qᵢ(s, a), (P, 2, B), and the mean of q, (P,).
        """
        numbers, choices = self.actions.normalize(batch["action"])
        q, next_q = self.policy.q_and_target(batch, numbers, next_sample.continuous)
        heard = self.of_subset(next_q, batch.get("subset")) if self.has_ensemble else next_q
        targets = reward + batch["discount"] * soft_value(heard.min(1).values, next_sample, alpha)
        mask = batch.get("mask")
        losses, errors, q = squares(q, choices, targets, batch.get("weight", mask), self.limit)
        return losses, errors, q.mean((1, 2)) if mask is None else masked(q.mean(1), mask).mean(1)

    def actor_loss(self, batch: Batch, sample: SoftSample, alpha: Tensor) -> Tensor:
        """Return the policy's losses (P, B).

            J = mean α log π(c|s) - minᵢ qᵢ(s, c)

        arXiv:1812.05905, eq. 9. In place of the least qᵢ may be their mean. The action c is a function of the policy's
        outputs and of noise, which lets the gradient pass.
        """
        q = self.policy.q(batch, sample.continuous)
        mean = q.transpose(1, 3).contiguous().mean(-1).transpose(1, 2)
        return -soft_value(mean if self.follows_mean else q.min(1).values, sample, alpha)

    def of_subset(self, next_q: Tensor, subset: Tensor | None) -> Tensor:
        """Select the values of a subset of critics.

        The values are (P, c, B, n) before and (P, m, B, n) afterwards, the subset (P, m); None takes the first.
        """
        if subset is None:
            return next_q[:, : self.hp.critic.subset]
        index = subset.view(*subset.shape, 1, 1).expand(-1, -1, *next_q.shape[2:])
        return next_q.gather(1, index)

    def kernel(self) -> ActorCriticSteps | None:
        return ActorCriticSteps.covering(self, self.perceptrons, mean=self.follows_mean)

    @torch.no_grad()
    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's critic loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). The next actions are the medians of their distribution, without noise.
        """
        reward, batch = self.total_reward(batch), self.policy.encode(batch)
        _, next_outputs = self.policy.outputs_of(batch)
        noise = torch.zeros(*next_outputs.shape[:2], self.actions.continuous_dim, device=self.device)
        next_sample = self.actions.sample(next_outputs, noise)
        rows = {name: x for name, x in batch.items() if name != "weight"}
        losses, _, q = self.critic_loss(rows, reward, next_sample, self.alpha())
        return losses.mean(1), {"q": q}


def soft_value(q: Tensor, sample: SoftSample, alpha: Tensor) -> Tensor:
    """Return the soft value (P, B) for values q (P, B, n).

        V = Σ_d π(d|s) q(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

    Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10.

    Args:
        q: values, such as the lesser ones of two critics.
        sample: actions.
        alpha: entropy coefficients α, (P, terms).
    """
    value = q.squeeze(-1) if sample.probs is None else (sample.probs * q).sum(-1)
    return value + (sample.entropies * alpha.unsqueeze(1)).sum(-1)


class SAC(Task):
    """Soft actor-critic (SAC) with twin critics.

    It acts in bounded Boxes, in choices (several form one choice of all combinations), and in Dicts and Tuples of both.
    With a recurrent core (`model.memory`), policy and critics learn from sequences, see `sequence_replay`. For images,
    an encoder learns from the critics' loss alone, see `image_networks`.

    Haarnoja et al. (2018), arXiv:1812.05905; Christodoulou (2019), arXiv:1910.07207. tau is the fraction that the
    targets take from the online critics; some libraries name the fraction kept. Options beyond the papers: prioritized
    replay, n-step targets (without the entropies of the steps between), a running reward scale, and more than two
    critics (`critic.ensemble`).
    """

    name = "sac"
    version = 6
    learner = SACLearner
