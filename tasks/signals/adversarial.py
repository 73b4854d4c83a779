"""Generative adversarial imitation learning (GAIL): Ho and Ermon (2016), arXiv:1606.03476.

A discriminator D tells demonstrated steps E from the policy's π, which is rewarded for what is taken for the former:

    L = -mean_E log D - mean_π log(1 - D) + λ mean (‖∇z‖ - 1)²,   r = -log(1 - D),   D = 1 / (1 + exp(-z))

The first two terms are eq. 17 with the labels changed round; the third is the gradient penalty of Gulrajani et al.
(2017), arXiv:1704.00028, eq. 3, on z at random points between demonstrated and own steps (with images: between what the
convolutions make of them). z sees the observation, and the action unless `use_actions` is off; vectors are whitened by
running moments of the policy's. The reward is never negative: it also pays for a longer episode.

With `variational`, D knows of a step what goes through a bottleneck (VAIL), see `bottleneck`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, log_real, ordinal
from ..experience.normalizers import ObservationNormalizer
from ..experience.returns import average
from ..experience.rollout import Rollout
from ..experience.whole_episodes import minibatch_size
from ..networks.recurrent import sigmoid
from ..rng.draws import Draws
from .actions import ActionCode
from .bottleneck import Bottleneck
from .demonstrations import Examples
from .learned import Eye, Learned, perceptron
from .signal import Signal, signal_space
from .slopes import slope_of

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner


def gail_space() -> Space:
    """The hyperparameters of GAIL.

    Of the variational form, see `bottleneck`: information is I_c, how many nats a code may tell of a step; beta_lr is
    α_β, how fast the price of more changes; code_width is how many numbers a code has.
    """
    on: dict[str, Any] = {"search": False, "when": {"use": True}}
    coded: dict[str, Any] = {"when": {"variational": True}}
    return signal_space(
        3e-4,
        (1e-2, 1.0, 1.0),
        use_actions=categorical(False, True, default=True, structural=True, **on),
        gradient_penalty=log_real(0.1, 100.0, default=10.0, accept=(0.0, 1e6), **on),
        variational=categorical(False, True, default=False, structural=True, silent=True, **on),
        information=log_real(0.05, 5.0, default=0.5, accept=(0.0, 1e6), **coded),
        beta_lr=log_real(1e-5, 1e-2, default=5e-4, accept=(0.0, 1e6), **coded),
        code_width=ordinal(
            16, 32, 64, 128, 256, default=128, accept=(2, 65536), structural=True, search=False, **coded
        ),
    )


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); torch's own rounds by position in the array."""
    return x.clamp(min=0) + (1 + (-x.abs()).exp()).log()


class Discriminator:
    """A perceptron that estimates z of P members; see `Bottleneck` for one that knows less of what it judges.

    Attributes:
        networks: those that need parameters.
    """

    def __init__(self, inputs: int, width: int):
        self.net = perceptron("gail.discriminator", inputs, width, 1)
        self.networks = [self.net]

    def estimate(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """z of (P, B, inputs), (P, B)."""
        return self.net(self.net.layers(tensors), x).squeeze(-1)

    def sample(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, place: int) -> tuple[Tensor, None]:
        """z, and that nothing is known of how much it took to say so."""
        return self.estimate(tensors, x), None

    def slope(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, place: int) -> Tensor:
        """∇z in x, (P, B, inputs)."""
        return slope_of(self.net, self.net.layers(tensors), x)


class Adversary(Signal):
    """GAIL of P members."""

    name = "gail"
    episodic = True

    def __init__(self, learner: ActingLearner, examples: Examples | None):
        super().__init__(learner, examples)
        shape, batch = learner.envs.obs_shape, minibatch_size(learner.hp)
        assert examples is not None
        self.shown, self.seen = examples, learner.obs_normalizer
        self.actions = ActionCode(learner.envs.action_space, f"GAIL on {learner.env.id}", learner.device)
        self.eye = Eye("gail", learner)
        inputs = self.eye.size + (self.actions.size if self.hp.use_actions else 0)
        self.bottleneck: Bottleneck | None = None
        if getattr(self.hp, "variational", False):
            widths, keys = (self.hp.width, self.hp.code_width), learner.keys("gail.code")
            self.bottleneck = Bottleneck(inputs, widths, keys, batch, learner.device)
        self.judge = self.bottleneck or Discriminator(inputs, self.hp.width)
        self.learned = Learned([*self.eye.networks, *self.judge.networks], learner.seeds, learner.device)
        self.whitening = ObservationNormalizer(learner.members, shape[0]) if len(shape) == 1 else None
        self.draws = Draws(learner.keys("gail"), (2, batch))

    def watch(self, rollout: Rollout) -> None:
        if self.whitening is not None:
            self.whitening.moments.update(rollout.obs[:, :-1].flatten(1, 2).cpu().numpy())

    def _inputs(self, tensors: Mapping[str, Tensor], obs: Tensor, actions: Tensor) -> Tensor:
        """What the discriminator takes, (P, B, inputs)."""
        seen = self.eye(tensors, obs if self.whitening is None else self.whitening.of_batch(obs))
        return torch.cat([seen, self.actions(actions)], -1) if self.hp.use_actions else seen

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        tensors = self.learned.views
        return softplus(self.judge.estimate(tensors, self._inputs(tensors, batch["obs"], batch["actions"])))

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, draws, weights = self.learned.leaves, self.draws(position), batch.get("weights")
        shown = self.shown.batch((draws[:, 0] * self.shown.steps).astype(np.int64), self.seen)
        own = self._inputs(tensors, batch["obs"], batch["actions"])
        expert = self._inputs(tensors, shown["obs"], shown["actions"])
        part = torch.from_numpy(draws[:, 1].astype(np.float32)).to(own).unsqueeze(-1)
        (z_own, kl_own), (z_expert, kl_expert) = (
            self.judge.sample(tensors, x, position, place) for place, x in enumerate((own, expert))
        )
        slope = self.judge.slope(tensors, part * expert + (1 - part) * own, position, 0)
        penalty = average(((slope.square().sum(-1) + 1e-12).sqrt() - 1).square(), weights)
        losses = softplus(-z_expert).mean(1) + average(softplus(z_own), weights)
        losses = losses + self.hp.gradient_penalty[:, 0] * penalty
        sure = average(sigmoid(z_own.detach()), weights)
        report = {"expert_estimate": sigmoid(z_expert.detach()).mean(1), "policy_estimate": sure}
        report["gradient_penalty"] = penalty
        if self.bottleneck is not None and kl_own is not None and kl_expert is not None:
            beta = self.bottleneck.tensors["beta"][:, 0].clone()
            information = 0.5 * (average(kl_own, weights) + kl_expert.mean(1))
            losses = losses + beta * (information - self.hp.information[:, 0])
            report |= {"information": information, "beta": beta}
        return losses, report

    def settle(self, report: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        if self.bottleneck is not None:
            excess = report["information"].detach().unsqueeze(1) - self.hp.information
            self.bottleneck.raise_price(excess, self.hp.beta_lr, active)

    @property
    def own(self) -> dict[str, Any]:
        held = {"whitening": self.whitening, "bottleneck": self.bottleneck}
        return {name: part for name, part in held.items() if part is not None}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return super().tensors | ({} if self.bottleneck is None else self.bottleneck.tensors)
