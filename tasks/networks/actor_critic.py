"""Actor and critic of P members as separate multilayer perceptrons, over a shared encoder when they see images."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, ordinal, real
from ..checkpoint.member_state import Stacked
from .distributions import Distribution, distribution_for
from .encoders import Encoder, encoder_choice, encoder_for
from .goal_conditioning import GoalEncoder, goal_choice
from .mlp import MLP, Layers, Parameters, affine
from .recurrent import Core
from .sde import StateDependentGaussian, state_dependent


def model_space() -> Space:
    """The hyperparameters of an actor-critic model.

    std_init is the first standard deviation of Box actions; with state-dependent exploration it is that where all
    activations of the last hidden layer are 1 or -1. A memory has `width` numbers, stands before actor and critic, and
    is trained on whole rollouts.
    """
    return Space(
        width=ordinal(16, 32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
        layers=integer(1, 3, default=2, accept=(1, 16), structural=True),
        activation=categorical("tanh", "relu", "silu", "elu", default="tanh", structural=True),
        std_init=real(0.3, 1.5, default=1.0, accept=(1e-3, 100.0)),
        memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False),
        encoder=encoder_choice(),
        goal_conditioning=goal_choice(),
    )


class ActorCritic(Stacked):
    """π(a|s) and v(s) of P members."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        action_space: gym.Space[Any],
        hp: SimpleNamespace,
        seeds: list[int],
        place: str,
        device: torch.device | str = "cpu",
        sde: bool = False,
        goal: slice | None = None,
    ):
        """obs_shape: (D,) of vectors or (H, W, C) of images; hp: values of `model_space`; place: named in errors.

        sde: whether the noise of actions depends on the state, see `tasks.sde`; goal: where in an observation a goal is
            that has a say of its own, see `tasks.goals`.
        """
        self.distribution: Distribution = (
            state_dependent(action_space, hp.width, place) if sde else distribution_for(action_space, place)
        )
        self.encoder: Encoder = encoder_for(hp, "features", obs_shape)
        if goal is not None:
            self.encoder = GoalEncoder("features", obs_shape[0], goal, hp)
        inputs = self.encoder.features
        self.obs_shape = obs_shape
        self.core = None if hp.memory == "none" else Core("memory", hp.memory, inputs, hp.width)
        hidden = [hp.width if self.core else inputs, *[hp.width] * hp.layers]
        self.actor = MLP("actor", [*hidden, self.distribution.outputs], hp.activation, last_gain=0.01)
        self.critic = MLP("critic", [*hidden, 1], hp.activation, last_gain=1.0)
        core = [self.core] if self.core else []
        networks: list[Encoder | Core | MLP] = [self.encoder, *core, self.actor, self.critic]
        shapes = {name: shape for net in networks for name, shape in net.shapes.items()}
        rows = hp.width if sde else 1
        if self.distribution.learned_std:
            shapes["actor.log_std"] = (rows, self.distribution.learned_std)
        self.parameters = Parameters(shapes, len(seeds), device)
        self.tensors = self.parameters.tensors
        for member, seed in enumerate(seeds):
            for net in networks:
                net.initialize(self.parameters, member, seed)
        if self.distribution.learned_std:
            self.parameters.views["actor.log_std"][:] = hp.std_init.log().unsqueeze(-1) - 0.5 * math.log(rows)
        self._views = self._look_up(self.parameters.views)
        self._leaves = self._look_up(self.parameters.leaves)

    def _look_up(self, tensors):  # type: ignore[no-untyped-def]
        return tensors, self.actor.layers(tensors), self.critic.layers(tensors), tensors.get("actor.log_std")

    def _params(self, actor: Layers, features: Tensor, log_std: Tensor | None) -> Tensor:
        if log_std is None:
            return self.actor(actor, features)
        if isinstance(self.distribution, StateDependentGaussian):
            z = self.actor.hidden(actor, features)
            return self.distribution.params(affine(z, *actor[-1]), z, log_std)
        mean = self.actor(actor, features)
        return torch.cat([mean, log_std.expand_as(mean)], -1)

    def policy(self, obs: Tensor) -> Tensor:
        """The distribution's parameters for observations (P, B, ...), without gradients."""
        tensors, actor, _, log_std = self._views
        return self._params(actor, self.encoder(tensors, obs), log_std)

    def value(self, obs: Tensor) -> Tensor:
        """v(s) of observations (P, B, ...), (P, B), without gradients."""
        tensors, _, critic, _ = self._views
        return self.critic(critic, self.encoder(tensors, obs)).squeeze(-1)

    def copy_target(self, member: int) -> None:
        """Do nothing: an actor-critic has no target networks."""

    def __call__(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The distribution's parameters and v(s), (P, B), with gradients."""
        tensors, actor, critic, log_std = self._leaves
        features = self.encoder(tensors, obs)
        return self._params(actor, features, log_std), self.critic(critic, features).squeeze(-1)

    def sequences(
        self, obs: Tensor, begins: Tensor, state: Tensor, learning: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """With a memory: the distribution's parameters, v(s), (P, N * T), and the states (P, N, T, S) of N sequences.

        obs (P, N * T, ...) and begins (P, N * T) hold one sequence after the other; see `Core` for begins and the state
        (P, N, S). With gradients if `learning`.
        """
        assert self.core is not None
        tensors, actor, critic, log_std = self._leaves if learning else self._views
        form = (state.shape[1], -1)
        features = self.encoder(tensors, obs).unflatten(1, form)
        states = self.core(tensors, features, begins.unflatten(1, form), state)
        remembered = states[..., : self.core.width].flatten(1, 2)
        params, values = self._params(actor, remembered, log_std), self.critic(critic, remembered)
        return params, values.squeeze(-1), states
