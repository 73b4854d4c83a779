"""Soft actor-critic (SAC): Haarnoja et al. (2018), arXiv:1812.05905.

The discrete form follows Christodoulou (2019), arXiv:1910.07207.

A gradient step updates critics, actor, entropy coefficient and targets, in this order. The actor sees the updated
critics. The coefficient moves by the entropy that the actor had before its step. The targets follow the updated
critics. Losses are given for each row of a batch, (P, B); gradients are those of their mean.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....spaces import Dimension, Space, categorical, integer, log_real, maybe, real
from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...envs.base.encode import Observations
from ...errors import UnsupportedSpace
from ...networks.encoders import ENCODERS
from ...networks.masks import allowed_in
from ...networks.optimizers import norms
from ...rng.draws import Draws
from ...task import Task
from .actions import SoftActions, SoftSample, soft_head
from .entropy import FixedEntropy, LearnedEntropy
from .learner import ActorCriticLearner, actor_critic_space, critic_space, masked, squares
from .networks import Batch, NetworkForm
from .steps import ActorCriticSteps

TWINS = 2


def entropy_space() -> Space:
    """Return the hyperparameters of the entropy's coefficients.

    `alpha` is the coefficient, or its initial value if it is learned. The target entropy is -`target` per continuous
    number, and `choice_target` log n for a choice of n.
    """
    return Space(
        learn=categorical(True, False, default=True, structural=True),
        alpha=log_real(1e-3, 1.0, default=1.0, accept=(1e-12, 1e6)),
        lr=maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),  # None: the optimizer's
        target=real(0.25, 2.0, default=1.0, accept=(-100.0, 100.0), when={"learn": True}),
        choice_target=real(0.05, 0.98, default=0.3, accept=(0.0, 1.0), when={"learn": True}),
    )


def sde_space() -> dict[str, Dimension | Space]:
    """Return the hyperparameters of state-dependent exploration, see `actions`.

    Its noise is drawn every `sde_sample_freq` steps. `sde_std_init` is the initial standard deviation when all
    activations of the last hidden layer are 1 or -1. `sde_clip_mean` bounds the means before they are squashed, against
    overflow, as in Stable-Baselines3.
    """
    use = {"use_sde": True}
    return {
        "use_sde": categorical(False, True, default=False, structural=True, search=False),
        "sde_sample_freq": integer(1, 1_000_000, default=64, structural=True, search=False, when=use),
        "sde_std_init": real(0.1, 1.5, default=1.0, accept=(1e-3, 100.0), search=False, when=use),
        "sde_clip_mean": maybe(real(1.0, 5.0, accept=(1e-3, 1e3)), default=None, search=False, silent=True, when=use),
    }


def ensemble_space() -> Space:
    """Return the hyperparameters of the critics' form and number.

    Targets follow the least value of `subset` critics of an `ensemble`, drawn at random for each gradient step, and the
    policy the mean of all: Chen et al. (2021), arXiv:2101.05982 (REDQ), with num_updates = policy_delay = 20,
    ensemble = 10 and subset = 2. With `mean`, the policy follows the mean of two critics, too, as in DroQ.
    """
    rest: dict[str, Any] = {"structural": True, "search": False, "silent": True}
    return critic_space(
        ensemble=integer(2, 10, default=2, accept=(2, 100), help="number of critics", **rest),
        subset=integer(1, 10, default=2, accept=(1, 100), help="critics whose least value is the target", **rest),
        mean=categorical(
            False, True, default=False, when={"ensemble": TWINS}, help="the policy follows the critics' mean", **rest
        ),
    )


def delay_space() -> Dimension:
    """Return the hyperparameter of the policy's delay behind the critics."""
    return integer(
        1, 20, default=1, accept=(1, 1000), structural=True, search=False, silent=True,
        help="gradient steps of the critics for each of the policy and its entropy coefficients",
    )  # fmt: skip


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
        critic = values.get("critic", {})
        if "subset" in critic and critic["subset"] > critic["ensemble"]:
            raise ValueError(
                f"{cls.algorithm()}: targets take a subset of the critics, but critic.subset is {critic['subset']} and "
                f"critic.ensemble {critic['ensemble']}; raise critic.ensemble or lower critic.subset"
            )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        if values.get("use_sde") and not cls.describe_actions(env).continuous_dim:
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id}: use_sde explores in a Box of floats, but got {spaces_of(env).action}; "
                "leave use_sde out"
            )
        observations = Observations(spaces_of(env).observation, env.id)
        model = SimpleNamespace(**values["model"])
        encoded = observations.kind != "vector" or model.encoder not in ENCODERS
        if observations.mask is not None and (model.memory != "none" or encoded):
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id}: a memory or an encoder hides the action mask from the policy, but "
                f"model.memory is {model.memory!r} and model.encoder {model.encoder!r}; leave them out, or use ppo"
            )

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
        self.coefficients = self.new_coefficients()

    def new_coefficients(self) -> LearnedEntropy | FixedEntropy:
        """Return the entropy's coefficients, at their initial values."""
        hp = self.hp
        if hp.entropy.learn:
            return LearnedEntropy(hp.entropy.alpha, self.target_entropy(), hp.optimizer)
        return FixedEntropy(hp.entropy.alpha.repeat(1, self.actions.entropy_terms))

    def new_parts(self, seeds: list[int]) -> dict[str, Stacked]:
        coefficients = self.new_coefficients()
        learned = {"coefficients": coefficients} if isinstance(coefficients, LearnedEntropy) else {}
        return {**super().new_parts(seeds), **learned}

    def target_entropy(self) -> Tensor:
        """Return the target entropies, (P, entropy_terms).

        They are -`target` per continuous number, and `choice_target` log n for a choice of n.
        """
        hp, k, n = self.hp.entropy, self.actions.continuous_dim, self.actions.num_discrete
        continuous = [-hp.target * k] if k else []
        discrete = [hp.choice_target * math.log(n)] if n > 1 else []
        return torch.cat(continuous + discrete, 1)

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
            entropies = entropies + self.forbidden_entropy(batch, policy.mask) if policy.mask else entropies
        self.follow(entropies, tau)
        return report, errors[:, 0]

    def forbidden_entropy(self, batch: Batch, mask: slice) -> Tensor:
        """Return the mean decrease of target entropies by masks, (P, 1).

        The target of a choice among m allowed ones is `choice_target` log m.
        """
        share = vars(self.hp.entropy).get("choice_target", 0.0)
        counts = self.actions.allowed(allowed_in(batch["obs"], mask)).sum(-1).clamp(min=1)
        decrease: Tensor = share * (self.actions.num_discrete / counts).log().mean(1, keepdim=True)
        return decrease

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
