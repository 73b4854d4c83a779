"""All gradient steps of an on-policy update on a batch of rollouts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Protocol

import torch
from torch import Tensor

from ..compiled.actor_critic import Steps, Terms
from ..experience.rollout import Agent, Batch, permutations
from ..networks.actor_critic import ActorCritic
from ..networks.optimizers import Clipped, FlushedDenormals, Optimizer
from ..rng.streams import Bits
from ..runtime.progress import tick

Stepped = tuple[dict[str, Tensor], Tensor | None, Clipped]  # metrics, members (P, 1) that may move, clipped gradient
Taken = tuple[dict[str, Tensor], Clipped]  # metrics, and the last clipped gradient


class OnPolicy(Protocol):
    """A learner of P members that learns from rollouts.

    Attributes:
        order: random streams (P,) for the order of minibatches.
        mix_gradients: function that replaces the members' gradients, see `descend`; None leaves them.
        step: takes one gradient step on a minibatch (P, B, ...), with learning rates as `Optimizer.step` takes them,
            for the members (P, 1) that may be updated; None for all.
        terms: returns the coefficients of the loss for kernels; None if they do not cover it.
    """

    hp: SimpleNamespace
    agent: Agent
    policy: ActorCritic
    optimizer: Optimizer
    order: Bits
    iterations: int
    mix_gradients: Callable[[Tensor], Tensor] | None

    def step(self, minibatch: Batch, lr: Tensor, moving: Tensor | None) -> Stepped: ...

    def terms(self) -> Terms | None: ...


def take_steps(host: OnPolicy, batch: Batch, lr: Tensor, active: Tensor | None) -> Taken:
    """Take a gradient step on each minibatch, until target_kl stops all members.

    A member that is stopped keeps the metrics and the gradient of the minibatch on which it had moved too far.

    Args:
        host: the learner.
        batch: tensors (P, B, ...).
        lr: learning rates, (P, 1) or (P, D).
        active: members that may be updated, (P, 1); None for all.
    """
    if (taken := _compiled(host, batch, lr, active)) is not None:
        return taken
    hp, last, moving = host.hp, None, active
    for minibatch in host.agent.minibatches(batch, host.order, host.iterations, hp.update_epochs, hp.num_minibatches):
        before = moving
        metrics, moving, gradient = host.step(minibatch, lr, before)
        if moving is not None and last is None:  # the next step may overwrite what this one returned
            metrics, gradient = {name: value.clone() for name, value in metrics.items()}, gradient.copy()
        elif last is not None and before is not None:
            metrics = {name: torch.where(before[:, 0], value, last[0][name]) for name, value in metrics.items()}
            gradient = gradient.where(before, last[1])
        last = metrics, gradient
        if moving is not None and moving.device.type == "cpu" and not moving.any():  # on a GPU, asking would wait
            break
    assert last is not None
    return last


def _compiled(host: OnPolicy, batch: Batch, lr: Tensor, active: Tensor | None) -> Taken | None:
    """Take the steps of each pass in one call of a kernel.

    Return None if kernels do not cover them.
    """
    hp, kernels, optimizer = host.hp, host.policy.kernels, host.optimizer.compiled
    size = batch["log_probs"].shape[1]
    if kernels is None or optimizer is None or lr.shape[1] > 1 or host.mix_gradients is not None:
        return None
    if "weights" in batch or size == hp.num_minibatches or not _described(type(host)):
        return None
    if (terms := host.terms()) is None:
        return None
    moving = torch.ones_like(lr, dtype=torch.bool) if active is None else active.clone()
    steps = Steps(optimizer, hp.num_minibatches, lr, hp.max_grad_norm, vars(hp).get("target_kl"))
    take, factors = kernels.passes(batch, terms, steps, moving)
    for number, order in enumerate(permutations(host.order, host.iterations, hp.update_epochs, size)):
        tick()
        with FlushedDenormals():
            take(order, number == 0)
        if not moving.any():
            break
    return kernels.read(terms), Clipped(kernels.gradient, None if hp.max_grad_norm is None else factors)


def _described(kind: type) -> bool:
    """Return whether `terms` says the same as `loss` and `step`.

    A subclass may have replaced some of them alone.
    """
    owners = [next(base for base in kind.__mro__ if name in vars(base)) for name in ("loss", "step", "terms")]
    return len(set(owners)) == 1
