"""Generative adversarial imitation learning (GAIL): Ho and Ermon (2016), arXiv:1606.03476.

A discriminator D learns to distinguish demonstrated steps E from those of the policy π. The policy is rewarded for
steps that look demonstrated:

    L = -mean_E log D - mean_π log(1 - D) + λ mean (‖∇z‖ - 1)²,   r = -log(1 - D),   D = 1 / (1 + exp(-z))

The first two terms are eq. 17 with the labels exchanged. The third is the gradient penalty of Gulrajani et al. (2017),
arXiv:1704.00028, eq. 3, on z at random points between demonstrated and own steps (for images, between their encodings).
z depends on the observation, and on the action unless `use_actions` is off. Vectors are whitened by running moments of
the policy's observations. The reward is never negative, so it also favors longer episodes.

With `variational`, D sees a step through a bottleneck (VAIL), see `discriminators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, log_real, ordinal
from ..checkpoint.member_state import Part
from ..experience.normalizers import ObservationNormalizer
from ..experience.returns import average
from ..experience.whole_episodes import minibatch_size
from ..learner import Learner
from ..networks.recurrent import sigmoid
from ..rng.draws import Draws
from .action_encoding import ActionEncoder
from .demonstrations import Examples
from .discriminators import Bottleneck, Discriminator
from .signal import Signal, TrainedNetworks, encoder, signal_space


def gail_space() -> Space:
    """Return the hyperparameters of GAIL.

    The variational form has three more: `information` is I_c in nats, `beta_lr` is α_β, and `code_width` the size of a
    code.
    """
    when_used: dict[str, Any] = {"search": False, "when": {"use": True}}
    when_variational: dict[str, Any] = {"when": {"variational": True}}
    return signal_space(
        3e-4,
        (1e-2, 1.0, 1.0),
        use_actions=categorical(False, True, default=True, structural=True, **when_used),
        gradient_penalty=log_real(0.1, 100.0, default=10.0, accept=(0.0, 1e6), **when_used),
        variational=categorical(False, True, default=False, structural=True, silent=True, **when_used),
        information=log_real(0.05, 5.0, default=0.5, accept=(0.0, 1e6), **when_variational),
        beta_lr=log_real(1e-5, 1e-2, default=5e-4, accept=(0.0, 1e6), **when_variational),
        code_width=ordinal(
            16, 32, 64, 128, 256, default=128, accept=(2, 65536), structural=True, search=False, **when_variational
        ),
    )


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)); torch's own rounds by position in the array."""
    return x.clamp(min=0) + (1 + (-x.abs()).exp()).log()


class GAIL(Signal):
    """GAIL of P members."""

    name = "gail"
    episodic = True

    def build(self, learner: Learner, examples: Examples | None) -> dict[str, Part | None]:
        hp, shape, batch = self.hp, learner.envs.obs_shape, minibatch_size(learner.hp)
        assert examples is not None
        self.examples, self.obs_normalizer = examples, (learner.agent or learner).obs_normalizer
        self.actions = ActionEncoder(learner.envs.action_space, f"GAIL on {learner.env.id}", learner.device)
        self.encoder = encoder("gail", learner)
        inputs = self.encoder.features + (self.actions.size if hp.use_actions else 0)
        self.bottleneck: Bottleneck | None = None
        if hp.variational:
            keys = learner.keys("gail.code")
            self.bottleneck = Bottleneck(inputs, hp.width, hp.code_width, keys, batch, learner.device)
        self.discriminator = self.bottleneck or Discriminator(inputs, hp.width)
        self.trained = TrainedNetworks([self.encoder, *self.discriminator.networks], learner.seeds, learner.device)
        self.whitening = ObservationNormalizer(learner.members, shape[0]) if len(shape) == 1 else None
        self.draws = Draws(learner.keys("gail"), (2, batch))
        return {"learned": self.trained, "whitening": self.whitening, "bottleneck": self.bottleneck}

    def observe(self, batch: Mapping[str, Tensor], counted: np.ndarray | None = None) -> None:
        if self.whitening is not None:
            self.whitening.update(batch["obs"].cpu().numpy(), counted)

    def _inputs(self, tensors: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Return the discriminator's inputs (P, B, inputs) for obs and actions."""
        obs = batch["obs"] if self.whitening is None else self.whitening.of_batch(batch["obs"])
        features = self.encoder(tensors, obs)
        return torch.cat([features, self.actions(batch["actions"])], -1) if self.hp.use_actions else features

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        tensors = self.trained.views
        return softplus(self.discriminator.estimate(tensors, self._inputs(tensors, batch)))

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, draws, weights = self.trained.leaves, self.draws(position), batch.get("weights")
        demonstrated = self.examples.batch((draws[:, 0] * self.examples.steps).astype(np.int64), self.obs_normalizer)
        policy_inputs, expert_inputs = self._inputs(tensors, batch), self._inputs(tensors, demonstrated)
        mix = torch.from_numpy(draws[:, 1].astype(np.float32)).to(policy_inputs).unsqueeze(-1)
        (z_policy, kl_policy), (z_expert, kl_expert) = (
            self.discriminator.sample(tensors, x, position, index)
            for index, x in enumerate((policy_inputs, expert_inputs))
        )
        between = mix * expert_inputs + (1 - mix) * policy_inputs
        gradient = self.discriminator.input_gradient(tensors, between, position, 0)
        penalty = average(((gradient.square().sum(-1) + 1e-12).sqrt() - 1).square(), weights)
        losses = softplus(-z_expert).mean(1) + average(softplus(z_policy), weights)
        losses = losses + self.hp.gradient_penalty[:, 0] * penalty
        metrics = {
            "expert_estimate": sigmoid(z_expert.detach()).mean(1),
            "policy_estimate": average(sigmoid(z_policy.detach()), weights),
            "gradient_penalty": penalty,
        }
        if self.bottleneck is not None and kl_policy is not None and kl_expert is not None:
            beta = self.bottleneck.tensors["beta"][:, 0].clone()
            information = 0.5 * (average(kl_policy, weights) + kl_expert.mean(1))
            losses = losses + beta * (information - self.hp.information[:, 0])
            metrics |= {"information": information, "beta": beta}
        return losses, metrics

    def update_multiplier(self, metrics: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        if self.bottleneck is not None:
            excess = metrics["information"].detach().unsqueeze(1) - self.hp.information
            self.bottleneck.update_beta(excess, self.hp.beta_lr, active)
