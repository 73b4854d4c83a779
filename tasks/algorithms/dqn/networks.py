"""Networks of deep Q-learning, with or without a recurrent core.

Notation: P members, N environments, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...networks.acting import acting_mlp
from ...networks.encoders import ENCODERS, Encoder, encoder_for
from ...networks.mlp import MLP, Layers, Network, Parameters, actor_layers, initialize, shapes_of
from ...networks.noisy import NoisyMLP
from ...networks.recurrent import ActingMemory, Core
from .distributions import ReturnDistribution

Views = tuple[Mapping[str, Tensor], list[Layers]]  # parameters by name, and the layers of the heads
NOISES = 3  # uses of noisy heads in a gradient step


class Values(NamedTuple):
    """Outputs of the networks for a batch: action values, or distributions.

    Attributes:
        q: q(s, ·), (P, B, actions) or (P, B, actions, atoms), with gradients.
        target: q'(s', ·) of the target network in the next states, without gradients.
        online: q(s', ·) of the online network in the next states, without gradients; None unless requested.
    """

    q: Tensor
    target: Tensor
    online: Tensor | None


class QNetwork(Stacked):
    """Action values q(s, ·) of P members, with their target networks.

    Dueling networks compute q = v + a - mean a: Wang et al. (2016), arXiv:1511.06581, eq. 9. With a distribution of
    returns, they do so for each atom, and q is the mean of the distribution.

    Attributes:
        distribution: form of distributions; None for action values.
        noise_size: normal numbers of one use of noisy heads; 0 without noise.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        actions: int,
        hp: SimpleNamespace,
        seeds: list[int],
        device: torch.device,
        distribution: ReturnDistribution | None = None,
    ):
        """Initialize the networks, and copy them to the target networks.

        Args:
            obs_shape: (D,) for vectors or (H, W, C) for images.
            actions: number of actions.
            hp: hyperparameters, of which `model` and batch_size are used.
            seeds: seeds of the members.
            device: device of all tensors.
            distribution: form of distributions of returns; None for action values.
        """
        model = hp.model
        self.distribution, self.atoms = distribution, 1 if distribution is None else distribution.atoms
        self.encoder = encoder_for(model, "features", obs_shape)
        trunk = self.trunk(model)
        hidden = [trunk[-1].features, *actor_layers(model)]
        heads = {"q": actions * self.atoms} | ({"value": self.atoms} if model.dueling else {})
        self.heads = [
            NoisyMLP(name, [*hidden, outputs], model.activation, model.noisy_std)
            if model.noisy
            else MLP(name, [*hidden, outputs], model.activation, last_gain=1.0)
            for name, outputs in heads.items()
        ]
        self.noise_size = sum(head.noise_size for head in self.heads if isinstance(head, NoisyMLP))
        networks: list[Network] = [*trunk, *self.heads]
        self._capturable = hp.model.encoder in ENCODERS
        self.parameters = initialize(networks, Parameters(shapes_of(networks), len(seeds), device), seeds)
        self.target = self.parameters.copy()
        self.tensors = {"vector": self.parameters.vector, "target": self.target.vector}
        self._views, self._leaves, self._target_views = (
            (tensors, [head.layers(tensors) for head in self.heads])
            for tensors in (self.parameters.views, self.parameters.leaves, self.target.views)
        )
        # The one perceptron of all values, if there is no other network.
        self.perceptron = None if shapes_of(trunk) or model.dueling or model.noisy else self.heads[0]
        self._acting = None if self.perceptron is None else acting_mlp(self.perceptron, self.parameters)

    def trunk(self, model: SimpleNamespace) -> list[Encoder | Core]:
        """Return the networks in front of the heads."""
        return [self.encoder]

    # --- acting ---

    def memory(self, num_envs: int, remember: Callable[[Tensor], None] = lambda state: None) -> ActingMemory | None:
        """Return the recurrent states at the start of num_envs episodes; None here.

        `remember` is called with the states before each step.
        """
        return None

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the heads' inputs for observations, and the next recurrent states."""
        return obs, None

    @property
    def capturable(self) -> bool:
        """Return whether acting can run as a CUDA graph.

        It cannot with a user's own encoder.
        """
        return self._capturable and self.parameters.vector.is_cuda

    @captured
    def acting_values(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return q(s, ·) for the result of `remembered`, in torch operations only.

        Noisy heads take normal numbers (P, noise_size), or None for their means.
        """
        return self.means(self.values(features, noise))

    def quick_values(self, features: Tensor, noise: Tensor | None = None) -> NDArray[np.float32]:
        """Return q(s, ·), (P, N, actions), for any number N of rows.

        The arguments are those of `acting_values`, and there are no gradients.
        """
        return self._acted(features, noise).cpu().numpy()

    @captured
    def _acted(self, features: Tensor, noise: Tensor | None) -> Tensor:
        if self._acting is not None:
            return self.means(self._split(self._acting(self.encoder({}, features))[0]))
        rows = features.shape[1]
        if rows == 1:
            features = torch.cat([features, features], 1)  # see Exactness in networks/mlp.py
        return self.acting_values(features, noise)[:, :rows]

    def means(self, outputs: Tensor) -> Tensor:
        """Return q, (P, ..., actions), of the networks' outputs."""
        return outputs if self.distribution is None else self.distribution.mean(outputs)

    # --- learning ---

    def of_batch(self, batch: Mapping[str, Tensor], double: bool, learn: bool = True) -> Values:
        """Return the action values of a batch.

        Args:
            batch: tensors (P, B, ...) as the sampler draws them; and `noise` (P, 3, noise_size) of noisy heads, for q,
                the target and the online network.
            double: whether the online network's values of the next states are needed.
            learn: whether gradients are needed.
        """
        learned, targets, online = self._noises(batch)
        q = self(batch["obs"], learned) if learn else self.values(batch["obs"], learned)
        target = self.target_values(batch["next_obs"], targets)
        return Values(q, target, self.values(batch["next_obs"], online) if double else None)

    def _noises(self, batch: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        """Return a batch's normal numbers for q, target and online network."""
        return batch["noise"].unbind(1) if "noise" in batch else [None] * NOISES

    def __call__(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs for observations (P, B, ...), with gradients."""
        return self._q(*self._leaves, obs, noise)

    def values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs without gradients."""
        return self._q(*self._views, obs, noise)

    def target_values(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs of the target network."""
        return self._q(*self._target_views, obs, noise)

    def _q(self, tensors, layers, obs: Tensor, noise: Tensor | None = None) -> Tensor:  # type: ignore[no-untyped-def]
        return self._of_features((tensors, layers), self.encoder(tensors, obs), noise)

    def _of_features(self, views: Views, features: Tensor, noise: Tensor | None) -> Tensor:
        tensors, layers = views
        if noise is not None:
            noisy = [head for head in self.heads if isinstance(head, NoisyMLP)]
            parts = noise.split([head.noise_size for head in noisy], 1)
            layers = [head.noisy_layers(tensors, part) for head, part in zip(noisy, parts, strict=True)]
        q, *value = (self._split(head(weights, features)) for head, weights in zip(self.heads, layers, strict=True))
        if not value:
            return q
        if self.distribution is None:
            return value[0] + q - q.mean(-1, keepdim=True)
        return value[0] + q - q.transpose(-1, -2).contiguous().mean(-1).unsqueeze(-2)

    def _split(self, outputs: Tensor) -> Tensor:
        """Return outputs (P, B, n), or distributions (P, B, actions, atoms)."""
        return outputs if self.distribution is None else outputs.unflatten(-1, (-1, self.atoms))

    def copy_target(self, member: int) -> None:
        """Copy one member's online network into its target network."""
        self.target.vector[member].copy_(self.parameters.vector[member])

    @torch.no_grad()
    def move_target(self, tau: Tensor, due: NDArray[np.bool_]) -> None:
        """Move the targets: θ' ← (1 - tau) θ' + tau θ.

        Args:
            tau: fraction of the online network, (P, 1); 1 copies it.
            due: members whose targets move, (P, 1).
        """
        moved = (1 - tau) * self.target.vector + tau * self.parameters.vector
        if not due.all():
            moved = torch.where(torch.from_numpy(due).to(moved.device), moved, self.target.vector)
        self.target.vector.copy_(moved)


class RecurrentQNetwork(QNetwork):
    """`QNetwork` with a recurrent core, for batches of sequences.

    Kapturowski et al. (2019), R2D2, ICLR. As there, the target network also starts from the stored state and a burn-in.
    The rows of a batch are the L steps of each sequence, one sequence after another.
    """

    def trunk(self, model: SimpleNamespace) -> list[Encoder | Core]:
        self.core = Core("memory", model.memory, self.encoder.features, model.width)
        self.length, self.burn_in = model.sequence_length, model.burn_in
        return [self.encoder, self.core]

    def memory(self, num_envs: int, remember: Callable[[Tensor], None] = lambda state: None) -> QMemory:
        return QMemory(self, num_envs, remember)

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert state is not None
        views, _ = self._views
        begins = torch.zeros_like(state[..., :1])  # no episode begins between two steps of acting
        states = self.core(views, self.encoder(views, obs).unsqueeze(2), begins, state).squeeze(2)
        return states[..., : self.core.width].contiguous(), states

    def acting_values(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.means(self._of_features(self._views, features, noise))

    def of_batch(self, batch: Mapping[str, Tensor], double: bool, learn: bool = True) -> Values:
        learned, noises = self._leaves if learn else self._views, self._noises(batch)
        states = self._states(learned[0], batch)
        with torch.no_grad():
            target_states = self._later(self._states(self._target_views[0], batch))
            target = self._of_features(self._target_views, target_states, noises[1])
            online = self._of_features(self._views, self._later(states), noises[2]) if double else None
        q = self._of_features(learned, states[:, :, : self.length].flatten(1, 2), noises[0])
        return Values(q, target, online)

    def _states(self, tensors: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Return the core's outputs after the burn-in."""
        features = self.encoder(tensors, batch["obs"].flatten(1, 2)).unflatten(1, batch["obs"].shape[1:3])
        return self.core.after_burn_in(tensors, features, batch["begins"], batch["memory"], self.burn_in)

    def _later(self, states: Tensor) -> Tensor:
        """Select the outputs n steps after those learned from, (P, R, width)."""
        return states[:, :, -self.length :].flatten(1, 2)


class QMemory(ActingMemory):
    """Recurrent states of the environments while acting."""

    def __init__(self, policy: RecurrentQNetwork, num_envs: int, remember: Callable[[Tensor], None]):
        """Set the states of num_envs environments to 0."""
        vector = policy.parameters.vector
        super().__init__(vector.new_zeros(len(vector), num_envs, policy.core.state_size))
        self.policy, self.remember = policy, remember

    @torch.no_grad()
    def __call__(self, obs: Tensor) -> Tensor:
        """Advance the states by observations, and return the heads' inputs."""
        self.remember(self.tensors["state"])
        features, state = self.policy.remembered(obs, self.tensors["state"])
        assert state is not None
        self.tensors["state"].copy_(state)
        return features


class QImitator:
    """A Q-network that learns from demonstrations by a large margin.

    Hester et al. (2018), arXiv:1704.03732, section 4:

        J = max over a of [q(s, a) + margin where a is not a_E] - q(s, a_E)
    """

    state_size = 0
    margin = 0.8

    def __init__(self, policy: QNetwork):
        self.policy, self.parameters, self.distribution = policy, policy.parameters, self

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Return q(s, ·), with gradients."""
        return self.policy.means(self.policy._q(*self.policy._leaves, batch["obs"])), None

    def imitation_loss(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return J, (P, B)."""
        index = actions.unsqueeze(-1)
        others = torch.full_like(q, self.margin).scatter(-1, index, 0.0)
        return (q + others).amax(-1) - q.gather(-1, index).squeeze(-1)
