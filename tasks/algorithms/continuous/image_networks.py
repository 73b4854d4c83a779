"""Networks of actor-critics behind a shared encoder.

The encoder takes images, or is a user's own module. It learns from the losses of all critics. The actor uses its
features without passing gradients back, and the target critics use those of a slowly following copy: Yarats et al.
(2021), arXiv:1910.01741, section 5, and arXiv:2004.13649.

As there, a dense layer makes 50 features, which are layer-normalized and squashed. Unlike there, the actor shares that
layer, and images are neither shifted nor reconstructed.

Notation: P members, B batch, F = 50 features, E numbers in the encoder's parameter vector, D in a critic's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ...networks.encoders import encoder_for
from ...networks.mlp import MLP, Network, Parameters, initialize, shapes_of
from .networks import ActorCritics, Batch, NetworkForm
from .recurrent_networks import RecurrentActorCritics

FEATURES = 50


class CriticEncoder:
    """Image encoder of P members, with its target."""

    def __init__(self, hp: SimpleNamespace, image_shape: tuple[int, ...], seeds: Sequence[int], device: torch.device):
        """Initialize the encoder.

        Args:
            hp: values of `model`.
            image_shape: (H, W, C).
            seeds: seeds of the members.
            device: device of all tensors.
        """
        self.filters, self.axes = encoder_for(hp, "features", image_shape), len(image_shape)
        self.dense = MLP("features.dense", [self.filters.features, FEATURES], hp.activation, last_gain=1.0)
        networks: list[Network] = [self.filters, self.dense]
        self.parameters = initialize(networks, Parameters(shapes_of(networks), len(seeds), device), seeds)
        self.target = self.parameters.copy()

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Map images to features in [-1, 1].

        Images are bytes (P, ..., H, W, C), features (P, ..., F).
        """
        if images.dim() > self.axes + 2:  # a program that is exported must know the number of axes
            return self(tensors, images.flatten(1, -1 - self.axes)).unflatten(1, images.shape[1 : -self.axes])
        rows = images.shape[1]
        some = torch.cat([images, images], 1) if rows == 1 else images  # see Exactness in networks/mlp.py
        x = self.dense(self.dense.layers(tensors), self.filters(tensors, some))
        x = x - x.mean(-1, keepdim=True)
        return torch.tanh(x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())[:, :rows]


class ImageActorCritics(ActorCritics):
    """`ActorCritics` for images.

    Attributes:
        encoder_vector: parameters of the encoder, (P, E).
    """

    def __init__(self, shape: tuple[int, ...], form: NetworkForm, seeds: list[int], device: torch.device):
        """Initialize the networks for images of shape (H, W, C).

        The other arguments are those of `ActorCritics`.
        """
        super().__init__((FEATURES,), form, seeds, device)
        self.encoder = CriticEncoder(form.hp.model, shape, seeds, device)
        self.encoder_vector = self.encoder.parameters.vector
        self.learned["encoder"] = self.encoder.parameters
        self.followers.append((self.encoder.target.vector, self.encoder_vector))
        self.tensors |= {"encoder": self.encoder_vector, "encoder_target": self.encoder.target.vector}

    @torch.no_grad()
    def encoded(self, obs: Tensor) -> Tensor:
        return self.encoder(self.encoder.parameters.views, obs)

    def encode(self, batch: Batch) -> Batch:
        encoder, images = self.encoder, batch["obs"]
        last = {"next_obs": self.encoded(batch["next_obs"])} if "next_obs" in batch else {}
        features = {
            "obs": encoder(encoder.parameters.leaves, images),
            "target_obs": encoder(encoder.target.views, batch.get("next_obs", images)),
        }
        return {**batch, "images": images, **features, **last}

    def encode_again(self, batch: Batch) -> Batch:
        return {**batch, "obs": self.encoded(batch["images"])}

    def of(self, member: int) -> dict[str, Tensor]:
        return super().of(member) | self.encoder.parameters.of(member)


class RecurrentImageActorCritics(ImageActorCritics, RecurrentActorCritics):
    """`ImageActorCritics` for sequences: the cores take the encoder's features.

    A sequence holds its next observations itself. Images of the burn-in pass no gradients back.
    """
