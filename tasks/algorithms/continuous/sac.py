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

from ....spaces import Space, categorical, integer
from ...checkpoint.member_state import Stacked
from ...envs import EnvSpec, spaces_of
from ...errors import UnsupportedSpace
from ...rng.draws import Draws
from ...task import Task
from .actions import SoftActions, soft_head
from .entropy import FixedEntropy, LearnedEntropy, entropy_space, new_entropy
from .learner import UNTUNED, ActorCriticLearner, actor_critic_space, critic_space, delay_choice
from .networks import NetworkForm
from .noise import sde_space
from .steps import ActorCriticSteps

TWINS = 2


def ensemble_space() -> Space:
    """Return the hyperparameters of the critics' form and number.

    Targets follow the least value of `subset` critics of an `ensemble`, drawn at random for each gradient step, and the
    policy the mean of all: Chen et al. (2021), arXiv:2101.05982 (REDQ), with num_updates = policy_delay = 20,
    ensemble = 10 and subset = 2. With `mean`, the policy follows the mean of two critics, too, as in DroQ.
    """
    mean: dict[str, Any] = {"when": {"ensemble": TWINS}, "help": "the policy follows the critics' mean"}
    return critic_space(
        ensemble=integer(2, 10, default=2, accept=(2, 100), help="number of critics", **UNTUNED),
        subset=integer(1, 10, default=2, accept=(1, 100), help="critics whose least value is the target", **UNTUNED),
        mean=categorical(False, True, default=False, **mean, **UNTUNED),
    )


class SACLearner(ActorCriticLearner):
    """P members of SAC.

    Attributes:
        ensemble: `critic.ensemble`, or two.
        has_ensemble: whether there are other critics than two, whose lesser value counts.
        follows_mean: whether the policy follows the mean of the critics.
        coefficients: coefficients of the policy's entropies.
    """

    hyperparameters = actor_critic_space(
        lr=3e-4,
        entropy=entropy_space(),
        critic=ensemble_space(),
        policy_delay=delay_choice(1, 20, "the policy and its entropy coefficients", silent=True),
        **sde_space(),
    )
    parts = (*ActorCriticLearner.parts, "coefficients")
    action_form: ClassVar[type[SoftActions]] = SoftActions
    knows_masks = True
    noise_rows = 2  # for a batch and its next observations
    actions: SoftActions
    coefficients: FixedEntropy | LearnedEntropy

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

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        actions = cls.describe_actions(env)
        has_box = actions.continuous_dim > 0
        effects = {"entropy.target": has_box, "use_sde": has_box, "entropy.choice_target": actions.num_discrete > 1}
        return [name for name, has_effect in effects.items() if not has_effect] + super().without_effect(env, fixed)

    def network_form(self) -> NetworkForm:
        return NetworkForm(self.hp, soft_head(self.actions, self.hp), self.ensemble, self.actions.num_discrete)

    def build(self) -> None:
        hp = self.hp
        critic = vars(vars(hp).get("critic", SimpleNamespace()))
        self.ensemble, subset = critic.get("ensemble", TWINS), critic.get("subset", TWINS)
        self.has_ensemble = (self.ensemble, subset) != (TWINS, TWINS)
        self.follows_mean = self.has_ensemble or critic.get("mean", False)
        super().build()
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

    def actor_values(self, q: Tensor) -> Tensor:
        """Return the least values, or the mean of all: arXiv:2101.05982."""
        return q.transpose(1, 3).contiguous().mean(-1).transpose(1, 2) if self.follows_mean else super().actor_values(q)

    def kernel(self) -> ActorCriticSteps | None:
        return ActorCriticSteps.covering(self, self.perceptrons, mean=self.follows_mean)


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
