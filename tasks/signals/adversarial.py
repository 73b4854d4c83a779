"""Generative adversarial imitation learning (GAIL): Ho and Ermon (2016), arXiv:1606.03476.

A discriminator D tells demonstrated steps E from the policy's π, which is rewarded for what is taken for the former:

    L = -mean_E log D - mean_π log(1 - D) + λ mean (‖∇z‖ - 1)²,   r = -log(1 - D),   D = 1 / (1 + exp(-z))

The first two terms are eq. 17 with the labels changed round; the third is the gradient penalty of Gulrajani et al.
(2017), arXiv:1704.00028, eq. 3, on z at random points between demonstrated and own steps (with images: between what the
convolutions make of them). z sees the observation, and the action unless `use_actions` is off; vectors are whitened by
running moments of the policy's. The reward is never negative: it also pays for a longer episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, log_real
from ..draws import Draws
from ..networks import Layers, affine
from ..normalizers import ObservationNormalizer
from ..rollout import Rollout
from .actions import ActionCode
from .demonstrations import Examples
from .learned import Eye, Learned, perceptron
from .signal import Signal, signal_space

if TYPE_CHECKING:
    from ..on_policy import OnPolicyLearner


def gail_space() -> Space:
    """The hyperparameters of GAIL."""
    on: dict[str, Any] = {"search": False, "when": {"use": True}}
    return signal_space(
        3e-4,
        (1e-2, 1.0, 1.0),
        use_actions=categorical(False, True, default=True, structural=True, **on),
        gradient_penalty=log_real(0.1, 100.0, default=10.0, accept=(0.0, 1e6), **on),
    )


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); torch's own rounds by position in the array."""
    return x.clamp(min=0) + (1 + (-x.abs()).exp()).log()


def with_slope(layers: Layers, x: Tensor) -> tuple[Tensor, Tensor]:
    """z (P, B) of a perceptron of tanh for x (P, B, inputs), and ∇z in x, (P, B, inputs), both differentiable."""
    values = [x]
    for weight, bias in layers[:-1]:
        values.append(torch.tanh(affine(values[-1], weight, bias)))
    z = affine(values[-1], *layers[-1]).squeeze(-1)
    slope = layers[-1][0].transpose(1, 2)
    for (weight, _), y in zip(reversed(layers[:-1]), reversed(values[1:]), strict=True):
        slope = affine(slope * (1 - y * y), weight.transpose(1, 2), weight.new_zeros(len(weight), 1, weight.shape[1]))
    return z, slope


class Adversary(Signal):
    """GAIL of P members."""

    name = "gail"
    episodic = True

    def __init__(self, learner: OnPolicyLearner, examples: Examples | None):
        super().__init__(learner, examples)
        hp, shape = learner.hp, learner.envs.obs_shape
        assert examples is not None
        self.shown, self.seen = examples, learner.obs_normalizer
        self.actions = ActionCode(learner.envs.action_space, f"GAIL on {learner.env.id}", learner.device)
        self.eye = Eye("gail", shape)
        inputs = self.eye.size + (self.actions.size if self.hp.use_actions else 0)
        self.net = perceptron("gail.discriminator", inputs, self.hp.width, 1)
        self.learned = Learned([*self.eye.networks, self.net], learner.seeds, learner.device)
        self.whitening = ObservationNormalizer(learner.members, shape[0]) if len(shape) == 1 else None
        self.draws = Draws(learner.keys("gail"), (2, hp.num_steps * hp.num_envs // hp.num_minibatches))

    def watch(self, rollout: Rollout) -> None:
        if self.whitening is not None:
            self.whitening.moments.update(rollout.obs[:, :-1].flatten(1, 2).cpu().numpy())

    def _inputs(self, tensors: Mapping[str, Tensor], obs: Tensor, actions: Tensor) -> Tensor:
        """What the discriminator takes, (P, B, inputs)."""
        seen = self.eye(tensors, obs if self.whitening is None else self.whitening.of_batch(obs))
        return torch.cat([seen, self.actions(actions)], -1) if self.hp.use_actions else seen

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        tensors = self.learned.views
        z = self.net(self.net.layers(tensors), self._inputs(tensors, batch["obs"], batch["actions"]))
        return softplus(z.squeeze(-1))

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, draws = self.learned.leaves, self.draws(position)
        layers = self.net.layers(tensors)
        shown = self.shown.batch((draws[:, 0] * self.shown.steps).astype(np.int64), self.seen)
        own = self._inputs(tensors, batch["obs"], batch["actions"])
        expert = self._inputs(tensors, shown["obs"], shown["actions"])
        part = torch.from_numpy(draws[:, 1].astype(np.float32)).to(own).unsqueeze(-1)
        z_own, z_expert = (self.net(layers, x).squeeze(-1) for x in (own, expert))
        _, slope = with_slope(layers, part * expert + (1 - part) * own)
        penalty = ((slope.square().sum(-1) + 1e-12).sqrt() - 1).square().mean(1)
        losses = softplus(-z_expert).mean(1) + softplus(z_own).mean(1)
        told = {"expert_estimate": z_expert, "policy_estimate": z_own}
        report = {name: (0.5 * (1 + torch.tanh(0.5 * z.detach()))).mean(1) for name, z in told.items()}
        return losses + self.hp.gradient_penalty[:, 0] * penalty, {**report, "gradient_penalty": penalty}

    @property
    def own(self) -> dict[str, Any]:
        return {} if self.whitening is None else {"whitening": self.whitening}
