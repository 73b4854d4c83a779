"""Gradient steps of soft actor-critics by `descent.descend_sac`."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ...compiled.records import Box, Draw, Scaling, SoftErrors, SoftNetworks
from ...networks.optimizers import CompiledDescent, FlushedDenormals, norms
from ..compiled_steps import CompiledSteps, run_for
from .actions import SoftHead
from .entropy import FixedEntropy, LearnedEntropy
from .learner import ActorCriticLearner
from .networks import ActorCritics, Form


class SoftSteps(CompiledSteps):
    """The gradient steps of P members with twin critics, in a Box."""

    learner: ActorCriticLearner

    def __init__(
        self,
        run: ModuleType,
        learner: ActorCriticLearner,
        forms: tuple[Form, Form],
        coefficients: FixedEntropy | LearnedEntropy,
        entropy_lr: Tensor,
    ):
        """Allocate the results of a step.

        Args:
            run: module of kernels.
            learner: the learner.
            forms: forms of actor and critics.
            coefficients: its entropy coefficients.
            entropy_lr: their learning rates, (P, 1).
        """
        super().__init__(learner, run)
        hp, policy, members, rows = learner.hp, learner.policy, learner.members, learner.hp.batch_size
        self.coefficients, self.entropy_lr = coefficients, entropy_lr
        self.actor = CompiledDescent(learner.actor_optimizer, hp.max_grad_norm)
        self.critics = CompiledDescent(learner.critic_optimizer, hp.max_grad_norm)
        self.critic_losses, self.actor_losses = (torch.zeros(members, rows) for _ in range(2))
        self.all_errors, self.values = (torch.zeros(members, policy.copies, rows) for _ in range(2))
        self.errors, self.entropies = self.all_errors[:, 0], torch.zeros(members, rows, 1)
        vectors = (policy.actor_vector, policy.critics.vector, policy.critic_vector)
        (pi_sizes, kind), (q_sizes, _) = forms
        actor, critics, critic_vector = (x.numpy() for x in vectors)
        gradients = self.actor.gradient.numpy(), self.critics.gradient.numpy()
        results = (self.critic_losses, self.actor_losses, self.all_errors, self.values, self.entropies)
        box, errors = Box(learner.actions.middle, learner.actions.half), SoftErrors(*(x.numpy() for x in results))
        networks = SoftNetworks(actor, critics, critic_vector, *gradients, pi_sizes, q_sizes, kind)
        self._constant = (self.table, networks, box, np.float32(learner.limit), errors)

    @classmethod
    def covering(
        cls, learner: ActorCriticLearner, coefficients: FixedEntropy | LearnedEntropy, entropy_lr: Tensor
    ) -> SoftSteps | None:
        """Return a learner's steps; None if the kernel does not cover them.

        The arguments are those of `__init__`.
        """
        policy, actions, forms = learner.policy, learner.actions, learner.policy.forms
        plain = type(policy) is ActorCritics and type(policy.head) is SoftHead and learner.rewards is None
        if not plain or forms is None or actions.num_discrete > 1 or actions.columns is not None:
            return None
        if learner.replay.fields["action"].type is not torch.float32:
            return None
        run = run_for(learner)
        return None if run is None else cls(run, learner, forms, coefficients, entropy_lr)

    def take(self, draw: Draw, scaling: Scaling, lr: Tensor, number: int) -> None:
        learner, self.alpha = self.learner, self.coefficients.alpha
        critic_step, actor_step = self.critics.at(learner.scheduled(learner.critic_lr)), self.actor.at(lr)
        noise = learner.update_noise(number).numpy()
        with FlushedDenormals():
            steps = (noise, self.alpha.numpy(), critic_step, actor_step)
            self.run.descend_sac(draw, scaling, *self._constant, *steps)
        self.coefficients.descend(self.entropies.mean(1), learner.scheduled(self.entropy_lr))
        learner.policy.move_target(learner.hp.tau * (number % learner.hp.target_update_interval.long() == 0))

    def metrics(self) -> dict[str, Tensor]:
        sizes = {}
        if self.learner.measured:
            sizes = {**norms(self.actor.clipped, "actor"), **norms(self.critics.clipped, self.learner.critic_spans)}
        return {
            "critic_loss": self.critic_losses.mean(1),
            "actor_loss": self.actor_losses.mean(1),
            "q": self.values.mean((1, 2)),
            "alpha": self.alpha.mean(1),
            "entropy": self.entropies.mean(1).sum(1),
            **sizes,
        }
