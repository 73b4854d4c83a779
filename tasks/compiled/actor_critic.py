"""An actor-critic and its gradient, by kernels.

Matrix products are torch's; kernels do everything between them. Members are taken in groups whose arrays fit a
processor's cache; products of a group of one and of many are equal (see Exactness in networks/mlp.py).
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

ACTIVATIONS = {"tanh": 0, "relu": 1}
CLIPPING = {"none": 0, "ppo": 1, "ppo2": 2}
ROWS_AT_ONCE = 1024  # of all members in a group
METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "value_loss")


class Differentiated(torch.autograd.Function):
    """Losses (P,) whose gradient (P, D) is there already.

    Autograd raises if they are differentiated after the gradient was overwritten.
    """

    @staticmethod
    def forward(ctx: Any, losses: Tensor, gradient: Tensor, pieces: Sequence[Tensor], *leaves: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.pieces, ctx.of = pieces, Differentiated
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if they were overwritten
        return None, None, None, *[g.view(-1, *[1] * (x.ndim - 1)) * x for x in ctx.pieces]


def known_gradient(losses: Tensor) -> Tensor | None:
    """Return the gradient (P, D) of `Differentiated` losses, None of others."""
    node: Any = losses.grad_fn
    return node.saved_tensors[0] if getattr(node, "of", None) is Differentiated else None


@dataclass
class Terms:
    """The terms of an actor-critic's loss.

    What they mean stands in the algorithms' `loss`.

    Attributes:
        vf_coef, ent_coef: of the value loss and the entropy, (P,).
        clip_coef: of ratios, (P,); None: the policy loss has log-probabilities instead of ratios.
        clip_value: of values, (P,); None without.
        clipping: how values are clipped, as in "ppo" or "ppo2".
        standardized: whether each minibatch's advantages are.
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
    """The place of a network's layers in parameter vectors (P, D).

    Attributes:
        sizes: of its layers.
        weights, biases: where they start.
    """

    def __init__(self, sizes: Sequence[int], start: int):
        self.sizes, self.weights, self.biases = list(sizes), [], []
        for inputs, outputs in pairwise(sizes):
            self.weights.append(start)
            self.biases.append(start + inputs * outputs)
            start += (inputs + 1) * outputs

    def matrices(self, vector: Tensor) -> list[Tensor]:
        """Return views of all weights but the last layer's, (P, inputs, outputs)."""
        pairs = zip(self.weights, pairwise(self.sizes[:-1]), strict=False)
        return [vector[:, start : start + i * o].unflatten(1, (i, o)) for start, (i, o) in pairs]


class Workspace:
    """Arrays for a network's hidden units and their slopes.

    They are (group, rows, units).
    """

    def __init__(self, sizes: Sequence[int], group: int, rows: int):
        self.hidden = [torch.empty(group, rows, units) for units in sizes[1:-1]]
        self.slopes = [torch.empty(group, rows, units) for units in sizes[1:-1]]


