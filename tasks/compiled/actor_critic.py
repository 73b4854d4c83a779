"""An actor-critic and its gradient, computed by kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
OPTIMIZERS = {"adam": 0, "adamw": 0, "rmsprop": 1}  # AdamW is Adam with a decay
CLIPPING = {"none": 0, "ppo": 1, "ppo2": 2}
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


def array(x: Tensor) -> NDArray[np.float32]:
    """Return a tensor's numbers as kernels take them."""
    numbers: NDArray[np.float32] = x.contiguous().numpy()
    return numbers


@dataclass
class LossForm:
    """The form of an actor-critic's loss.

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


class CompiledOptimizer(NamedTuple):
    """An optimizer, as kernels take it.

    Attributes:
        run: module of kernels.
        form: one of OPTIMIZERS.
        steps, square, other, settings: see `descent.optimize`; the first three share the memory of the state.
    """

    run: ModuleType
    form: int
    steps: NDArray[np.float32]
    square: NDArray[np.float32]
    other: NDArray[np.float32]
    settings: NDArray[np.float32]


class Steps(NamedTuple):
    """The rules of the gradient steps of a pass over a batch.

    Attributes:
        optimizer: takes the steps.
        parts: number of minibatches.
        lr: learning rates, (P, 1).
        max_grad_norm: largest norm of a gradient, (P, 1); None for no limit.
        target_kl: members are stopped above 1.5 times this approx_kl, (P, 1); None for never.
    """

    optimizer: CompiledOptimizer
    parts: int
    lr: Tensor
    max_grad_norm: Tensor | None
    target_kl: Tensor | None


class Perceptron(NamedTuple):
    """The place of a network's layers in parameter vectors (P, D).

    Attributes:
        sizes: sizes of the layers, from inputs to outputs.
        start: start of the first layer's weights.
    """

    sizes: Sequence[int]
    start: int


class ActorCriticKernels:
    """The computation of an `ActorCritic` whose observations are vectors.

    Its actions are one choice or normal numbers.

    Attributes:
        gradient: last gradient, (P, D).
        pieces: views of the gradient for each parameter.
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
            run: module of kernels.
            vector: parameters (P, D); they may only change in place.
            actor: network of action parameters.
            critic: network of values.
            activation: key of KINDS.
            numbers: whether actions are normal numbers instead of a choice.
            log_std: start of the log standard deviations of normal numbers.
        """
        self.run, self.numbers = run, numbers
        self.gradient, self.metrics = torch.zeros_like(vector), torch.zeros(len(vector), len(METRICS))
        self._vector, self._gradient, self._metrics = vector.numpy(), self.gradient.numpy(), self.metrics.numpy()
        self.layout = np.array([actor.start, critic.start, log_std, KINDS[activation], numbers], np.int64)
        self.actor_sizes, self.critic_sizes = (np.array(x.sizes, np.int64) for x in (actor, critic))

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
        given = (array(obs), self._vector, self.layout, self.actor_sizes, noise.numpy())
        self.run.act(*given, *self._split(actions))
        return actions.view(members, rows, *shape)

    def play(self, noise: NDArray[np.float32], *arrays: Any) -> None:
        """Play steps of a rollout, see `control.play`."""
        self.run.play(self._vector, self.layout, self.actor_sizes, noise, *arrays)

    def values(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), for observations (P, B, inputs)."""
        result = torch.empty(obs.shape[:2])
        self.run.values(array(obs), self._vector, self.layout, self.critic_sizes, result.numpy())
        return result

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B).

        Args:
            obs: observations (P, B, inputs).
            actions: actions (P, B, ...).
        """
        result = torch.empty(obs.shape[:2])
        given = (array(obs), self._vector, self.layout, self.actor_sizes, *self._split(actions))
        self.run.log_probs(*given, result.numpy())
        return result

    def loss(
        self, batch: Mapping[str, Tensor], form: LossForm, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a minibatch's losses and metrics, (P,) each.

        Differentiating the losses gives the gradient in the parameters `leaves`. The next call overwrites it.
        """
        self.run.differentiate(*self._arguments(batch, form))
        increment_version(self.gradient)
        metrics = self.read(form)
        losses = metrics["policy_loss"] + form.vf_coef * metrics["value_loss"] - form.ent_coef * metrics["entropy"]
        return Differentiated.apply(losses, self.gradient, self.pieces, *leaves), metrics

    def passes(
        self, batch: Mapping[str, Tensor], form: LossForm, steps: Steps, moving: Tensor
    ) -> tuple[Callable[[Tensor, bool], None], Tensor]:
        """Return a function that takes a pass over a batch, and factors.

        It takes a step on each minibatch of the batch (P, B, ...). Its arguments are a random order of the rows,
        (P, B), and whether this is the first pass over them. It takes members out of `moving` (P, 1) that target_kl
        stops, see `descent.descend`, and fills in the factors (P, 1) by which the last gradients were scaled.
        """
        optimizer, absent = steps.optimizer, torch.zeros_like(steps.lr)
        limits, target_kl = (absent if x is None else x for x in (steps.max_grad_norm, steps.target_kl))
        clips, stops, factors = steps.max_grad_norm is not None, steps.target_kl is not None, torch.ones_like(steps.lr)
        loss = self._arguments(batch, form)
        clipping = (clips, limits.numpy(), factors.numpy())
        descent = (steps.lr.contiguous().numpy(), *optimizer[1:])
        stopping = (stops, target_kl.numpy())

        def take(order: Tensor, first: bool) -> None:
            given = (order.numpy(), steps.parts, moving.numpy(), first, *stopping)
            optimizer.run.descend(*given, *loss, *clipping, *descent)
            increment_version(self.gradient)

        return take, factors

    def read(self, form: LossForm) -> dict[str, Tensor]:
        """Return the metrics of the last minibatch, (P,) each."""
        metrics = dict(zip(METRICS, self.metrics.clone().unbind(1), strict=True))
        if form.clip_coef is None:
            del metrics["approx_kl"], metrics["clip_fraction"]
        return metrics

    def _arguments(self, batch: Mapping[str, Tensor], form: LossForm) -> tuple[Any, ...]:
        """Return the arguments of `policies.differentiate` for a batch (P, B, ...)."""
        absent = torch.ones_like(form.vf_coef)
        clip, clip_value = (absent if x is None else x for x in (form.clip_coef, form.clip_value))
        clipping = 0 if form.clip_value is None else CLIPPING[form.clipping]
        flags = (form.standardized, form.clip_coef is not None, clipping, form.critic_loss == "huber")
        rows = [batch[name].numpy() for name in ("log_probs", "advantages", "returns", "values")]
        coefficients = torch.stack([clip, form.vf_coef, form.ent_coef, clip_value], 1).numpy()
        place = (self._vector, self._gradient, self.layout, self.actor_sizes, self.critic_sizes)
        options = np.array(flags, np.int64)
        return array(batch["obs"]), *place, *self._split(batch["actions"]), *rows, coefficients, options, self._metrics

    def _split(self, actions: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return actions as choices and as numbers, one of which is empty."""
        if self.numbers:
            return np.empty((0, 0, 0), np.int64), actions.flatten(2).numpy()
        return actions.view(*actions.shape[:2], 1).numpy(), np.empty((0, 0, 0), np.float32)
