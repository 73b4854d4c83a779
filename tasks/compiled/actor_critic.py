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

from .records import Actions, Descent, Experience, LossTerms, Pass, PolicyNetworks, Slope

KINDS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}
OPTIMIZERS = {"adam": 0, "adamw": 0, "rmsprop": 1, "sgd": 2}  # AdamW is Adam with a decay
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

    scratch = ("gradient", "pieces", "metrics", "run", "networks", "_slope")

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
        of_actor, of_critic = (np.array(x.sizes, np.int64) for x in (actor, critic))
        starts = (actor.start, critic.start, log_std)
        self.networks = PolicyNetworks(vector.numpy(), of_actor, of_critic, *starts, KINDS[activation], numbers)
        self._slope = Slope(self.gradient.numpy(), self.metrics.numpy())

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
        self.run.act(array(obs), self.networks, noise.numpy(), self._split(actions))
        return actions.view(members, rows, *shape)

    def values(self, obs: Tensor) -> Tensor:
        """Return v(s), (P, B), for observations (P, B, inputs)."""
        result = torch.empty(obs.shape[:2])
        self.run.values(array(obs), self.networks, result.numpy())
        return result

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), (P, B).

        Args:
            obs: observations (P, B, inputs).
            actions: actions (P, B, ...).
        """
        result = torch.empty(obs.shape[:2])
        self.run.log_probs(array(obs), self.networks, self._split(actions), result.numpy())
        return result

    def loss(
        self, batch: Mapping[str, Tensor], form: LossForm, leaves: Iterable[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a minibatch's losses and metrics, (P,) each.

        Differentiating the losses gives the gradient in the parameters `leaves`. The next call overwrites it.
        """
        self.run.differentiate(self._experience(batch), self.networks, _terms(form), self._slope)
        increment_version(self.gradient)
        metrics = self.read(form)
        losses = metrics["policy_loss"] + form.vf_coef * metrics["value_loss"] - form.ent_coef * metrics["entropy"]
        return Differentiated.apply(losses, self.gradient, self.pieces, *leaves), metrics

    def passes(
        self, batch: Mapping[str, Tensor], form: LossForm, parts: int, step: Descent, moving: Tensor, kl: Tensor | None
    ) -> Callable[[Tensor, bool], None]:
        """Return a function that takes a pass over a batch.

        It takes a step on each of `parts` minibatches of the batch (P, B, ...). Its arguments are a random order of the
        rows, (P, B), and whether this is the first pass over them. It takes members out of `moving` (P, 1) whose
        approx_kl is above 1.5 times `kl` (P, 1), see `descent.descend`.
        """
        loss = (self._experience(batch), self.networks, _terms(form), self._slope, step)
        stopping = (moving.numpy(), kl is not None, (torch.from_numpy(step.lr) if kl is None else kl).numpy())

        def take(order: Tensor, first: bool) -> None:
            self.run.descend(Pass(order.numpy(), parts, first, *stopping), *loss)
            increment_version(self.gradient)

        return take

    def read(self, form: LossForm) -> dict[str, Tensor]:
        """Return the metrics of the last minibatch, (P,) each."""
        metrics = dict(zip(METRICS, self.metrics.clone().unbind(1), strict=True))
        if form.clip_coef is None:
            del metrics["approx_kl"], metrics["clip_fraction"]
        return metrics

    def _experience(self, batch: Mapping[str, Tensor]) -> Experience:
        """Return a batch (P, B, ...) as kernels take it."""
        weighted, names = "weights" in batch, ("log_probs", "advantages", "returns", "values")
        weights = batch["weights" if weighted else "values"].numpy()  # without weights, none are read
        log_probs, advantages, returns, values = (batch[name].numpy() for name in names)
        choices, numbers = self._split(batch["actions"])
        obs = array(batch["obs"])
        return Experience(obs, choices, numbers, log_probs, advantages, returns, values, weighted, weights)

    def _split(self, actions: Tensor) -> Actions:
        """Return actions as choices or as numbers."""
        if self.networks.gaussian:
            return Actions(np.empty((*actions.shape[:2], 0), np.int64), actions.flatten(2).numpy())
        return Actions(actions.view(*actions.shape[:2], 1).numpy(), np.empty((*actions.shape[:2], 0), np.float32))


def _terms(form: LossForm) -> LossTerms:
    """Return the form of a loss as kernels take it."""
    absent = torch.ones_like(form.vf_coef)
    clip, clip_value = (absent if x is None else x for x in (form.clip_coef, form.clip_value))
    clipping = 0 if form.clip_value is None else CLIPPING[form.clipping]
    coefficients = torch.stack([clip, form.vf_coef, form.ent_coef, clip_value], 1).numpy()
    return LossTerms(coefficients, form.standardized, form.clip_coef is not None, clipping, form.critic_loss == "huber")