class ActorCriticKernels:
    """The computation of an `ActorCritic` of vectors.

    It acts by one choice or by normal numbers.

    Attributes:
        gradient: the last one, (P, D).
        pieces: its views by parameter.
    """

    pieces: Sequence[Tensor] = ()

    scratch = ("gradient", "pieces", "_matrices", "_gradients", "_workspaces", "_metrics", "_run")

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
            run: the kernels.
            vector: parameters (P, D), changed in place only.
            actor: the network of action parameters.
            critic: that of values.
            activation: one of ACTIVATIONS.
            numbers: whether actions are normal numbers rather than a choice.
            log_std: where their log standard deviations start.
        """
        self._run, self.vector, self.numbers = run, vector, numbers
        self.networks, self.kind = (actor, critic), ACTIVATIONS[activation]
        self.gradient = torch.zeros_like(vector)
        self._matrices = [network.matrices(vector) for network in self.networks]
        self._gradients = [network.matrices(self.gradient) for network in self.networks]
        self._workspaces: dict[int, list[Workspace]] = {}
        self._metrics = torch.zeros(len(vector), len(METRICS))
        starts = (actor.weights[-1], critic.weights[-1], actor.biases[-2], critic.biases[-2], log_std)
        self.layout = np.array([*starts, self.kind, numbers, actor.sizes[-1]], np.int64)
        self.actor_sizes, self.actor_starts = (np.array(x, np.int64) for x in (actor.sizes, actor.weights))

    def act(self, obs: Tensor, noise: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return actions (P, N, *shape).

        Observations are (P, N, inputs), their noise (P, N, n).
        """
        members, rows, outputs = noise.shape
        kind = torch.float32 if self.numbers else torch.int64
        actions = torch.empty(members, rows, outputs if self.numbers else 1, dtype=kind)
        given = (obs.numpy(), self.vector.numpy(), self.layout, self.actor_sizes, self.actor_starts, noise.numpy())
        self._run.act(*given, *self._split(actions))
        return actions.view(members, rows, *shape)

    def values(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), of observations (P, B, inputs)."""
        result = torch.empty(obs.shape[:2])
        for group in self._groups(obs):
            hidden = self._forward(1, group, obs[group])
            self._run.values(hidden[-1].numpy(), self.vector[group].numpy(), self.layout, result[group].numpy())
        return result

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B).

        Observations are (P, B, inputs), actions (P, B, ...).
        """
        result = torch.empty(obs.shape[:2])
        for group in self._groups(obs):
            hidden, acts = self._forward(0, group, obs[group]), self._split(actions[group])
            vector, filled = self.vector[group].numpy(), result[group].numpy()
            self._run.log_probs(hidden[-1].numpy(), vector, self.layout, *acts, filled)
        return result

    def loss(
        self, batch: Mapping[str, Tensor], terms: Terms, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a minibatch's losses and metrics, (P,) each.

        The gradient is that in the parameters, the `leaves`, and is overwritten by the next call.
        """
        obs, absent = batch["obs"], torch.ones_like(terms.vf_coef)
        clip, clip_value = (absent if x is None else x for x in (terms.clip_coef, terms.clip_value))
        coefficients = torch.stack([clip, terms.vf_coef, terms.ent_coef, clip_value], 1)
        clipping = 0 if terms.clip_value is None else CLIPPING[terms.clipping]
        flags = (terms.standardized, terms.clip_coef is not None, clipping, terms.critic_loss == "huber")
        options = np.array(flags, np.int64)
        rows = [batch[name] for name in ("log_probs", "advantages", "returns", "values")]
        run, actions = self._run, batch["actions"]
        for group in self._groups(obs):
            hidden = [self._forward(i, group, obs[group]) for i in range(2)]
            slopes = [[x[: len(hidden[0][0])] for x in w.slopes] for w in self._workspace(obs.shape[1])]
            last = [x[-1].numpy() for x in (*hidden, *slopes)]
            vector, gradient = self.vector[group].numpy(), self.gradient[group].numpy()
            given = (x[group].numpy() for x in (*rows, coefficients))
            filled = self._metrics[group].numpy()
            run.differentiate(
                *last, vector, gradient, self.layout, *self._split(actions[group]), *given, options, filled
            )
            for i in range(2):
                self._backward(i, group, obs[group], hidden[i], slopes[i], gradient)
        metrics = dict(zip(METRICS, self._metrics.clone().unbind(1), strict=True))
        if terms.clip_coef is None:
            del metrics["approx_kl"], metrics["clip_fraction"]
        losses = metrics["policy_loss"] + terms.vf_coef * metrics["value_loss"] - terms.ent_coef * metrics["entropy"]
        return Differentiated.apply(losses, self.gradient, self.pieces, *leaves), metrics

    def _groups(self, obs: Tensor) -> list[slice]:
        size = self._group(obs.shape[1])
        return [slice(first, first + size) for first in range(0, len(self.vector), size)]

    def _group(self, rows: int) -> int:
        return max(1, min(len(self.vector), ROWS_AT_ONCE // rows))

    def _workspace(self, rows: int) -> list[Workspace]:
        if rows not in self._workspaces:
            self._workspaces[rows] = [Workspace(n.sizes, self._group(rows), rows) for n in self.networks]
        return self._workspaces[rows]

    def _split(self, actions: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return choices and numbers, one of which is empty."""
        if self.numbers:
            return np.empty((0, 0, 0), np.int64), actions.flatten(2).numpy()
        return actions.view(*actions.shape[:2], 1).numpy(), np.empty((0, 0, 0), np.float32)

    def _forward(self, which: int, group: slice, x: Tensor) -> list[Tensor]:
        """Return the hidden units of a network, (P', B, units) each."""
        network, hidden, vector = self.networks[which], [], self.vector[group].numpy()
        outs = self._workspace(x.shape[1])[which].hidden
        for weight, biases, out in zip(self._matrices[which], network.biases, outs, strict=False):
            x = torch.bmm(x, weight[group], out=out[: len(x)])
            self._run.activate(x.numpy(), vector, biases, self.kind)
            hidden.append(x)
        return hidden

    def _backward(
        self, which: int, group: slice, obs: Tensor, hidden: list[Tensor], slopes: list[Tensor], gradient: NDArray[Any]
    ) -> None:
        """Propagate the slopes of the last hidden units to all before them.

        The gradients of their parameters are put into place.
        """
        for i in reversed(range(len(hidden))):
            x = hidden[i - 1] if i else obs
            torch.bmm(x.transpose(1, 2), slopes[i], out=self._gradients[which][i][group])
            if i:
                weight = self._matrices[which][i][group]
                torch.bmm(slopes[i], weight.transpose(1, 2), out=slopes[i - 1])
                biases = self.networks[which].biases[i - 1]
                self._run.slope(slopes[i - 1].numpy(), x.numpy(), gradient, biases, self.kind)
