"""An actor-critic and its gradient, by kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

KINDS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}
CLIPPING = {"none": 0, "ppo": 1, "ppo2": 2}
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


def array(x: Tensor) -> NDArray[np.float32]:
    """Return a tensor's numbers as kernels take them."""
    numbers: NDArray[np.float32] = x.contiguous().numpy()
    return numbers


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


class Perceptron(NamedTuple):
    """The place of a network's layers in parameter vectors (P, D).

    Attributes:
        sizes: of its layers.
        start: where its parameters begin.
    """

    sizes: Sequence[int]
    start: int


class ActorCriticKernels:
    """The computation of an `ActorCritic` of vectors.

    It acts by one choice or by normal numbers.

    Attributes:
        gradient: the last one, (P, D).
        pieces: its views by parameter.
    """

    pieces: Sequence[Tensor] = ()

    scratch = ("gradient", "pieces", "metrics", "run", "_vector", "_gradient", "_metrics")

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
            activation: one of KINDS.
            numbers: whether actions are normal numbers rather than a choice.
            log_std: where their log standard deviations start.
        """
        self.run, self.numbers = run, numbers
        self.gradient, self.metrics = torch.zeros_like(vector), torch.zeros(len(vector), len(METRICS))
        self._vector, self._gradient, self._metrics = vector.numpy(), self.gradient.numpy(), self.metrics.numpy()
        self.layout = np.array([actor.start, critic.start, log_std, KINDS[activation], numbers], np.int64)
        self.actor_sizes, self.critic_sizes = (np.array(x.sizes, np.int64) for x in (actor, critic))

    def act(self, obs: Tensor, noise: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return actions (P, N, *shape).

        Observations are (P, N, inputs), their noise (P, N, n).
        """
        members, rows, outputs = noise.shape
        kind = torch.float32 if self.numbers else torch.int64
        actions = torch.empty(members, rows, outputs if self.numbers else 1, dtype=kind)
        given = (array(obs), self._vector, self.layout, self.actor_sizes, noise.numpy())
        self.run.act(*given, *self._split(actions))
        return actions.view(members, rows, *shape)

    def play(self, noise: NDArray[np.float32], *arrays: Any) -> None:
        """Play steps of a rollout; see `rollouts.play`."""
        self.run.play(self._vector, self.layout, self.actor_sizes, noise, *arrays)

    def values(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), of observations (P, B, inputs)."""
        result = torch.empty(obs.shape[:2])
        self.run.values(array(obs), self._vector, self.layout, self.critic_sizes, result.numpy())
        return result

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B).

        Observations are (P, B, inputs), actions (P, B, ...).
        """
        result = torch.empty(obs.shape[:2])
        given = (array(obs), self._vector, self.layout, self.actor_sizes, *self._split(actions))
        self.run.log_probs(*given, result.numpy())
        return result

    def loss(
        self, batch: Mapping[str, Tensor], terms: Terms, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a minibatch's losses and metrics, (P,) each.

        The gradient is that in the parameters, the `leaves`, and is overwritten by the next call.
        """
        absent = torch.ones_like(terms.vf_coef)
        clip, clip_value = (absent if x is None else x for x in (terms.clip_coef, terms.clip_value))
        clipping = 0 if terms.clip_value is None else CLIPPING[terms.clipping]
        flags = (terms.standardized, terms.clip_coef is not None, clipping, terms.critic_loss == "huber")
        options = np.array(flags, np.int64)
        rows = [batch[name].numpy() for name in ("log_probs", "advantages", "returns", "values")]
        coefficients = torch.stack([clip, terms.vf_coef, terms.ent_coef, clip_value], 1).numpy()
        place = (self._vector, self._gradient, self.layout, self.actor_sizes, self.critic_sizes)
        given = (*self._split(batch["actions"]), *rows, coefficients, options)
        self.run.differentiate(array(batch["obs"]), *place, *given, self._metrics)
        increment_version(self.gradient)
        metrics = dict(zip(METRICS, self.metrics.clone().unbind(1), strict=True))
        if terms.clip_coef is None:
            del metrics["approx_kl"], metrics["clip_fraction"]
        losses = metrics["policy_loss"] + terms.vf_coef * metrics["value_loss"] - terms.ent_coef * metrics["entropy"]
        return Differentiated.apply(losses, self.gradient, self.pieces, *leaves), metrics

    def _split(self, actions: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return choices and numbers, one of which is empty."""
        if self.numbers:
            return np.empty((0, 0, 0), np.int64), actions.flatten(2).numpy()
        return actions.view(*actions.shape[:2], 1).numpy(), np.empty((0, 0, 0), np.float32)
