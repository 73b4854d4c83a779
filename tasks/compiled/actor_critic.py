"""An actor-critic and its gradient, computed by kernels.

Torch computes the matrix products, and kernels do everything in between. Members are computed in groups whose arrays
fit into a processor's cache. The products of a member do not depend on the size of its group (see Exactness in
networks/mlp.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

KINDS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}
CLIPPING = {"none": 0, "ppo": 1, "ppo2": 2}
ROWS_AT_ONCE = 1024  # rows of all members in a group together
METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "value_loss")


class Differentiated(torch.autograd.Function):
    """Losses (P,) whose gradient (P, D) is already known.

    Autograd raises an error if they are differentiated after the gradient was overwritten.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, gradient: Tensor, pieces: Sequence[Tensor], *leaves: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.pieces, ctx.of = pieces, Differentiated
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if the gradient was overwritten
        return None, None, None, *[g.view(-1, *[1] * (x.ndim - 1)) * x for x in ctx.pieces]


def known_gradient(losses: Tensor) -> Tensor | None:
    """Return the gradient (P, D) of `Differentiated` losses; else None."""
    node: Any = losses.grad_fn
    return node.saved_tensors[0] if getattr(node, "of", None) is Differentiated else None


@dataclass
class Terms:
    """The terms of an actor-critic's loss.

    The algorithms' `loss` functions explain them.

    Attributes:
        vf_coef, ent_coef: coefficients (P,) of the value loss and the entropy.
        clip_coef: clip range (P,) of ratios; None if the policy loss uses log-probabilities instead of ratios.
        clip_value: clip range (P,) of values; None for no clipping.
        clipping: form of the value clipping, "ppo" or "ppo2".
        standardized: whether to standardize each minibatch's advantages.
        critic_loss: "mse" or "huber".
    """

    vf_coef: Tensor
    ent_coef: Tensor
    clip_coef: Tensor | None = None
    clip_value: Tensor | None = None
    clipping: str = "ppo"
    standardized: bool = False
    critic_loss: str = "mse"


