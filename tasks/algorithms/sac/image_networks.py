"""The networks of soft actor-critic that see images: an encoder of the critics', by which the actor sees as well.

The encoder learns from the critics' loss alone, through both of the twins; the actor takes what it makes of an image as
given, and the targets see by a copy that follows it: Yarats et al. (2021), arXiv:1910.01741, section 5, and
arXiv:2004.13649. As there, a dense layer makes 50 numbers of all features, normalized by layer and squashed; here the
actor shares that layer, too. No image is shifted or reconstructed.

Notation: P members, B batch, F = 50 features, E numbers in the encoder's parameter vector, D in a critic's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ...networks.encoders import Encoder, encoder_for
from ...networks.mlp import MLP, Parameters
from .actions import SoftActions
from .networks import TWINS, SoftActorCritic

FEATURES = 50
Batch = Mapping[str, Tensor]


class CriticEncoder:
    """What the critics of P members make of images, and what their targets do."""

    scratch = ("_seen",)

    def __init__(self, hp: SimpleNamespace, image_shape: tuple[int, ...], seeds: Sequence[int], device: torch.device):
        """hp: the values of `model`."""
        self.filters = encoder_for(hp, "features", image_shape)
        self.dense = MLP("features.dense", [self.filters.features, FEATURES], hp.activation, last_gain=1.0)
        networks: list[Encoder | MLP] = [self.filters, self.dense]
        shapes = {name: shape for network in networks for name, shape in network.shapes.items()}
        self.parameters, self.target = (Parameters(shapes, len(seeds), device) for _ in range(2))
        for member, seed in enumerate(seeds):
            for network in networks:
                network.initialize(self.parameters, member, seed)
        self.target.vector.copy_(self.parameters.vector)
        self._seen = torch.zeros(0)

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """(P, B, H, W, C) bytes -> (P, B, F) in [-1, 1]."""
        x = self.dense(self.dense.layers(tensors), self.filters(tensors, images))
        x = x - x.mean(-1, keepdim=True)
        return torch.tanh(x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())

    def see(self, images: Tensor) -> Tensor:
        """The features of images, (P, B, F)."""
        return self(self.parameters.views, images)

    def learn(self, images: Tensor) -> Tensor:
        """The same, kept for `gradient`."""
        with torch.inference_mode(False), torch.enable_grad():
            self._seen = self(self.parameters.leaves, images)
        return self.seen

    @property
    def seen(self) -> Tensor:
        """What the last `learn` gave."""
        return self._seen.detach()

    def gradient(self, g: Tensor) -> Tensor:
        """The gradient (P, E) in the encoder by that in what the last `learn` gave, (P, B, F)."""
        with torch.inference_mode(False), torch.enable_grad():
            return self.parameters.gradient((g.clone() * self._seen).sum((1, 2)))


class SeeingSoftActorCritic(SoftActorCritic):
    """`SoftActorCritic` for images.

    Attributes:
        encoder_vector: (P, E), what the encoder's optimizer changes.
    """

    def __init__(
        self,
        image_shape: tuple[int, ...],
        actions: SoftActions,
        hp: SimpleNamespace,
        rows: int,
        seeds: list[int],
        device: torch.device,
        spread: Tensor | None = None,
    ):
        """image_shape: (H, W, C); hp: the values of `model`; rows: B; spread: as of `SoftActorCritic`."""
        super().__init__(FEATURES, actions, hp, rows, seeds, device, spread)
        self.encoder = CriticEncoder(hp, image_shape, seeds, device)
        self.encoder_vector = self.encoder.parameters.vector
        self.tensors |= {"encoder": self.encoder_vector, "encoder_target": self.encoder.target.vector}

    def hidden(self, obs: Tensor) -> Tensor:
        return super().hidden(self.encoder.see(obs))

    def policy(self, batch: Batch) -> Tensor:
        return self._policy(torch.cat([self.encoder.learn(batch["obs"]), self.encoder.see(batch["next_obs"])], 1))

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        following = self.encoder(self.encoder.target.views, batch["next_obs"])
        return self._both_q(self._twice(self.encoder.seen, numbers), self._twice(following, next_numbers))

    def critic_gradient(self, g: Tensor) -> Tensor:
        """The gradient (P, 2D + E) in the critics and their encoder by that in the last q, (P, 2, B, n)."""
        vector, to_input = self._dense_q.to_both(g.flatten(0, 1))
        slopes = to_input[..., :FEATURES].unflatten(0, (-1, TWINS))
        of_encoder = self.encoder.gradient(slopes[:, 0] + slopes[:, 1])
        return torch.cat([vector.view_as(self.critic_vector), of_encoder], 1)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        return self._online_q(self._twice(self.encoder.see(batch["obs"]), numbers))

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        super().move_target(tau)
        self.encoder.target.vector.lerp_(self.encoder_vector, tau)

    def of(self, member: int) -> dict[str, Tensor]:
        return super().of(member) | self.encoder.parameters.of(member)

    def copy_target(self, member: int) -> None:
        super().copy_target(member)
        self.encoder.target.vector[member].copy_(self.encoder_vector[member])
