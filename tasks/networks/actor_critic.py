"""Actor and critic of P members, behind a shared encoder.

Both are multilayer perceptrons; for vectors the encoder is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, ordinal, sizes
from ..checkpoint.member_state import Stacked
from ..cuda.graphs import captured
from ..envs.base.masks import actor_columns_in, mask_in
from .distributions import Distribution, distribution_for, finite
from .encoders import ENCODERS, Encoder, SharedLayers, encoder_for, encoder_space
from .goal_conditioning import GoalEncoder, goal_choice
from .masked_logits import allowed_in, masked_logits
from .mlp import MLP, Layers, Parameters, actor_layers, affine, critic_layers, initialize, shapes_of
from .sde import state_dependent


def model_space() -> Space:
    """Return the hyperparameters of an actor-critic model.

    - `hidden` are the widths of hidden layers, if they are not `layers` times `width`; `critic_hidden` are the
      critic's.
    - `shared_critic` lets actor and critic share these layers, which then precede the recurrent core, if there is one.
    - `std_init` is the initial standard deviation of Box actions. With state-dependent exploration it applies when all
      activations of the last hidden layer are 1 or -1.
    - `memory` adds a recurrent core of `width` units in front of actor and critic, trained on whole rollouts (see
      `recurrent`).
    """
    return Space(
        width=ordinal(16, 32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
        hidden=sizes(1, 65536, silent=True),
        shared_critic=categorical(False, True, default=False, structural=True, search=False, silent=True),
        critic_hidden=sizes(1, 65536, silent=True),
        layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
        activation=categorical("tanh", "relu", "silu", "elu", default="tanh", structural=True),
        std_init=log_real(0.1, 1.5, default=1.0, accept=(1e-3, 100.0)),
        memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False),
        **encoder_space(),
        goal_conditioning=goal_choice(),
    )


class ActorCriticForm(NamedTuple):
    """Form of an actor-critic.

    Attributes:
        obs_shape: (D,) for vectors or (H, W, C) for images.
        action_space: action space of one environment.
        hp: values of `model_space`.
        subject: name of the task in error messages.
        sde: whether to use state-dependent exploration, see `sde`.
        goal: part of an observation that conditions the first layer, see `goal_conditioning`.
    """

    obs_shape: tuple[int, ...]
    action_space: gym.Space[Any]
    hp: SimpleNamespace
    subject: str
    sde: bool = False
    goal: slice | None = None


class ActorCritic(Stacked):
    """Policy π(a|s) and values v(s) of P members.

    `RecurrentActorCritic` has the same interface. `CompiledActorCritic` computes the same by kernels.

    Attributes:
        own: columns of an observation that the actor sees; None for all.
        state_size: numbers in a recurrent state; 0 here.
    """

    state_size = 0

    def __init__(self, form: ActorCriticForm, seeds: list[int], device: torch.device | str = "cpu"):
        """Build and initialize the networks.

        Args:
            form: form of the networks.
            seeds: seeds of the members.
            device: device of all tensors.
        """
        obs_shape, action_space, hp, subject, sde, goal = form
        self.encoder: Encoder = encoder_for(hp, "features", obs_shape)
        if goal is not None:
            self.encoder = GoalEncoder("features", obs_shape[0], goal, hp)
        of_actor, of_critic = actor_layers(hp), critic_layers(hp)
        if hp.shared_critic:
            self.encoder, of_actor, of_critic = SharedLayers("features", self.encoder, of_actor, hp.activation), [], []
        self.obs_shape, self.mask, self.actor_columns = obs_shape, mask_in(obs_shape), actor_columns_in(obs_shape)
        trunk = self._trunk(hp)
        of_actor, of_critic = ([trunk[-1].features, *layers] for layers in (of_actor, of_critic))
        if self.actor_columns is not None:
            if self.mask is not None:  # the encoder leaves it out, which is in the agent's own part
                self.actor_columns = slice(0, self.actor_columns.stop - (self.mask.stop - self.mask.start))
            of_actor[0] = self.actor_columns.stop
        self.distribution: Distribution = (
            state_dependent(action_space, of_actor[-1], subject) if sde else distribution_for(action_space, subject)
        )
        self.actor = MLP("actor", [*of_actor, self.distribution.outputs], hp.activation, last_gain=0.01)
        self.critic = MLP("critic", [*of_critic, 1], hp.activation, last_gain=1.0)
        networks = [*trunk, self.actor, self.critic]
        shapes = shapes_of(networks)
        if self.distribution.log_std_shape:
            shapes["actor.log_std"] = self.distribution.log_std_shape
        self.parameters = initialize(networks, Parameters(shapes, len(seeds), device), seeds)
        self.tensors = self.parameters.tensors
        if self.distribution.log_std_shape:
            rows = self.distribution.log_std_shape[0]
            self.parameters.views["actor.log_std"][:] = hp.std_init.log().unsqueeze(-1) - 0.5 * math.log(rows)
        self._views = self._look_up(self.parameters.views)
        self._leaves = self._look_up(self.parameters.leaves)
        self._capturable = len(obs_shape) == 1 and hp.encoder in ENCODERS

    def _trunk(self, hp: SimpleNamespace) -> list[Any]:
        """Return the networks in front of actor and critic, in order."""
        return [self.encoder]

    def _look_up(self, tensors):  # type: ignore[no-untyped-def]
        return tensors, self.actor.layers(tensors), self.critic.layers(tensors), tensors.get("actor.log_std")

    def _params(self, actor: Layers, features: Tensor, log_std: Tensor | None) -> Tensor:
        if self.actor_columns is not None:  # the rest is for a central critic
            features = features[..., self.actor_columns].contiguous()
        z = self.actor.hidden(actor, features)
        return self.distribution.params(affine(z, *actor[-1]), z, log_std)

    def _masked(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the parameters without forbidden choices.

        The mask is part of obs (P, B, D).
        """
        return params if self.mask is None else masked_logits(self.distribution, params, allowed_in(obs, self.mask))

    @property
    def capturable(self) -> bool:
        """Return whether acting can run as a CUDA graph.

        It cannot for images, since the graph would keep whole rollouts of them, nor with a user's own encoder.
        """
        return self._capturable and self.parameters.vector.is_cuda

    @captured
    def action_params(self, obs: Tensor) -> Tensor:
        """Return the action distribution's parameters for obs (P, B, ...), without gradients."""
        tensors, actor, _, log_std = self._views
        return self._masked(self._params(actor, self.encoder(tensors, obs), log_std), obs)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return actions for rows of obs (P, N, ...) and noise."""
        return finite(self.distribution.sample(self.action_params(obs), noise))

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B), of a batch, without gradients."""
        return self.distribution.log_prob_and_entropy(self.action_params(obs), actions)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), of obs (P, B, ...), without gradients."""
        tensors, _, critic, _ = self._views
        return self.critic(critic, self.encoder(tensors, obs)).squeeze(-1)

    def states(self, num_envs: int) -> Any:
        """Return the recurrent states at the start of num_envs episodes; None here."""
        return None

    def copy_target(self, member: int) -> None:
        """Do nothing, since an actor-critic has no target networks."""

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the action distribution's parameters and v(s) for a batch.

        Values are (P, B); both have gradients.
        """
        tensors, actor, critic, log_std = self._leaves
        features = self.encoder(tensors, batch["obs"])
        params = self._masked(self._params(actor, features, log_std), batch["obs"])
        return params, self.critic(critic, features).squeeze(-1)
