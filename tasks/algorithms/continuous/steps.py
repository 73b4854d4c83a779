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
from ...networks.acting import REPLAYED
from ...networks.optimizers import CompiledDescent, FlushedDenormals, norms
from ..compiled_steps import CompiledSteps
from .actions import SoftHead
from .learner import ActorCriticLearner


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
        hp, policy, actions = learner.hp, learner.policy, learner.actions
        shape = (learner.members, hp.batch_size)
        self.actor = CompiledDescent(learner.actor_optimizer, hp.max_grad_norm)
        self.critics = CompiledDescent(learner.critic_optimizer, hp.max_grad_norm)
        self.critic_losses, self.actor_losses = (torch.zeros(shape) for _ in range(2))
        self.all_errors, self.values = (torch.zeros(shape[0], policy.copies, shape[1]) for _ in range(2))
        self.errors, self.entropies = self.all_errors[:, 0], torch.zeros(*shape, learner.alpha().shape[1])
        next_actor = policy.actor if policy.actor_target is None else policy.actor_target
        of_actor, of_next, of_critics, of_targets = (
            x.vector.numpy() for x in (policy.actor, next_actor, policy.critics, policy.targets)
        )
        gradients = self.actor.gradient.numpy(), self.critics.gradient.numpy()
        pi_sizes, q_sizes = (np.array(net.sizes, np.int64) for net in (policy.pi, policy.critic_form))
        networks = Networks(
            *(of_actor, of_next, of_critics, of_targets, policy.critic_vector.numpy(), *gradients),
            *(pi_sizes, q_sizes, REPLAYED[policy.pi.activation_name]),
        )
        columns = actions.columns or ([*range(actions.continuous_dim)], [*range(len(actions.sizes))])
        numbers, choices, sizes = (np.array(x, np.int64) for x in (*columns, actions.sizes))
        form = ActionForm(actions.middle, actions.half, numbers, choices, sizes, actions.num_discrete)
        none = torch.zeros(shape[0], 2) if smoothing is None else smoothing
        soft, heard = isinstance(policy.head, SoftHead), heard or policy.copies
        critics = CriticForm(soft, np.float32(learner.limit), kept, heard, mean, none.numpy())
        clip_mean = getattr(policy.head, "clip_mean", None)
        limits = torch.full_like(hp.tau, math.inf) if clip_mean is None else clip_mean.squeeze(-1).contiguous()
        log_std = policy.actor.spans.get("actor.log_std", slice(0, 0))
        head = HeadForm(log_std.stop > 0, log_std.start, log_std.stop, limits.numpy())
        results = (self.critic_losses, self.actor_losses, self.all_errors, self.values, self.entropies)
        self._constant = (networks, form, critics, SoftErrors(*(x.numpy() for x in results)), head)
        self._all = np.tile(np.arange(policy.copies), (shape[0], 1))
        self.moves_actor, self.alpha = True, learner.alpha()

    def take(self, draw: Draw, scaling: Scaling, given: GivenBatch, lr: Tensor, number: int) -> None:
        learner = self.learner
        self.moves_actor, tau = learner.due(number)
        self.alpha, subset = learner.alpha(), learner.subset(number)
        steps = self.critics.at(learner.scheduled(learner.critic_lr)), self.actor.at(lr)
        noise, heard = (
            learner.update_noise(number).numpy(),
            self._all if subset is None else subset.contiguous().numpy(),
        )
        rest = (noise, self.alpha.numpy(), heard, self.moves_actor, *steps)
        with FlushedDenormals():
            self.run.descend_actor_critic(draw, scaling, self.table, given, *self._constant, *rest)
        learner.follow(self.entropies.mean(1) if self.moves_actor else None, tau)

    def metrics(self) -> Mapping[str, Tensor]:
        measured = self.learner.measured
        report = {"critic_loss": self.critic_losses.mean(1), "q": self.values.mean((1, 2))}
        report |= norms(self.critics.clipped, self.learner.critic_spans) if measured else {}
        is_soft = self.alpha.shape[1] > 0
        report |= {"alpha": self.alpha.mean(1)} if is_soft else {}
        if self.moves_actor:
            report["actor_loss"] = self.actor_losses.mean(1)
            report |= {"entropy": self.entropies.mean(1).sum(1)} if is_soft else {}
            report |= norms(self.actor.clipped, "actor") if measured else {}
        return report
