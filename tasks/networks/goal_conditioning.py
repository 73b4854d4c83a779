"""Goal conditioning by a hypernetwork: Ha et al. (2017), arXiv:1609.09106.

It applies to observations that are a Dict with a "desired_goal", like those of Gymnasium-Robotics' `GoalEnv`. With
`model.goal_conditioning` "hyper", the on-policy tasks add a first layer whose weights are a perceptron's outputs for
the goal g:

    h = tanh(g W₁ + b₁),   [W(g) | b(g)] = h W₂ + b₂,   features = f(x W(g) + b(g))

x is the observation without g, and f the model's activation. The layer and h are model.width wide. Actor and critic
share the layer, like an encoder of images. b₂ is initialized like the weights of any layer, and W₂ such that a goal's
contribution is about as large. With "none", the goal is an ordinary part of the observation. ML-Agents calls this
goal_conditioning_type.

Notation: P members, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from ...spaces import Dimension, categorical
from ..envs import EnvSpec, spaces_of
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..rng import streams
from .mlp import ACTIVATIONS, MLP, Parameters, orthogonal

GOAL = "desired_goal"


def goal_choice() -> Dimension:
    """Return the hyperparameter `model.goal_conditioning`.

    It was added later, so its default is silent and keeps earlier uids.
    """
    return categorical("none", "hyper", default="none", structural=True, search=False, silent=True)


def goal_of(model: Mapping[str, Any], env: EnvSpec, subject: str) -> slice | None:
    """Return the goal's part of an observation vector.

    Return None without goal conditioning.

    Args:
        model: values of `model`.
        env: environment.
        subject: name of the task in error messages.

    Raises:
        UnsupportedSpace: the observations have no goal.
    """
    if model["goal_conditioning"] == "none":
        return None
    space = spaces_of(env).observation
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    if GOAL not in parts or len(parts) == 1:
        raise UnsupportedSpace(
            f"{subject}: model.goal_conditioning needs observations that are a Dict of {GOAL!r} and more, but got "
            f"{space}; leave model.goal_conditioning out, or name the goal so in a wrapper"
        )
    observations = Observations(space, env.id)
    if observations.kind != "vector":
        raise UnsupportedSpace(
            f"{subject}: model.goal_conditioning needs observations of numbers, but got images in {space}; leave "
            "model.goal_conditioning out"
        )
    return observations.columns(GOAL)


class GoalEncoder:
    """A first layer whose weights are computed from the goal; an `Encoder`."""

    def __init__(self, prefix: str, inputs: int, goal: slice, model: SimpleNamespace):
        """Declare the parameters.

        Args:
            prefix: prefix of the parameters' names.
            inputs: numbers in an observation.
            goal: part of an observation that is the goal.
            model: values of `model`.
        """
        self.prefix, self.goal, self.features = prefix, goal, model.width
        self.activation = ACTIVATIONS[model.activation]
        size = goal.stop - goal.start
        self.rest = inputs - size
        outputs = (self.rest + 1) * self.features  # W(g) and b(g), row by row
        self.hypernetwork = MLP(f"{prefix}.goal", [size, self.features, outputs], "tanh", last_gain=1.0)
        self.shapes = self.hypernetwork.shapes

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw orthogonal weights from the member's own stream.

        For a goal of zeros, W(g) is orthogonal and b(g) is 0.
        """
        self.hypernetwork.initialize(parameters, member, seed)
        name = f"{self.prefix}.goal.1.bias"
        weight = orthogonal(streams.key(seed, "init", name), self.rest, self.features, math.sqrt(2))
        parameters.views[name][member, 0, : weight.numel()] = weight.reshape(-1)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, inputs) to (P, B, features)."""
        goal = obs[..., self.goal].contiguous()
        rest = torch.cat([obs[..., : self.goal.start], obs[..., self.goal.stop :]], -1)
        weights = self.hypernetwork(self.hypernetwork.layers(tensors), goal)
        weights = weights.unflatten(-1, (self.rest + 1, self.features))
        x = torch.cat([rest, torch.ones_like(rest[..., :1])], -1)
        return self.activation((x.unsqueeze(-1) * weights).sum(2))