class Perceptron:
    """The places of a network's layers in parameter vectors (P, D).

    Attributes:
        sizes: sizes of the layers, from inputs to outputs.
        weights, biases: start of each layer's weights and biases.
    """

    def __init__(self, sizes: Sequence[int], start: int):
        self.sizes, self.weights, self.biases = list(sizes), [], []
        for inputs, outputs in pairwise(sizes):
            self.weights.append(start)
            self.biases.append(start + inputs * outputs)
            start += (inputs + 1) * outputs

    def views(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases of all layers but the last.

        They are views (P, inputs, outputs) and (P, 1, outputs) of a vector (P, D).
        """
        starts = zip(self.weights, self.biases, pairwise(self.sizes[:-1]), strict=False)
        return [
            (vector[:, weight:bias].unflatten(1, (i, o)), vector[:, bias : bias + o].unsqueeze(1))
            for weight, bias, (i, o) in starts
        ]


class Hidden:
    """The hidden units of a group's networks, (P', B, units).

    Arrays of the same shape hold the slopes of the loss in the units, and the values from which the activation's slopes
    are computed. All views are made once, since making one takes as long as the arithmetic of a small network.
    """

    def __init__(
        self, run: ModuleType, kind: int, network: Perceptron, vector: Tensor, gradient: Tensor, room: Sequence[Tensor]
    ):
        """Make the views.

        Args:
            run: module of kernels.
            kind: kind of activation.
            network: places of its layers in the vector.
            vector: parameters of the members.
            gradient: their gradient, to be filled in.
            room: for each hidden layer, an array (2 or 3, at least P', B, units) for units, slopes and, if they do not
                follow from the units, the activation's slopes.
        """
        self._run, self._kind, members = run, kind, len(vector)
        units, slopes = ([x[i, :members] for x in room] for i in range(2))
        at = [x[2 if kind == KINDS["silu"] else 0, :members].numpy() for x in room]
        layers, to_layers = network.views(vector), network.views(gradient)
        self._forward = [(w, h, h.numpy(), x, b.numpy()) for h, x, (w, b) in zip(units, at, layers, strict=True)]
        self._backward = []
        for i in reversed(range(1, len(units))):
            products = units[i - 1].transpose(1, 2), slopes[i], to_layers[i][0], layers[i][0].transpose(1, 2)
            values = slopes[i - 1].numpy(), at[i - 1], to_layers[i - 1][1].numpy()
            self._backward.append((*products, slopes[i - 1], *values))
        self.units, self.at, self.slopes = units[-1].numpy(), at[-1], slopes[-1].numpy()
        self._first, self._to_first = slopes[0], to_layers[0][0]

    def forward(self, x: Tensor) -> None:
        """Compute the hidden units for observations (P', B, inputs)."""
        run, kind, (members, rows) = self._run, self._kind, x.shape[:2]
        for weight, out, values, at, biases in self._forward:
            x = torch.bmm(x, weight, out=out)
            run.activate(values, at, members, rows, biases, kind)

    def backward(self, obs: Tensor) -> None:
        """Propagate the slopes of the last hidden units to all layers before.

        Fills in the gradients of these layers' parameters.
        """
        run, kind = self._run, self._kind
        for before, slopes, to_weight, weight, out, values, at, to_biases in self._backward:
            torch.bmm(before, slopes, out=to_weight)
            torch.bmm(slopes, weight, out=out)
            run.slope(values, at, to_biases, kind)
        torch.bmm(obs.transpose(1, 2), self._first, out=self._to_first)


class Group:
    """Members that are computed together."""

    def __init__(self, kernels: ActorCriticKernels, span: slice, rooms: Sequence[Sequence[Tensor]]):
        """Make the views of the members in a span.

        Args:
            kernels: computation to which they belong.
            span: indices of the members.
            rooms: arrays for the hidden units of the actor and of the critic.
        """
        vector, gradient = kernels.vector[span], kernels.gradient[span]
        self.span = span
        self.vector, self.gradient, self.metrics = vector.numpy(), gradient.numpy(), kernels.metrics[span].numpy()
        self.actor, self.critic = (
            Hidden(kernels.run, kernels.kind, network, vector, gradient, room)
            for network, room in zip(kernels.networks, rooms, strict=True)
        )


class ActorCriticKernels:
    """The computation of an `ActorCritic` whose observations are vectors.

    Its actions are one choice or normal numbers.

    Attributes:
        gradient: last gradient, (P, D).
        pieces: views of the gradient for each parameter.
    """

    pieces: Sequence[Tensor] = ()

    scratch = ("gradient", "pieces", "metrics", "run", "_plans", "_vector")

    def __init__(
        self,
        run: ModuleType,
        vector: Tensor,
        actor: Perceptron,
        critic: Perceptron,
        activation: str,
        numbers: bool,
        log_std: int = 0,
    ):
        """Prepare the computation.

        Args:
            run: module of kernels.
            vector: parameters (P, D); they may only change in place.
            actor: network of action parameters.
            critic: network of values.
            activation: key of KINDS.
            numbers: whether actions are normal numbers instead of a choice.
            log_std: start of the log standard deviations of normal numbers.
        """
        self.run, self.vector, self.numbers = run, vector, numbers
        self.networks, self.kind = (actor, critic), KINDS[activation]
        self.gradient = torch.zeros_like(vector)
        self.metrics = torch.zeros(len(vector), len(METRICS))
        self._plans: dict[int, list[Group]] = {}
        self._vector = vector.numpy()
        starts = (actor.weights[-1], critic.weights[-1], actor.biases[-2], critic.biases[-2], log_std)
        self.layout = np.array([*starts, self.kind, numbers, actor.sizes[-1]], np.int64)
        self.actor_sizes, self.actor_starts = (np.array(x, np.int64) for x in (actor.sizes, actor.weights))

    def act(self, obs: Tensor, noise: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return actions (P, N, *shape).

        Args:
            obs: observations (P, N, inputs).
            noise: noise (P, N, n), with one number for each output of the actor.
            shape: shape of one action.
        """
        members, rows, outputs = noise.shape
        kind = torch.float32 if self.numbers else torch.int64
        actions = torch.empty(members, rows, outputs if self.numbers else 1, dtype=kind)
        given = (obs.numpy(), self._vector, self.layout, self.actor_sizes, self.actor_starts, noise.numpy())
        self.run.act(*given, *self._split(actions))
        return actions.view(members, rows, *shape)

    def play(self, noise: NDArray[np.float32], *arrays: Any) -> None:
        """Play steps of a rollout, see `rollouts.play`."""
        self.run.play(self._vector, self.layout, self.actor_sizes, self.actor_starts, noise, *arrays)

    def values(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), for observations (P, B, inputs)."""
        result = torch.empty(obs.shape[:2])
        filled = result.numpy()
        for group in self._groups(obs):
            group.critic.forward(obs[group.span])
            self.run.values(group.critic.units, group.vector, self.layout, filled[group.span])
        return result

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B).

        Args:
            obs: observations (P, B, inputs).
            actions: actions (P, B, ...).
        """
        result = torch.empty(obs.shape[:2])
        filled, (choices, numbers) = result.numpy(), self._split(actions)
        for group in self._groups(obs):
            group.actor.forward(obs[group.span])
            taken = choices[group.span], numbers[group.span]
            self.run.log_probs(group.actor.units, group.vector, self.layout, *taken, filled[group.span])
        return result

    def loss(
        self, batch: Mapping[str, Tensor], terms: Terms, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a minibatch's losses and metrics, (P,) each.

        Differentiating the losses gives the gradient in the parameters `leaves`. The next call overwrites it.
        """
        obs, absent = batch["obs"], torch.ones_like(terms.vf_coef)
        clip, clip_value = (absent if x is None else x for x in (terms.clip_coef, terms.clip_value))
        clipping = 0 if terms.clip_value is None else CLIPPING[terms.clipping]
        flags = (terms.standardized, terms.clip_coef is not None, clipping, terms.critic_loss == "huber")
        options = np.array(flags, np.int64)
        rows = [batch[name].numpy() for name in ("log_probs", "advantages", "returns", "values")]
        rows = [*self._split(batch["actions"]), *rows]
        rows.append(torch.stack([clip, terms.vf_coef, terms.ent_coef, clip_value], 1).numpy())
        for group in self._groups(obs):
            part, actor, critic = obs[group.span], group.actor, group.critic
            actor.forward(part)
            critic.forward(part)
            arrays = (actor.units, critic.units, actor.at, critic.at, actor.slopes, critic.slopes)
            given = (x[group.span] for x in rows)
            self.run.differentiate(*arrays, group.vector, group.gradient, self.layout, *given, options, group.metrics)
            actor.backward(part)
            critic.backward(part)
        metrics = dict(zip(METRICS, self.metrics.clone().unbind(1), strict=True))
        if terms.clip_coef is None:
            del metrics["approx_kl"], metrics["clip_fraction"]
        losses = metrics["policy_loss"] + terms.vf_coef * metrics["value_loss"] - terms.ent_coef * metrics["entropy"]
        return Differentiated.apply(losses, self.gradient, self.pieces, *leaves), metrics

    def _groups(self, obs: Tensor) -> list[Group]:
        """Return the groups for observations (P, B, inputs)."""
        members, rows = obs.shape[:2]
        if rows not in self._plans:
            size = max(1, min(members, ROWS_AT_ONCE // rows))
            parts = 3 if self.kind == KINDS["silu"] else 2
            rooms = [[torch.empty(parts, size, rows, n) for n in network.sizes[1:-1]] for network in self.networks]
            spans = [slice(first, min(first + size, members)) for first in range(0, members, size)]
            self._plans[rows] = [Group(self, span, rooms) for span in spans]
        return self._plans[rows]

    def _split(self, actions: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return actions as choices and as numbers, one of which is empty."""
        if self.numbers:
            return np.empty((0, 0, 0), np.int64), actions.flatten(2).numpy()
        return actions.view(*actions.shape[:2], 1).numpy(), np.empty((0, 0, 0), np.float32)
