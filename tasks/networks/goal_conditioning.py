"""A goal that decides what is made of the rest: a hypernetwork, Ha et al. (2017), arXiv:1609.09106.

Where observations are a Dict with a "desired_goal", as Gymnasium-Robotics' `GoalEnv` has them, the on-policy tasks'
`model.goal_conditioning` "hyper" puts one layer before the others, whose weights are what a perceptron says of the
goal g:

    h = tanh(g W₁ + b₁),   [W(g) | b(g)] = h W₂ + b₂,   features = f(x W(g) + b(g))

x is all of the observation but g, and f the model's activation; the layer, and h, are model.width wide. Actor and
critic share it, as they do an image's encoder. b₂ begins as any layer of a network begins, and W₂ so that what it adds
for a goal is about as large. With "none" the goal is a part of what is seen, like any other. ML-Agents calls this
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
from ..envs.base.encode import Observations
from ..errors import UnsupportedSpace
from ..rng import streams
from .mlp import ACTIVATIONS, Parameters, affine, orthogonal

GOAL = "desired_goal"


def goal_choice() -> Dimension:
    """The hyperparameter `model.goal_conditioning`; it says nothing at its default, since it came later than others."""
    return categorical("none", "hyper", default="none", structural=True, search=False, silent=True)


def goal_of(model: Mapping[str, Any], env: EnvSpec, place: str) -> slice | None:
    """Where the goal is in a vector of what is seen, if the values of `model` give it a say; UnsupportedSpace without.

    place: names the task in errors.
    """
    if model["goal_conditioning"] == "none":
        return None
    space, end = spaces_of(env).observation, 0
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    if GOAL not in parts or len(parts) == 1:
        raise UnsupportedSpace(
            f"{place}: model.goal_conditioning needs observations that are a Dict of {GOAL!r} and more, but got "
            f"{space}; leave model.goal_conditioning out, or name the goal so in a wrapper"
        )
    for name, part in parts.items():
        begin, end = end, end + math.prod(Observations(part, env.id).shape)
        if name == GOAL:
            break
    return slice(begin, end)


class GoalEncoder:
    """The layer before the others, of P members; it stands where an image has its encoder."""

    def __init__(self, prefix: str, inputs: int, goal: slice, model: SimpleNamespace):
        """inputs: numbers in an observation; goal: where in it the goal is; model: the values of `model`."""
        self.prefix, self.goal, self.features = prefix, goal, model.width
        self.activation = ACTIVATIONS[model.activation]
        size = goal.stop - goal.start
        self.rest = inputs - size
        made = (self.rest + 1) * self.features  # W(g) and b(g), row by row
        self.shapes: dict[str, tuple[int, ...]] = {
            f"{prefix}.goal.0.weight": (size, self.features),
            f"{prefix}.goal.0.bias": (1, self.features),
            f"{prefix}.goal.1.weight": (self.features, made),
            f"{prefix}.goal.1.bias": (1, made),
        }

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Orthogonal weights from the member's own stream; the first W(g) and b(g) of no goal is orthogonal and 0."""
        views, shapes = parameters.views, self.shapes
        for layer, gain in ((0, math.sqrt(2)), (1, 1.0)):
            name = f"{self.prefix}.goal.{layer}.weight"
            rows, columns = shapes[name]
            views[name][member] = orthogonal(streams.key(seed, "init", name), rows, columns, gain)
        name = f"{self.prefix}.goal.1.bias"
        layer_of_all = orthogonal(streams.key(seed, "init", name), self.rest, self.features, math.sqrt(2))
        views[name][member, 0, : layer_of_all.numel()] = layer_of_all.reshape(-1)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """(P, B, inputs) -> (P, B, features)."""
        goal = obs[..., self.goal].contiguous()
        rest = torch.cat([obs[..., : self.goal.start], obs[..., self.goal.stop :]], -1)
        h = torch.tanh(affine(goal, *self._layer(tensors, 0)))
        made = affine(h, *self._layer(tensors, 1)).unflatten(-1, (self.rest + 1, self.features))
        x = torch.cat([rest, torch.ones_like(rest[..., :1])], -1)
        return self.activation((x.unsqueeze(-1) * made).sum(2))

    def _layer(self, tensors: Mapping[str, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        name = f"{self.prefix}.goal.{layer}"
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]
