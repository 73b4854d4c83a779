"""Gradient steps of actors with critics by `replay_descent.descend_actor_critic`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ...compiled.records import ActionForm, CriticForm, Draw, GivenBatch, HeadForm, Scaling, SoftErrors
from ...compiled.records import ActorCritics as Networks
from ...networks.acting import perceptrons
from ...networks.optimizers import CompiledDescent, FlushedDenormals
from ..compiled_steps import CompiledSteps
from .actions import NormalizedActions, SoftHead
from .learner import ActorCriticLearner
from .networks import ActorCritics


class ActorCriticSteps(CompiledSteps):
    """The gradient steps of P members."""

    learner: ActorCriticLearner

    def __init__(
        self,
        learner: ActorCriticLearner,
        run: ModuleType,
        kept: int = 0,
        heard: int = 0,
        mean: bool = False,
        smoothing: Tensor | None = None,
    ):
        """Allocate the results of a step.

        Args:
            learner: the learner.
            run: module of kernels.
            kept: quantiles that targets keep; 0 for means.
            heard: critics that the actor hears; 0 for all.
            mean: whether it hears their mean instead of the least value.
            smoothing: standard deviation and limit (P, 2) of noise in a deterministic target policy.
        """
        super().__init__(learner, run)
        hp, policy = learner.hp, learner.policy
        shape = (learner.members, hp.batch_size)
        self.actor = CompiledDescent(learner.actor_optimizer, hp.max_grad_norm)
        self.critics = CompiledDescent(learner.critic_optimizer, hp.max_grad_norm)
        self.critic_losses, self.actor_losses = (torch.zeros(shape) for _ in range(2))
        self.all_errors, self.values = (torch.zeros(shape[0], policy.copies, shape[1]) for _ in range(2))
        self.errors, self.entropies = self.all_errors[:, 0], torch.zeros(*shape, learner.alpha().shape[1])
        soft, heard = isinstance(policy.head, SoftHead), heard or policy.copies
        smoothing = torch.zeros(shape[0], 2) if smoothing is None else smoothing
        critics = CriticForm(soft, np.float32(learner.limit), kept, heard, mean, smoothing.numpy())
        results = (self.critic_losses, self.actor_losses, self.all_errors, self.values, self.entropies)
        errors = SoftErrors(*(x.numpy() for x in results))
        networks, form = self._networks(policy), _action_form(learner.actions)
        self._constant = (networks, form, critics, errors, _head_form(policy))
        self._all = torch.arange(policy.copies).repeat(shape[0], 1)
        self.moves_actor, self.alpha = True, learner.alpha()

    def _networks(self, policy: ActorCritics) -> Networks:
        """Return the networks and their gradients as kernels take them."""
        pi, q, next_actor = policy.pi, policy.critic_form, policy.actor_target or policy.actor
        return Networks(
            perceptrons(pi, policy.actor_vector, self.actor.gradient),
            perceptrons(pi, next_actor.vector),
            perceptrons(q, policy.critics.vector, self.critics.gradient.view_as(policy.critics.vector)),
            perceptrons(q, policy.targets.vector),
            *(x.numpy() for x in (policy.critic_vector, self.critics.gradient)),
        )

    def take(self, draw: Draw, scaling: Scaling, batch: GivenBatch, lr: Tensor, number: int) -> None:
        learner = self.learner
        self.moves_actor, tau = learner.due(number)
        self.alpha, subset = learner.alpha(), learner.subset(number)
        steps = self.critics.at(learner.scheduled(learner.critic_lr)), self.actor.at(lr)
        subset = self._all if subset is None else subset.contiguous()
        draws = (x.numpy() for x in (learner.update_noise(number), self.alpha, subset))
        with FlushedDenormals():
            self.run.descend_actor_critic(
                draw, scaling, self.table, batch, *self._constant, *draws, self.moves_actor, *steps
            )
        learner.follow(self.entropies.mean(1) if self.moves_actor else None, tau)

    def metrics(self) -> Mapping[str, Tensor]:
        critics = self.critic_losses.mean(1), self.critics.clipped
        actor = (self.actor_losses.mean(1), self.actor.clipped) if self.moves_actor else None
        rest = self.alpha, actor, self.entropies.mean(1), self.learner.measured
        return self.learner.report(critics, self.values.mean((1, 2)), *rest)


def _action_form(actions: NormalizedActions) -> ActionForm:
    """Return an action space as kernels take it."""
    numbers, choices, sizes = (np.array(x, np.int64) for x in (*actions.columns, actions.sizes))
    middle, half = (x.numpy() for x in (actions.units.middle, actions.units.half))
    return ActionForm(middle, half, numbers, choices, sizes, actions.num_discrete)


def _head_form(policy: ActorCritics) -> HeadForm:
    """Return the policy's last layer as kernels take it."""
    clip_mean, log_std = getattr(policy.head, "clip_mean", None), policy.actor.spans.get("actor.log_std", slice(0, 0))
    limits = torch.full((len(policy.actor_vector), 1), math.inf) if clip_mean is None else clip_mean.squeeze(-1)
    return HeadForm(log_std.stop > 0, log_std.start, log_std.stop, limits.contiguous().numpy())
