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
        self.filters = encoder_for(hp, "features", image_shape)
        self.dense = MLP("features.dense", [self.filters.features, FEATURES], hp.activation, last_gain=1.0)
        networks: list[Network] = [self.filters, self.dense]
        self.parameters, self.target = (Parameters(shapes_of(networks), len(seeds), device) for _ in range(2))
        initialize(networks, self.parameters, seeds)
        self.target.vector.copy_(self.parameters.vector)

    def __call__(self, tensors: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Map images to features in [-1, 1].

        Images are bytes (P, B, H, W, C), features (P, B, F).
        """
        x = self.dense(self.dense.layers(tensors), self.filters(tensors, images))
        x = x - x.mean(-1, keepdim=True)
        return torch.tanh(x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


class ImageActorCritics(ActorCritics):
    """`ActorCritics` for images.

    Attributes:
        encoder_vector: parameters of the encoder, (P, E).
    """

    def __init__(self, shape: tuple[int, ...], form: NetworkForm, seeds: list[int], device: torch.device):
        """Initialize the networks for images of shape (H, W, C).

        The other arguments are those of `ActorCritics`.
        """
        super().__init__(FEATURES, form, seeds, device)
        self.encoder = CriticEncoder(form.hp.model, shape, seeds, device)
        self.encoder_vector = self.encoder.parameters.vector
        self.critic_vectors["encoder"] = self.encoder_vector
        self.tensors |= {"encoder": self.encoder_vector, "encoder_target": self.encoder.target.vector}

    def inputs(self, obs: Tensor) -> Tensor:
        return self.features(obs)

    def encode(self, batch: Batch) -> Batch:
        encoder = self.encoder
        return {
            **batch,
            "images": batch["obs"],
            "obs": encoder(encoder.parameters.leaves, batch["obs"]),
            "next_obs": encoder(encoder.parameters.views, batch["next_obs"]),
            "target_obs": encoder(encoder.target.views, batch["next_obs"]),
        }

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        return super().q_and_target({**batch, "next_obs": batch["target_obs"]}, numbers, next_numbers)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        return super().q({**batch, "obs": self.features(batch["images"])}, numbers)

    @torch.no_grad()
    def features(self, obs: Tensor) -> Tensor:
        """Return the encoder's features (P, N, F) of images, without gradients."""
        rows = obs.shape[1]
        if rows == 1:  # see Exactness in networks/mlp.py
            obs = torch.cat([obs, obs], 1)
        return self.encoder(self.encoder.parameters.views, obs)[:, :rows]

    def critic_gradient(self, losses: Tensor) -> Tensor:
        critics, encoder = self.critics, self.encoder.parameters
        gradients = torch.autograd.grad(losses.mean(1).sum(), [*critics.leaves.values(), *encoder.leaves.values()])
        of_critics, of_encoder = gradients[: len(critics.leaves)], gradients[len(critics.leaves) :]
        return torch.cat([critics.joined(of_critics).view_as(self.critic_vector), encoder.joined(of_encoder)], 1)

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        super().move_target(tau)
        self.encoder.target.vector.lerp_(self.encoder_vector, tau)

    def of(self, member: int) -> dict[str, Tensor]:
        return super().of(member) | self.encoder.parameters.of(member)

    def copy_target(self, member: int) -> None:
        super().copy_target(member)
        self.encoder.target.vector[member].copy_(self.encoder_vector[member])


class RecurrentImageActorCritics(ImageActorCritics, RecurrentActorCritics):
    """`ImageActorCritics` for sequences: the cores take the encoder's features.

    Images of the burn-in pass no gradients back.
    """

    def seen(self, obs: Tensor) -> Tensor:
        return self.features(obs)

    def inputs(self, obs: Tensor) -> Tensor:
        return RecurrentActorCritics.inputs(self, obs)

    def encode(self, batch: Batch) -> Batch:
        encoder, images = self.encoder, batch["obs"].flatten(1, 2)
        kinds = {"obs": encoder.parameters.leaves, "target_obs": encoder.target.views}
        features = {name: encoder(tensors, images) for name, tensors in kinds.items()}
        return {**batch, "images": batch["obs"]} | {name: self._in_time(x, batch) for name, x in features.items()}

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        return RecurrentActorCritics.q_and_target(self, batch, numbers, next_numbers)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        features = self._in_time(self.features(batch["images"].flatten(1, 2)), batch)
        return RecurrentActorCritics.q(self, {**batch, "obs": features}, numbers)

    def _in_time(self, features: Tensor, batch: Batch) -> Tensor:
        return features.unflatten(1, batch["begins"].shape[1:])
